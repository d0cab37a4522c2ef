"""Events of Taobao's users (`UserBehavior.csv`) as sequences with a candidate, in the manner of TBSM's preparation.

A line is `user,item,category,behaviour,unix time`. A sample with label 1 is an event with the events of the same user
before it; behind it comes a sample with the same history whose candidate is an item that the user has no event with,
label 0. All behaviours count as events. Samples come in the order of their candidates' times, so that what is held out
is what comes last.

Each id of the training files has a row of its own, in ascending order; behind them come a row for ids that only
`eval_data` has and, for items and categories, the row of steps before a short history's first event. In such steps the
user is the user. The dense input of a step is its number over the number of steps.

TBSM's preparation differs: it draws positions with replacement, negatives behind histories of their own, and fills
short histories with row 0, which is also an item's.

Letters: E events, K candidates. Events and their rows take 60 bytes an event, and 140 while they are sorted. All
choices follow from a seed, and from nothing else.
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
from adaptive.data.rows.split import survey
from adaptive.data.sampling import numbers
from adaptive.data.sequences.sequence_dataset import Part, Samples, SequenceDataset, batch_of, held_out, step_times
from adaptive.data.text.delimited import time_cut
from adaptive.data.text.text_reader import open_text_files
from adaptive.errors import InputError

BEHAVIOURS = ("pv", "buy", "cart", "fav")
COLUMNS = ("user", "item", "category", "behaviour", "time")
CANDIDATES = (0, 1, 3, 6)  # of users with 1 to 10, 11 to 20, 21 to 30, 31 to 40 events; beyond: as many as allowed
MOST_DRAWS = 100  # of an item that a user has no event with

Ids = NDArray[np.int64]


def open_taobao(paths: str, options: DataOptions, run_dir: Path | None) -> SequenceDataset:
    """The data set of `taobao:PATH[,PATH...]`."""
    cut, form = time_cut(options, "number"), event_format(options.max_line_bytes)
    source, train_files, eval_files = open_text_files(paths, options, run_dir, format_of=lambda _: form)
    events = read_events(source, train_files)
    catalogue = Catalogue(events)
    samples = Windows(events, catalogue, source.names(), options)
    train, evaluation = held_out(samples, options) if cut is None else _split(samples, cut)
    if eval_files:
        evaluation = Part.whole(Windows(read_events(source, eval_files), catalogue, source.names(), options))
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


def _split(samples: "Windows", cut: float) -> tuple[Part, Part]:
    """The samples whose candidates are before a time, and the others."""
    times = samples.times
    first = 2 * int(np.searchsorted(times, cut))
    if not first:
        raise InputError(f"data.time_split = {cut:g} leaves no sample for training: give a later time")
    if first == samples.num_samples:
        raise InputError(
            f"data.time_split: expected a time up to the last one of a sample, {times[-1]:.17g}, got {cut:.17g}, which "
            "leaves none to evaluate on. Give an earlier time."
        )
    return Part(samples, 0, first), Part(samples, first, samples.num_samples)


def event_format(max_line_bytes: int) -> RowFormat:
    """Lines `user,item,category,behaviour,unix time` without a header."""
    keys = tuple(Column(name, kernels.KEY_INTEGER, required=True) for name in COLUMNS[:3])
    behaviour, time = Column("behaviour", kernels.LABEL_SET), Column("time", kernels.TIME_NUMBER)
    return RowFormat((*keys, behaviour, time), separator=",", max_line_bytes=max_line_bytes, positives=BEHAVIOURS)


@dataclass(frozen=True)
class Events:
    """Events user by user, of each user by time; events of one time in the order of the lines."""

    users: Ids  # (U,) the users' ids, ascending
    starts: Ids  # (U + 1,) where the events of each user begin
    items: Ids  # (E,) ids
    categories: Ids  # (E,) ids
    times: NDArray[np.float64]  # (E,) seconds since 1970
    file_index: NDArray[np.int32]  # (E,)
    lines: Ids  # (E,)

    @property
    def user_of(self) -> Ids:
        """(E,) the number of each event's user."""
        return np.repeat(np.arange(len(self.users)), np.diff(self.starts))


def read_events(source: RowSource, files: tuple[int, ...]) -> Events:
    """The events of some files together.

    Raises:
        InputError: if a file cannot be read, too many lines are bad, a behaviour is unknown, or there is no event.
    """
    keys, times, places, lines = list[Ids](), [], [], []

    def look(block: Block) -> None:
        rows, columns = block.num_rows, block.columns
        unknown = np.flatnonzero(columns.labels[:rows] != 1)
        if len(unknown):
            raise InputError(
                f"{source.names()[block.file_index[unknown[0]]]}:{columns.lines[unknown[0]]}: the behaviour is none of "
                f"{', '.join(BEHAVIOURS)}; taobao: reads lines {','.join(COLUMNS)} as UserBehavior.csv has them"
            )
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
    file_index, line = np.concatenate(places)[order], np.concatenate(lines)[order]
    return Events(users, np.append(starts, len(user)), item[order], category[order], time[order], file_index, line)


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
    evenly from `num_pairs`; -1 where 100 draws met none.

    Args:
        is_seen: (candidates, pairs) -> whether the user of each candidate has an event with the item of each pair.
        seed: draw d for candidate k is number `d * count + k` of the seed.
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
    """The ids of the training events, each with its row."""

    def __init__(self, events: Events) -> None:
        self._users, self._items, self._categories = events.users, np.unique(events.items), np.unique(events.categories)
        self.no_item, self.no_category = len(self._items) + 1, len(self._categories) + 1  # behind the unknown one
        self.tables = {"user": len(self._users) + 1, "item": self.no_item + 1, "category": self.no_category + 1}
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


def _rows(ids: Ids, catalogued: Ids) -> Ids:
    """The place of each id among the catalogued ones, ascending; their number for others."""
    place = np.minimum(np.searchsorted(catalogued, ids), len(catalogued) - 1)
    return np.where(catalogued[place] == ids, place, len(catalogued))


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

    @property
    def times(self) -> NDArray[np.float64]:
        """(K,) of the candidates, ascending."""
        return self._events.times[self._chosen]

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
        """(K,) the pair of item and category that stands beside each candidate."""
        num_items = self._catalogue.tables["item"]
        seen = np.unique(self._user_of * num_items + self._items)  # of all that a user of the log has an event with

        def is_seen(candidates: Ids, pairs: Ids) -> NDArray[np.bool_]:
            drawn = self._user_of[chosen[candidates]] * num_items + self._catalogue.pairs[pairs, 0]
            return np.asarray(seen[np.minimum(np.searchsorted(seen, drawn), len(seen) - 1)] == drawn)

        negatives = draw_negatives(len(chosen), len(self._catalogue.pairs), is_seen, seed)
        if (negatives < 0).any():
            place = chosen[np.flatnonzero(negatives < 0)[0]]
            raise InputError(
                f"{self._files[self._events.file_index[place]]}:{self._events.lines[place]}: user "
                f"{self._events.users[self._user_of[place]]} has events with nearly every item, so none can be drawn "
                "as one that was not chosen; read more users' events"
            )
        return negatives
