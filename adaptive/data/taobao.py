"""Events of Taobao's users (`UserBehavior.csv`) as sequences, similar to TBSM's.

A line is `user,item,category,behaviour,unix time`; all behaviours count as events. A sample with label 1 is an event
together with the earlier events of the same user. It is followed by a sample with label 0: the same history with a
candidate that the user has no event with. Samples are in the order of their candidates' times, so the held-out samples
are the latest.

Each id of the training files has a row, in ascending order. They are followed by a row for ids that occur only in
`eval_data` and, for items and categories, by the row for padding: steps before the first event of a short history. The
user of such steps is the sample's user. The dense input of a step is its number over the number of steps.

TBSM's preparation differs: it draws positions with replacement, gives negatives their own histories, and fills short
histories with row 0, which is also the row of an item.

Letters: E events, K candidates. Events and their rows take 60 bytes for each event, and 140 while they are sorted. All
choices depend on the seed only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, Origin
from adaptive.data.data_options import DataOptions
from adaptive.data.kernels import text as kernels
from adaptive.data.rows.row_source import Block, Column, RowFormat, RowSource
from adaptive.data.rows.split import MILLISECONDS, survey
from adaptive.data.sampling import numbers
from adaptive.data.sequences import Part, Samples, SequenceDataset, batch_of, split_holdout, step_times
from adaptive.data.text.text_reader import open_text_files
from adaptive.errors import InputError

BEHAVIOURS = ("pv", "buy", "cart", "fav")
COLUMNS = ("user", "item", "category", "behaviour", "time")
CANDIDATES = (0, 1, 3, 6)  # for users with 1 to 10, 11 to 20, 21 to 30, 31 to 40 events; beyond: as many as allowed
MOST_DRAWS = 100  # draws of a negative item before giving up

Ids = NDArray[np.int64]


def open_taobao(paths: str, options: DataOptions, run_dir: Path | None) -> SequenceDataset:
    """Open the data set `taobao:PATH[,PATH...]`."""
    form = event_format(options.max_line_bytes)
    source, train_files, eval_files = open_text_files(paths, options, run_dir, format_of=lambda _: form)
    events = read_events(source, train_files)
    catalogue = Catalogue(events)
    samples = Windows(events, catalogue, source.names(), options)
    train, evaluation = split_holdout(samples, options.holdout or 0)
    if eval_files:
        others = Windows(read_events(source, eval_files), catalogue, source.names(), options)
        evaluation = Part(others, 0, others.num_samples)
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
            **options.identity(),
        },
        shuffle=(options.shuffle_buffer, options.seed),
        bad=source.log.counts,
    )


def event_format(max_line_bytes: int) -> RowFormat:
    """Return the format of lines `user,item,category,behaviour,unix time` without a header."""
    keys = tuple(Column(name, kernels.KEY_INTEGER, required=True) for name in COLUMNS[:3])
    behaviour, time = Column("behaviour", kernels.LABEL_SET), Column("time", kernels.TIME_NUMBER)
    return RowFormat((*keys, behaviour, time), separator=",", max_line_bytes=max_line_bytes, positives=BEHAVIOURS)


@dataclass(frozen=True)
class Events:
    """Events, ordered by user, then by time, then by line."""

    users: Ids  # (U,) the users' ids, ascending
    starts: Ids  # (U + 1,) the first event of each user
    items: Ids  # (E,) ids
    categories: Ids  # (E,) ids
    times: NDArray[np.float64]  # (E,) seconds since 1970
    file_index: NDArray[np.int32]  # (E,)
    lines: Ids  # (E,)


def read_events(source: RowSource, files: tuple[int, ...]) -> Events:
    """Return the events of some files.

    Raises:
        InputError: if a file cannot be read, too many lines are bad, a behaviour is unknown, a time is not in seconds,
            or there is no event.
    """
    keys, times, places, lines = list[Ids](), [], [], []

    def look(block: Block) -> None:
        rows, columns = block.num_rows, block.columns
        unknown = np.flatnonzero(columns.labels[:rows] != 1)
        if len(unknown):
            raise InputError(
                f"{source.names()[block.file_index[unknown[0]]]}:{columns.lines[unknown[0]]}: expected one of "
                f"{', '.join(BEHAVIOURS)} for behaviour, got another value. Write lines {','.join(COLUMNS)}, as in "
                "UserBehavior.csv."
            )
        keys.append(columns.keys[:, :rows].copy())
        times.append(columns.times[:rows].copy())
        places.append(block.file_index[:rows].copy())
        lines.append(columns.lines[:rows].copy())

    survey(source, files, look=look)
    user, item, category = np.concatenate(keys, axis=1)
    time = np.concatenate(times)
    latest = int(time.argmax())
    if time[latest] >= MILLISECONDS:
        raise InputError(
            f"{source.names()[np.concatenate(places)[latest]]}:{np.concatenate(lines)[latest]}: expected a unix time "
            f"in seconds, got {time[latest]:.17g}. Divide milliseconds by 1,000."
        )
    order = np.lexsort((time, user))  # stable
    user = user[order]
    users, starts = np.unique(user, return_index=True)
    file_index, line = np.concatenate(places)[order], np.concatenate(lines)[order]
    return Events(users, np.append(starts, len(user)), item[order], category[order], time[order], file_index, line)


def choose_candidates(starts: Ids, history: int, most: int, seed: int) -> Ids:
    """Return the positions (K,) of candidates, ascending.

    A user with 1 to 10 events has none, with 11 to 20 one, 21 to 30 three, 31 to 40 six, and with more `most`; at most
    `most`, and at most as many as there are. A candidate can be any event with `history` earlier events of its user or,
    if there is none, the user's last event.

    Args:
        starts: (U + 1,) first event of each user.
        seed: of the draw: events with smaller numbers (`sampling.numbers`) are chosen first.
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
    """Draw a pair of item and category for each candidate, without an event of its user.

    Args:
        num_pairs: number of pairs, from which they are drawn uniformly.
        is_seen: (candidates, pairs) -> True where the candidate's user has an event with the item of the pair.
        seed: draw d for candidate k is number `d * count + k` of the seed.

    Returns:
        (count,) numbers of pairs; -1 where 100 draws had no success.
    """
    drawn = np.full(count, -1, np.int64)
    for draw in range(MOST_DRAWS):
        left = np.flatnonzero(drawn < 0)
        if not len(left):
            break
        pairs = (numbers(draw * count, count, seed)[left] * num_pairs).astype(np.int64)
        good = ~is_seen(left, pairs)
        drawn[left[good]] = pairs[good]
    return drawn


class Catalogue:
    """The mapping from the ids of the training events to rows."""

    def __init__(self, events: Events) -> None:
        self.users, self.items, self.categories = events.users, np.unique(events.items), np.unique(events.categories)
        # padding follows the row for unknown ids
        self.no_item, self.no_category = len(self.items) + 1, len(self.categories) + 1
        self.tables = {"user": len(self.users) + 1, "item": self.no_item + 1, "category": self.no_category + 1}
        pairs = _rows(events.items, self.items) * len(self.categories) + _rows(events.categories, self.categories)
        self.pairs = np.stack(np.divmod(np.unique(pairs), len(self.categories)), axis=1)
        """(P, 2) rows of item and category of each distinct pair of the events."""


def _rows(ids: Ids, catalogued: Ids) -> Ids:
    """Return the position of each id in the ascending `catalogued`, or its length."""
    place = np.minimum(np.searchsorted(catalogued, ids), len(catalogued) - 1)
    return np.where(catalogued[place] == ids, place, len(catalogued))


class Windows(Samples):
    """The samples of a log: sample 2 k is candidate k with its history, 2 k + 1 its negative.

    Raises:
        InputError: if no user has enough events, or a user has an event with nearly every item.
    """

    def __init__(self, events: Events, catalogue: Catalogue, files: tuple[str, ...], options: DataOptions) -> None:
        self._events, self._catalogue, self._files, self._history = events, catalogue, files, options.history
        self._user_of = np.repeat(np.arange(len(events.users)), np.diff(events.starts))  # (E,)
        self._users, self._items = _rows(events.users, catalogue.users), _rows(events.items, catalogue.items)
        self._categories = _rows(events.categories, catalogue.categories)
        chosen = choose_candidates(events.starts, options.history, options.candidates, 2 * options.seed)
        if not len(chosen):
            most = int(np.diff(events.starts).max())
            raise InputError(
                f"{files[events.file_index[0]]}: expected users with more than 10 events, got {len(events.users):,} "
                f"users with at most {most}. Read more files."
            )
        self._negatives = self._draw(chosen, 2 * options.seed + 1)
        order = np.argsort(events.times[chosen], kind="stable")
        self._chosen, self._negatives = chosen[order], self._negatives[order]
        self.num_samples = 2 * len(chosen)

    def take(self, wanted: Ids) -> Batch:
        place, is_other = self._chosen[wanted // 2], wanted % 2 == 1
        user = self._user_of[place]
        steps = place[:, None] + np.arange(-self._history, 1)
        is_event = steps >= self._events.starts[user][:, None]
        steps = np.maximum(steps, 0)
        items = np.where(is_event, self._items[steps], self._catalogue.no_item)
        categories = np.where(is_event, self._categories[steps], self._catalogue.no_category)
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
        """Return (K,) the number of the negative's pair of item and category for each candidate."""
        num_items = self._catalogue.tables["item"]
        seen = np.unique(self._user_of * num_items + self._items)  # pairs of user and item that have an event

        def is_seen(candidates: Ids, pairs: Ids) -> NDArray[np.bool_]:
            drawn = self._user_of[chosen[candidates]] * num_items + self._catalogue.pairs[pairs, 0]
            return np.asarray(seen[np.minimum(np.searchsorted(seen, drawn), len(seen) - 1)] == drawn)

        negatives = draw_negatives(len(chosen), len(self._catalogue.pairs), is_seen, seed)
        if (negatives < 0).any():
            place = chosen[np.flatnonzero(negatives < 0)[0]]
            raise InputError(
                f"{self._files[self._events.file_index[place]]}:{self._events.lines[place]}: expected a user without "
                f"events for some items, got user {self._events.users[self._user_of[place]]} with events for nearly "
                "every item, so that no negative can be drawn. Read the events of more users."
            )
        return negatives
