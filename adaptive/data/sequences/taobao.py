"""Logged events of users, in the order of each user's time, as arrays.

E events. With the rows that `taobao` finds for them they take 60 bytes an event, and 140 while they are sorted.

Which events of a log become candidates, and which items stand in their place in samples that were no event.

E events, K candidates. All choices follow from a seed, and from nothing else.

Events of Taobao's users (`UserBehavior.csv`) as sequences with a candidate, in the manner of TBSM's preparation.

A line is `user,item,category,behaviour,unix time`. A sample with label 1 is an event with the events of the same user
before it; behind it comes a sample with the same history whose candidate is an item that the user has no event with,
label 0. `windows` says which events and items these are. All behaviours count as events. Samples come in the order of
their candidates' times, so that what is held out is what comes last.

Each id of the training files has a row of its own, in ascending order; behind them come a row for ids that only
`eval_data` has and, for items and categories, the row of steps before a short history's first event. In such steps the
user is the user. The dense input of a step is its number over the number of steps.

TBSM's preparation differs: it draws positions with replacement, negatives behind histories of their own, and fills
short histories with row 0, which is also an item's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, Origin
from adaptive.data.data_options import DataOptions
from adaptive.data.kernels import text as kernels
from adaptive.data.rows.row_dataset import open_source, settings_identity
from adaptive.data.rows.row_source import Block, Column, RowFormat
from adaptive.data.rows.split import survey
from adaptive.data.sampling import numbers
from adaptive.data.sequences.sequence_dataset import Part, Samples, SequenceDataset, batch_of, held_out, step_times
from adaptive.data.text.text_reader import TextSource
from adaptive.errors import ConfigError, InputError

BEHAVIOURS = ("pv", "buy", "cart", "fav")
COLUMNS = ("user", "item", "category", "behaviour", "time")


def event_format(max_line_bytes: int) -> RowFormat:
    """Lines `user,item,category,behaviour,unix time` without a header."""
    keys = tuple(Column(name, kernels.KEY_INTEGER, required=True) for name in COLUMNS[:3])
    behaviour, time = Column("behaviour", kernels.LABEL_SET), Column("time", kernels.TIME_NUMBER)
    return RowFormat((*keys, behaviour, time), separator=",", max_line_bytes=max_line_bytes, positives=BEHAVIOURS)


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


Ids = NDArray[np.int64]
CANDIDATES = (0, 1, 3, 6)  # of users with 1 to 10, 11 to 20, 21 to 30, 31 to 40 events; beyond: as many as allowed
MOST_DRAWS = 100  # of an item that a user has no event with


def choose_candidates(starts: Ids, history: int, most: int, seed: int) -> Ids:
    """Positions (K,) of candidates, ascending.

    A user of 1 to 10 events has none, of 11 to 20 one, 21 to 30 three, 31 to 40 six, and of more `most`; never more
    than `most`, nor than can be. A candidate can be any event with `history` events of its user before it, or, where
    there is none, the user's last one.

    Args:
        starts: (U + 1,) where the events of each user begin.
        seed: of the draw: event e is chosen before others whose number is greater (`sampling.numbers`).
    """
    sizes = np.diff(starts)
    wanted = np.minimum(np.append(CANDIDATES, most)[np.minimum((sizes - 1) // 10, len(CANDIDATES))], most)
    user = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(user))
    possible = np.flatnonzero((place >= starts[user] + history) | (place == starts[user + 1] - 1))
    possible = possible[wanted[user[possible]] > 0]
    order = np.lexsort((numbers(0, len(user), seed)[possible], user[possible]))
    possible = possible[order]
    owners, first, counts = np.unique(user[possible], return_index=True, return_counts=True)
    rank = np.arange(len(possible)) - np.repeat(first, counts)
    return np.sort(possible[rank < wanted[np.repeat(owners, counts)]])


def draw_negatives(count: int, num_pairs: int, is_seen: Callable[[Ids, Ids], NDArray[np.bool_]], seed: int) -> Ids:
    """For each of `count` candidates the number of a pair of item and category that its user has no event with, drawn
    evenly from `num_pairs`; -1 where 100 draws found none.

    Args:
        is_seen: (candidates, pairs) -> whether the user of each candidate has an event with the item of each pair.
        seed: draw d for candidate k is number `d * count + k` of the seed.
    """
    found = np.full(count, -1, np.int64)
    for draw in range(MOST_DRAWS):
        left = np.flatnonzero(found < 0)
        if not len(left):
            break
        pairs = (numbers(draw * count, count, seed)[left] * num_pairs).astype(np.int64)
        good = ~is_seen(left, pairs)
        found[left[good]] = pairs[good]
    return found


def open_taobao(paths: str, options: DataOptions, *, run_dir: Path | None = None) -> SequenceDataset:
    """The data set of `taobao:PATH[,PATH...]`; see `adaptive.data.open.open_dataset`."""
    if options.schema_path is not None:
        raise ConfigError("taobao: has no schema; remove schema_path")
    cut = _time_cut(options)
    form = event_format(options.max_line_bytes)
    source, train_files, eval_files = open_source(paths, options, run_dir, format_of=lambda _: form)
    events = read_events(source, train_files)
    catalogue = Catalogue(events)
    samples = Windows(events, catalogue, source.names(), options)
    train, evaluation = _split(samples, cut, options)
    if eval_files:
        other = Windows(read_events(source, eval_files), catalogue, source.names(), options)
        evaluation = Part(other, 0, other.num_samples)
    return SequenceDataset(
        catalogue.tables,
        train,
        evaluation,
        steps=options.history + 1,
        num_dense=1,
        identity={
            "files": [file.fingerprint() for file in source.files],
            "format": "taobao",
            "history": options.history,
            "candidates": options.candidates,
            **settings_identity(options),
        },
        shuffle=(options.shuffle_buffer, options.seed),
        bad=source.log.counts,
    )


def _time_cut(options: DataOptions) -> float | None:
    if options.time_split is None:
        return None
    try:
        return float(options.time_split)
    except ValueError:
        raise ConfigError(
            f"time_split {options.time_split!r}: times of taobao: are seconds since 1970; give a number"
        ) from None


def _split(samples: "Windows", cut: float | None, options: DataOptions) -> tuple[Part, Part | None]:
    if cut is None:
        return held_out(samples, options)
    first = samples.first_from(cut)
    if not first:
        raise InputError(f"data.time_split = {cut:g} leaves no sample for training: give a later time")
    if first == samples.num_samples:
        raise InputError(
            f"data.time_split: expected a time up to the last one of a sample, {samples.last_time:.17g}, got "
            f"{cut:.17g}, which leaves none to evaluate on. Give an earlier time."
        )
    return Part(samples, 0, first), Part(samples, first, samples.num_samples)


class Catalogue:
    """The ids of the training events, each with its row."""

    def __init__(self, events: Events) -> None:
        self._users, self._items, self._categories = events.users, np.unique(events.items), np.unique(events.categories)
        self.no_item, self.no_category = len(self._items) + 1, len(self._categories) + 1  # behind the unknown one
        self.tables = {
            "user": len(self._users) + 1,
            "item": len(self._items) + 2,
            "category": len(self._categories) + 2,
        }
        items, categories = self.items(events.items), self.categories(events.categories)
        pairs = np.unique(items * len(self._categories) + categories)
        self.pairs = np.stack(np.divmod(pairs, len(self._categories)), axis=1)
        """(P, 2) rows of item and category, each pair that some event has once."""

    def users(self, ids: Ids) -> Ids:
        return _rows(ids, self._users)

    def items(self, ids: Ids) -> Ids:
        return _rows(ids, self._items)

    def categories(self, ids: Ids) -> Ids:
        return _rows(ids, self._categories)


def _rows(ids: Ids, known: Ids) -> Ids:
    """The place of each id among the known ones, ascending; their number for others."""
    place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return np.where(known[place] == ids, place, len(known))


class Windows(Samples):
    """The samples of a log: sample 2 k is candidate k with its history, 2 k + 1 the one with another item.

    Raises:
        InputError: if no user has enough events, or a user has an event with nearly every item.
    """

    def __init__(self, events: Events, catalogue: Catalogue, files: tuple[str, ...], options: DataOptions) -> None:
        self._events, self._catalogue, self._files, self._history = events, catalogue, files, options.history
        self._user_of = events.user_of
        self._users = catalogue.users(events.users)
        self._items, self._categories = catalogue.items(events.items), catalogue.categories(events.categories)
        chosen = choose_candidates(events.starts, options.history, options.candidates, 2 * options.seed)
        if not len(chosen):
            most = int(np.diff(events.starts).max())
            raise InputError(
                f"{files[events.file_index[0]]}: no user has more than 10 events, which a sample needs; found {most} "
                f"at most, of {len(events.users):,} users"
            )
        self._negatives = self._draw(chosen, 2 * options.seed + 1)
        order = np.argsort(events.times[chosen], kind="stable")
        self._chosen, self._negatives = chosen[order], self._negatives[order]
        self.num_samples = 2 * len(chosen)

    def first_from(self, time: float) -> int:
        """The first sample whose candidate is of this time or later."""
        return 2 * int(np.searchsorted(self._events.times[self._chosen], time))

    @property
    def last_time(self) -> float:
        """The time of the last sample's candidate."""
        return float(self._events.times[self._chosen[-1]])

    def take(self, wanted: Ids) -> Batch:
        place, is_other = self._chosen[wanted // 2], wanted % 2 == 1
        user = self._user_of[place]
        steps = place[:, None] + np.arange(-self._history, 1)
        there = steps >= self._events.starts[user][:, None]
        steps = np.maximum(steps, 0)
        items = np.where(there, self._items[steps], self._catalogue.no_item)
        categories = np.where(there, self._categories[steps], self._catalogue.no_category)
        others = self._catalogue.pairs[self._negatives[wanted // 2][is_other]]
        items[is_other, -1], categories[is_other, -1] = others[:, 0], others[:, 1]
        users = np.broadcast_to(self._users[user][:, None], items.shape)
        times = step_times(self._history + 1)[:, None]
        return batch_of(
            np.stack([users, items, categories], axis=1),
            np.broadcast_to(times, (len(wanted), *times.shape)),
            (~is_other).astype(np.float32),
            Origin(self._files, self._events.file_index[place], self._events.lines[place]),
        )

    def _draw(self, chosen: Ids, seed: int) -> Ids:
        """(K,) the pair of item and category that stands beside each candidate."""
        num_items = self._catalogue.tables["item"]
        seen = seen_pairs(self._events, self._items, num_items)

        def is_seen(candidates: Ids, pairs: Ids) -> NDArray[np.bool_]:
            asked = self._user_of[chosen[candidates]] * num_items + self._catalogue.pairs[pairs, 0]
            found: NDArray[np.bool_] = seen[np.minimum(np.searchsorted(seen, asked), len(seen) - 1)] == asked
            return found

        found = draw_negatives(len(chosen), len(self._catalogue.pairs), is_seen, seed)
        if (found < 0).any():
            place = chosen[np.flatnonzero(found < 0)[0]]
            where = f"{self._files[self._events.file_index[place]]}:{self._events.lines[place]}"
            raise InputError(
                f"{where}: user {self._events.users[self._user_of[place]]} has events with nearly every item, so none "
                "can be drawn as one that was not chosen; read more users' events"
            )
        return found
