"""Hot inputs on the device, cold inputs on the host (FAE, https://arxiv.org/abs/2103.00686, PVLDB 15(1), 2022).

A calibrator decides once, on a sample, which rows are hot. An input is hot if all its lookups are; hot and cold
inputs are put into mini-batches of their own, so that a hot mini-batch needs nothing from the host. Cold ones are
looked up and updated where their rows lie.

**Inputs are reordered**, which changes what is trained: under a popularity curriculum, as in the paper.

What differs from the paper. A row has one home here, not a copy on either side, so nothing is synchronised at a swap;
`two_home_bytes` says what the original would have copied. Data come as a stream: what the paper sorts once on disk is
sorted on the way. At R(r), r per cent of an epoch's mini-batches are read; their cold inputs are trained as they come,
the hot ones wait, within `spool_bytes` in memory and then in a temporary file, and are trained next. So r per cent of
the cold and r per cent of the hot mini-batches are trained in turn, at R(50) in four phases an epoch, as in the paper,
as far as hot inputs are spread evenly over the data. A run that saves on the way (`save_every`) first trains what is
waiting, and a phase begins behind it. Where the length of an epoch is not known, phases are per cents of `block`
mini-batches, which makes many more swaps; a share of the data that calibration reads to its end (`calibrate = "5%"`)
makes it known.

The paper's scheduler adapts its rate to the test loss at each swap; here some of the first inputs are held back for it:
after the last mini-batch of a phase the loss on them is measured, and they are trained in the last two phases. The rate
learns of it 8 mini-batches later, or as many as are looked ahead. In the second epoch these inputs are no longer new.
While the device has free slots, cold rows may use them.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, Policy, RowStats, TierView
from adaptive.policies.fae.shuffle import START, ShuffleScheduler, hold_back
from adaptive.policies.fae.threshold import find_threshold
from adaptive.policies.samples import (
    ByRow,
    Coming,
    Refill,
    Spool,
    check_range,
    check_shares,
    check_state,
    count_lookups,
    greatest,
)


def _counted(sample: Sequence[Batch], view: TierView) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows that a sample looks up, in order, and how often."""
    return np.unique(np.concatenate([view.rows(batch) for batch in sample]), return_counts=True)


def _hardest(
    batch: Batch, rows: NDArray[np.int64], rank: NDArray[np.int64], behind: NDArray[np.int64], view: TierView
) -> NDArray[np.int64]:
    """For every other input of a batch the greatest rank among its rows: of those of `rows` (n,) the `rank` (n,), of
    all others that of their table, `behind`."""
    others = batch.take(np.arange(1, batch.num_samples, 2))
    asked = view.rows(others)
    ranks = behind[np.searchsorted(view.table_starts, asked, "right") - 1]
    if len(rows):
        places = np.minimum(np.searchsorted(rows, asked), len(rows) - 1)
        ranks = np.where(rows[places] == asked, rank[places], ranks)
    return greatest(others, ranks)


def _filled(hot: NDArray[np.int64], tables: NDArray[np.int64], room: int, view: TierView) -> NDArray[np.int64]:
    """These rows, and all rows of the tables, as far as there is room."""
    for table in tables:
        more = np.union1d(hot, np.arange(*view.table_starts[table : table + 2]))
        if len(more) > room:
            break
        hot = more
    return hot


class FAE(Policy):
    """The rows that the calibrator found hot, and no others, are worth the device.

    Args:
        select: `threshold`: per table, rows with at least a share t of the table's lookups are hot; the smallest t
            is taken whose hot rows are estimated to fit the device, as in the paper; room that is left goes to the most
            frequent of the other rows. `top`: the most frequent rows of
            all tables together, as many as fit, as in the released code.
        sample_rate: share of the calibration inputs that is counted, drawn at random. The paper takes 5 % of the data;
            a run's calibration inputs (`calibrate`) are such a sample already.
        hot_inputs: the share of the inputs that is to be hot, instead of all that fit (the paper's other knob). The
            rows this takes are estimated and reported (`rows_needed`: give as many as `device_rows`); no more than
            these are hot. Where rows that the sample did not see are needed, tables are hot as a whole.
        small_table_bytes: tables of fewer bytes are hot as a whole, smallest first as far as they fit, without being
            counted; `select="threshold"` only.
        rate: per cent of the epoch's cold mini-batches that are trained before the next hot ones.
        block: mini-batches from whose inputs some are held back: the first of an epoch, or of its first phase if that
            has fewer. Where the length of an epoch is not known, the rate is of so many mini-batches.
        held_back: one in so many of these is held back for the test loss; 0: none, and the rate stays.
        measure_every: mini-batches from one test loss to the next, at least; each costs a forward pass over the inputs
            that are held back.
        spool_bytes: of hot mini-batches that wait, in memory; more wait in a temporary file.
        seed: of the sample and the chunks.

    Attributes:
        hot_rows: number of hot rows.
        rows_needed: rows that would have to be hot so that the wanted share of the inputs is; 0: no share was wanted.
        threshold: share of its table's lookups from which on a row is hot, as found.
        scheduler: the rate, and the rule that changes it.
        seen_inputs, hot_inputs: samples classified so far, and those that were hot.
        swaps: changes between hot and cold mini-batches so far.
    """

    misses = "host"
    reported = ("hot_rows", "rows_needed", "seen_inputs", "hot_inputs", "rate", "swaps", "two_home_bytes")

    def __init__(
        self,
        *,
        select: Literal["threshold", "top"] = "threshold",
        sample_rate: float = 1.0,
        hot_inputs: float | None = None,
        small_table_bytes: int = 1_000_000,
        rate: int = START,
        block: int = 64,
        held_back: int = 32,
        measure_every: int = 64,
        spool_bytes: int = 1 << 26,
        seed: int = 0,
    ) -> None:
        check_shares(sample_rate=sample_rate, hot_inputs=hot_inputs)
        check_range(0, small_table_bytes=small_table_bytes, seed=seed)
        check_range(1, block=block, measure_every=measure_every, spool_bytes=spool_bytes)
        if held_back < 0 or held_back == 1:
            raise ValueError(f"held_back={held_back}: expected one input in 2 or more, or 0: none")
        self.select, self.sample_rate, self.small_table_bytes = select, sample_rate, small_table_bytes
        self._wanted = hot_inputs
        self.block, self.held_back, self.seed = block, held_back, seed
        self.measure_every, self.spool_bytes = measure_every, spool_bytes
        self.scheduler = ShuffleScheduler(rate)
        self.threshold = 1.0
        self.hot_rows = self.rows_needed = self.seen_inputs = self.hot_inputs = self.swaps = 0
        self._hot = ByRow(np.bool_)
        self._hot_bytes = 0
        self._last_was_hot = False  # training starts with cold mini-batches
        self._unmeasured = 0  # mini-batches since a loss was asked for

    @property
    def rate(self) -> int:
        """Per cent of the cold mini-batches that are trained before the next hot ones, now."""
        return self.scheduler.rate

    @property
    def two_home_bytes(self) -> int:
        """Bytes of weights that copying the hot rows at every swap would have moved so far."""
        return self.swaps * self._hot_bytes

    def score(self, rows: RowStats) -> NDArray[np.int8]:
        return self._hot[rows.rows].astype(np.int8)

    # --- calibrator ------------------------------------------------------------------------------------------

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        if not sample:
            return
        random = np.random.default_rng(self.seed)
        sample = [self._sampled(batch, random) for batch in sample]
        rows, counts = _counted(sample, view)
        small = np.zeros(0, np.int64)
        budget, whole = view.device_rows, np.zeros(0, np.int64)
        if self._wanted is not None:
            self.rows_needed, whole = self._rows_for(self._wanted, sample, view)
            budget = min(budget, self.rows_needed)
        room = budget
        if self.select == "threshold":
            starts = view.table_starts
            tables = self._small_tables(view, budget)
            small = np.concatenate([small, *(np.arange(starts[table], starts[table + 1]) for table in tables)])
            others = ~np.isin(np.searchsorted(starts, rows, "right") - 1, tables)
            rows, counts, budget = rows[others], counts[others], budget - len(small)
            self.threshold, chosen = find_threshold(rows, counts, budget, starts, random)
            counts = counts + chosen * counts.max(initial=0)  # they come first
        # An estimate may be short of the truth: what does not fit has to be left out, least frequent first. It may also
        # leave room: in a small sample many rows are equally frequent, and a threshold takes all of them or none.
        most = np.argsort(-counts, kind="stable")[:budget]
        self._adopt(_filled(np.union1d(small, rows[most]), whole, room, view), view)

    def _sampled(self, batch: Batch, random: np.random.Generator) -> Batch:
        if self.sample_rate == 1:
            return batch
        return batch.take(np.flatnonzero(random.random(batch.num_samples) < self.sample_rate))

    def _small_tables(self, view: TierView, left: int) -> list[int]:
        """Tables that are hot as a whole, of `left` rows in all at most."""
        sizes = np.diff(view.table_starts)
        chosen = []
        for table in np.argsort(sizes, kind="stable"):
            if sizes[table] * view.row_bytes[table] < self.small_table_bytes and sizes[table] <= left:
                chosen.append(int(table))
                left -= int(sizes[table])
        return chosen

    def _rows_for(self, share: float, sample: Sequence[Batch], view: TierView) -> tuple[int, NDArray[np.int64]]:
        """Rows, hottest first, with which that share of the inputs is hot, and the tables that are hot as a whole.

        Rows are ranked by one half of the sample and inputs taken from the other: among those whose rows were counted
        all rows would seem to be known. Rows that the first half did not see rank behind all that it did, with all
        such rows of their table, tables with few of them first. So the estimate is rather too high.
        """
        starts, sizes = view.table_starts, np.diff(view.table_starts)
        rows, counts = _counted([batch.take(np.arange(0, batch.num_samples, 2)) for batch in sample], view)
        tables = np.searchsorted(starts, rows, "right") - 1
        unseen = sizes - np.bincount(tables, minlength=len(sizes))
        heat, small = counts.astype(np.float64), list[int]()
        if self.select == "threshold":
            small = self._small_tables(view, view.num_rows)
            heat /= np.bincount(tables, counts, minlength=len(sizes))[tables]
        in_small = np.isin(tables, small)
        rank = np.zeros(len(rows), np.int64)
        others = np.flatnonzero(~in_small)
        rank[others[np.argsort(-heat[others], kind="stable")]] = sizes[small].sum() + np.arange(1, len(others) + 1)
        last_seen = int(sizes[small].sum()) + len(others)
        unseen[small] = 0
        order = np.argsort(unseen, kind="stable")
        ends = last_seen + np.cumsum(unseen[order])  # with all rows of these tables
        behind = np.empty(len(sizes), np.int64)
        behind[order] = ends
        behind[small] = rank[in_small] = sizes[small].sum()
        needed = np.sort(np.concatenate([_hardest(batch, rows, rank, behind, view) for batch in sample]))
        if not len(needed):
            return 0, order[:0]
        last = int(needed[math.ceil(share * len(needed)) - 1])
        if last <= last_seen:
            return last, order[:0]
        whole = order[: np.searchsorted(ends, last) + 1]
        seen = np.bincount(np.searchsorted(starts, _counted(sample, view)[0], "right") - 1, minlength=len(sizes))
        full = np.isin(np.arange(len(sizes)), [*whole, *small])
        return int(np.where(full, sizes, seen).sum()), whole

    def _adopt(self, hot: NDArray[np.int64], view: TierView) -> None:
        self._hot = ByRow(np.bool_)
        self._hot.reserve(view.num_rows)
        self._hot[hot] = True
        self.hot_rows = len(hot)
        per_table = np.diff(np.searchsorted(hot, view.table_starts))
        self._hot_bytes = int(per_table @ view.row_bytes)

    # --- inputs ----------------------------------------------------------------------------------------------

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        epoch = self.epoch_batches or self.block
        first = list(islice(batches, min(self.block, next(self.scheduler.phases(epoch), 1))))
        size = first[0].num_samples if first else 0
        hot, cold = Refill(size), Refill(size)
        first, held = hold_back(first, self.held_back)
        self._unmeasured = self.measure_every
        coming = Coming(chain(first, batches))
        with Spool(self.spool_bytes) as waiting:

            def sorted_out(some: Iterable[Batch]) -> Iterator[Batch]:
                """The cold mini-batches; the hot ones wait."""
                for batch in some:
                    is_hot = count_lookups(batch, ~self._hot[view.rows(batch)]) == 0
                    self.seen_inputs += batch.num_samples
                    self.hot_inputs += int(is_hot.sum())
                    for full in hot.add(batch, is_hot):
                        waiting.add(full)
                    yield from cold.add(batch, ~is_hot)

            while coming.more:
                for number in self.scheduler.phases(epoch):
                    yield from self._phase(False, sorted_out(coming.take(number)), held)
                    if coming.more:
                        yield from self._phase(True, waiting.drain(), held)
                        continue
                    if held is not None:
                        yield from self._phase(False, sorted_out([held]), None)
                    yield from self._phase(False, self._mixed(size, *cold.rest(), *hot.rest()), None)
                    yield from self._phase(True, waiting.drain(), None)
                    break

    def _mixed(self, size: int, *batches: Batch) -> Iterator[Batch]:
        """What fills no batch, so that no more than one batch is smaller than the others, as in the data."""
        mixed = Refill(size)
        for batch in batches:
            yield from mixed.add(batch, np.ones(batch.num_samples, np.bool_))
        yield from mixed.rest()

    def _phase(self, is_hot: bool, batches: Iterator[Batch], held: Batch | None) -> Iterator[Batch]:
        """Mini-batches of one kind; after the last one the loss on `held` is wanted, if the latest is old enough."""
        coming = next(batches, None)
        while coming is not None:
            batch, coming = coming, next(batches, None)
            self.swaps += is_hot != self._last_was_hot
            self._last_was_hot = is_hot
            self._unmeasured += 1
            if coming is None and held is not None and self._unmeasured >= self.measure_every:
                self._unmeasured = 0
                batch = replace(batch, held_back=held)
            yield batch

    def observe(self, number: int, loss: float) -> None:
        self.scheduler.observe(loss)

    # --- state -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {
            "rows": self._hot.rows(),
            "inputs": np.array([self.seen_inputs, self.hot_inputs, self.swaps, self._hot_bytes, self._last_was_hot]),
            "scheduler": np.array(self.scheduler.state()),
            "threshold": np.array([self.threshold]),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, "rows", "inputs", "scheduler", "threshold")
        self._hot = ByRow(np.bool_)
        self._hot[state["rows"]] = True
        self.hot_rows = len(state["rows"])
        self.seen_inputs, self.hot_inputs, self.swaps, self._hot_bytes, last = (int(x) for x in state["inputs"])
        self._last_was_hot = bool(last)
        self.scheduler = ShuffleScheduler.restored(state["scheduler"].tolist())
        self.threshold = float(state["threshold"][0])
