"""Logged events of users, in the order of each user's time, as arrays.

E events. With the rows that `taobao` finds for them they take 60 bytes an event, and 140 while they are sorted.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.data.kernels import text as kernels
from adaptive.data.rows.format import Block, Column, TextFormat
from adaptive.data.rows.split import survey
from adaptive.data.text.reader import TextSource
from adaptive.errors import InputError

BEHAVIOURS = ("pv", "buy", "cart", "fav")
COLUMNS = ("user", "item", "category", "behaviour", "time")


def event_format(max_line_bytes: int) -> TextFormat:
    """Lines `user,item,category,behaviour,unix time` without a header."""
    keys = tuple(Column(name, kernels.KEY_INTEGER, required=True) for name in COLUMNS[:3])
    behaviour, time = Column("behaviour", kernels.LABEL_SET), Column("time", kernels.TIME_NUMBER)
    return TextFormat((*keys, behaviour, time), separator=",", max_line_bytes=max_line_bytes, positives=BEHAVIOURS)


@dataclass(frozen=True)
class Events:
    """Events user by user, of each user by time; events of one time in the order of the lines."""

    users: NDArray[np.int64]  # (U,) the users' ids, ascending
    starts: NDArray[np.int64]  # (U + 1,) where the events of each user begin
    items: NDArray[np.int64]  # (E,) ids
    categories: NDArray[np.int64]  # (E,) ids
    times: NDArray[np.float64]  # (E,) seconds since 1970
    file_index: NDArray[np.int32]  # (E,)
    lines: NDArray[np.int64]  # (E,)

    @property
    def user_of(self) -> NDArray[np.int64]:
        """(E,) the number of each event's user."""
        return np.repeat(np.arange(len(self.users)), np.diff(self.starts))


def read_events(source: TextSource, files: tuple[int, ...]) -> Events:
    """The events of some files together.

    Raises:
        InputError: if a file cannot be read, too many lines are bad, a behaviour is unknown, or there is no event.
    """
    keys, times, places, lines = list[NDArray[np.int64]](), [], [], []

    def look(block: Block) -> None:
        rows, columns = block.num_rows, block.columns
        _check_behaviours(source, block)
        keys.append(columns.keys[:, :rows].copy())
        times.append(columns.times[:rows].copy())
        places.append(block.file_index[:rows].copy())
        lines.append(columns.lines[:rows].copy())

    survey(source, files, look=look)
    user, item, category = np.concatenate(keys, axis=1)
    time = np.concatenate(times)
    order = np.lexsort((time, user))  # stable
    user = user[order]
    users, starts = np.unique(user, return_index=True)
    return Events(
        users,
        np.append(starts, len(user)),
        item[order],
        category[order],
        time[order],
        np.concatenate(places)[order],
        np.concatenate(lines)[order],
    )


def _check_behaviours(source: TextSource, block: Block) -> None:
    unknown = np.flatnonzero(block.columns.labels[: block.num_rows] != 1)
    if len(unknown):
        first = unknown[0]
        where = f"{source.names()[block.file_index[first]]}:{block.columns.lines[first]}"
        raise InputError(
            f"{where}: the behaviour is none of {', '.join(BEHAVIOURS)}; taobao: reads lines "
            f"{','.join(COLUMNS)} as UserBehavior.csv has them"
        )


def seen_pairs(events: Events, item_rows: NDArray[np.int64], num_items: int) -> NDArray[np.int64]:
    """Ascending numbers `user * num_items + item row` of all that a user of the log has an event with."""
    return np.unique(events.user_of * num_items + item_rows)
