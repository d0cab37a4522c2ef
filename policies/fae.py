"""Hot inputs on the device, cold inputs on the host (FAE, https://arxiv.org/abs/2103.00686, PVLDB 15(1), 2022).

A calibrator decides once, on a sample, which rows are hot. An input is hot if all its look-ups are; hot and cold
inputs are put into mini-batches of their own, so that a hot mini-batch needs nothing from the host. Cold ones are
looked up and updated where their rows lie.

**Inputs are reordered**, which changes what is trained: under a popularity curriculum, as in the paper.

What differs from the paper. A row has one home here, not a copy on either side, so nothing is synchronised at a swap;
`two_home_bytes` says what the original would have copied. Data come as a stream, so hot and cold are sorted within
blocks of mini-batches instead of once on disk. The paper's scheduler adapts its rate to the test loss at each swap;
here some inputs of the first block are held back for that: after the last mini-batch of a phase the loss on them is
measured, and they are trained when all others have been. The rate learns of it 8 mini-batches later, or as many as are
looked ahead. In the second epoch these inputs are not new any more. While the device has free slots, cold rows may use
them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, Policy, RowStats, TierView
from policies.fae_shuffle import START, ShuffleScheduler, hold_back
from policies.fae_threshold import find_threshold
from policies.inputs import ByRow, Refill, count_lookups


class FAE(Policy):
    """The rows that the calibrator found hot, and no others, are worth the device.

    Args:
        select: `threshold`: per table, rows with at least a share t of the table's look-ups are hot; the smallest t
            is taken whose hot rows are estimated to fit the device, as in the paper; room that is left goes to the most
            frequent of the other rows. `top`: the most frequent rows of
            all tables together, as many as fit, as in the released code.
        sample_rate: share of the calibration inputs that is counted, drawn at random. The paper takes 5 % of the data;
            a run's calibration inputs (`calibrate`) are such a sample already.
        small_table_bytes: tables of fewer bytes are hot as a whole, smallest first as far as they fit, without being
            counted; `select="threshold"` only.
        rate: per cent of the cold mini-batches of a block that are trained before the next hot ones.
        block: mini-batches read at a time to be sorted into hot and cold ones; they are in memory.
        held_back: of the inputs of the first block one in so many is held back for the test loss, which costs a forward
            pass over them after each phase; 0: none, and the rate stays.
        seed: of the sample and the chunks.

    Attributes:
        hot_rows: number of hot rows.
        threshold: share of its table's look-ups from which on a row is hot, as found.
        scheduler: the rate, and the rule that changes it.
        seen_inputs, hot_inputs: samples classified so far, and those that were hot.
        swaps: changes between hot and cold mini-batches so far.
    """

    misses = "host"
    reported = ("hot_rows", "seen_inputs", "hot_inputs", "rate", "swaps", "two_home_bytes")

    def __init__(
        self,
        *,
        select: Literal["threshold", "top"] = "threshold",
        sample_rate: float = 1.0,
        small_table_bytes: int = 1_000_000,
        rate: int = START,
        block: int = 64,
        held_back: int = 32,
        seed: int = 0,
    ) -> None:
        if not 0 < sample_rate <= 1:
            raise ValueError(f"sample_rate={sample_rate}: needed more than 0, at most 1")
        if small_table_bytes < 0 or block < 1 or seed < 0:
            raise ValueError(
                f"small_table_bytes={small_table_bytes}, block={block}, seed={seed}: needed at least 0, 1 and 0"
            )
        self.select, self.sample_rate, self.small_table_bytes = select, sample_rate, small_table_bytes
        if held_back < 0 or held_back == 1:
            raise ValueError(f"held_back={held_back}: needed one input in 2 or more, or 0: none")
        self.block, self.held_back, self.seed = block, held_back, seed
        self.scheduler = ShuffleScheduler(rate)
        self.threshold = 1.0
        self.hot_rows = self.seen_inputs = self.hot_inputs = self.swaps = 0
        self._hot = ByRow(np.bool_)
        self._hot_bytes = 0
        self._last_was_hot = False  # training starts with cold mini-batches

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
        lookups = np.concatenate([view.rows(self._sampled(batch, random)) for batch in sample])
        rows, counts = np.unique(lookups, return_counts=True)
        small = np.zeros(0, np.int64)
        budget = view.device_rows
        if self.select == "threshold":
            starts = view.table_starts
            tables = self._small_tables(view)
            small = np.concatenate([small, *(np.arange(starts[table], starts[table + 1]) for table in tables)])
            others = ~np.isin(np.searchsorted(starts, rows, "right") - 1, tables)
            rows, counts, budget = rows[others], counts[others], budget - len(small)
            self.threshold, chosen = find_threshold(rows, counts, budget, starts, random)
            counts = counts + chosen * counts.max(initial=0)  # they come first
        # An estimate may be short of the truth: what does not fit has to be left out, least frequent first. It may also
        # leave room: in a small sample many rows are equally frequent, and a threshold takes all of them or none.
        most = np.argsort(-counts, kind="stable")[:budget]
        self._adopt(np.union1d(small, rows[most]), view)

    def _sampled(self, batch: Batch, random: np.random.Generator) -> Batch:
        if self.sample_rate == 1:
            return batch
        return batch.take(np.flatnonzero(random.random(batch.num_samples) < self.sample_rate))

    def _small_tables(self, view: TierView) -> list[int]:
        sizes = np.diff(view.table_starts)
        chosen, left = [], view.device_rows
        for table in np.argsort(sizes, kind="stable"):
            if sizes[table] * view.row_bytes[table] < self.small_table_bytes and sizes[table] <= left:
                chosen.append(int(table))
                left -= int(sizes[table])
        return chosen

    def _adopt(self, hot: NDArray[np.int64], view: TierView) -> None:
        self._hot = ByRow(np.bool_)
        self._hot.reserve(view.num_rows)
        self._hot[hot] = True
        self.hot_rows = len(hot)
        per_table = np.diff(np.searchsorted(hot, view.table_starts))
        self._hot_bytes = int(per_table @ view.row_bytes)

    # --- inputs ----------------------------------------------------------------------------------------------

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        first = list(islice(batches, self.block))
        size = first[0].num_samples if first else 0
        hot, cold = Refill(size), Refill(size)
        first, held = hold_back(first, self.held_back)
        blocks = chain([first], iter(lambda: list(islice(batches, self.block)), []))
        for block in blocks:
            yield from self._block(block, hot, cold, view, held)
        if held is not None:
            yield from self._block([held], hot, cold, view, None)
        mixed = Refill(size)  # so that no more than one batch is smaller than the others, as in the data
        for batch in (*cold.rest(), *hot.rest()):
            yield from self._phase(False, list(mixed.add(batch, np.ones(batch.num_samples, np.bool_))), None)
        yield from self._phase(False, list(mixed.rest()), None)

    def _block(
        self, batches: Sequence[Batch], hot: Refill, cold: Refill, view: TierView, held: Batch | None
    ) -> Iterator[Batch]:
        queues: dict[bool, list[Batch]] = {True: [], False: []}
        for batch in batches:
            is_hot = count_lookups(batch, ~self._hot[view.rows(batch)]) == 0
            self.seen_inputs += batch.num_samples
            self.hot_inputs += int(is_hot.sum())
            queues[True] += hot.add(batch, is_hot)
            queues[False] += cold.add(batch, ~is_hot)
        for is_hot_now, number in self.scheduler.phases(len(queues[False]), len(queues[True])):
            yield from self._phase(is_hot_now, queues[is_hot_now][:number], held)
            del queues[is_hot_now][:number]

    def _phase(self, is_hot: bool, batches: Sequence[Batch], held: Batch | None) -> Iterator[Batch]:
        """Mini-batches of one kind; after the last one the loss on `held` is wanted."""
        for place, batch in enumerate(batches, 1):
            self.swaps += is_hot != self._last_was_hot
            self._last_was_hot = is_hot
            yield replace(batch, held_back=held) if place == len(batches) else batch

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
        if sorted(state) != ["inputs", "rows", "scheduler", "threshold"]:
            raise ValueError(f"FAE: needed inputs, rows, scheduler and threshold, found {sorted(state)}")
        self._hot = ByRow(np.bool_)
        self._hot[state["rows"]] = True
        self.hot_rows = len(state["rows"])
        self.seen_inputs, self.hot_inputs, self.swaps, self._hot_bytes, last = (int(x) for x in state["inputs"])
        self._last_was_hot = bool(last)
        self.scheduler = ShuffleScheduler.restored(state["scheduler"].tolist())
        self.threshold = float(state["threshold"][0])
