"""Hot inputs on the device, cold inputs on the host (FAE, https://arxiv.org/abs/2103.00686, PVLDB 15(1), 2022).

A calibrator decides once, on a sample, which rows are hot. An input is hot if all its look-ups are; hot and cold
inputs are put into mini-batches of their own, so that a hot mini-batch needs nothing from the host. Cold ones are
looked up and updated where their rows lie.

**Inputs are reordered**, which changes what is trained: under a popularity curriculum, as in the paper.

What differs from the paper. A row has one home here, not a copy on either side, so nothing is synchronised at a swap;
`two_home_bytes` says what the original would have copied. Data come as a stream, so hot and cold are sorted within
blocks of mini-batches instead of once on disk. The paper's scheduler adapts its rate to the test loss, which a policy
is not told: the rate stays at its start unless whoever evaluates calls `scheduler.observe(test_loss)`. While the
device has free slots, cold rows may use them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from adaptive import Batch, Policy, RowStats, TierView
from policies.inputs import ByRow, Refill, count_lookups
from policies.shuffle import START, ShuffleScheduler

_CHUNKS, _CHUNK_ROWS, _CONFIDENCE = 35, 1024, 0.999  # of the paper
_HALVINGS = 40  # of the interval that holds the threshold's logarithm


class FAE(Policy):
    """The rows that the calibrator found hot, and no others, are worth the device.

    Args:
        select: `threshold`: per table, rows with at least a share t of the table's look-ups are hot; the smallest t
            is taken whose hot rows are estimated to fit the device, as in the paper. `top`: the most frequent rows of
            all tables together, as many as fit, as in the released code.
        sample_rate: share of the calibration inputs that is counted, drawn at random. The paper takes 5 % of the data;
            here the calibration batches are a sample already.
        small_table_bytes: tables of fewer bytes are hot as a whole, smallest first as far as they fit, without being
            counted; `select="threshold"` only.
        rate: per cent of the cold mini-batches of a block that are trained before the next hot ones.
        block: mini-batches read at a time to be sorted into hot and cold ones; they are in memory.
        seed: of the sample and the chunks.

    Attributes:
        hot_rows: number of hot rows.
        threshold: share of its table's look-ups from which on a row is hot, as found.
        scheduler: the rate, and the rule that changes it.
        seen_inputs, hot_inputs: samples classified so far, and those that were hot.
        swaps: changes between hot and cold mini-batches so far.
    """

    misses = "host"

    def __init__(
        self,
        *,
        select: Literal["threshold", "top"] = "threshold",
        sample_rate: float = 1.0,
        small_table_bytes: int = 1_000_000,
        rate: int = START,
        block: int = 64,
        seed: int = 0,
    ) -> None:
        if not 0 < sample_rate <= 1:
            raise ValueError(f"sample_rate={sample_rate}: needed more than 0, at most 1")
        if small_table_bytes < 0 or block < 1 or seed < 0:
            raise ValueError(
                f"small_table_bytes={small_table_bytes}, block={block}, seed={seed}: needed at least 0, 1 and 0"
            )
        self.select, self.sample_rate, self.small_table_bytes = select, sample_rate, small_table_bytes
        self.block, self.seed = block, seed
        self.scheduler = ShuffleScheduler(rate)
        self.threshold = 1.0
        self.hot_rows = self.seen_inputs = self.hot_inputs = self.swaps = 0
        self._hot = ByRow(np.bool_)
        self._hot_bytes = 0
        self._last_was_hot = False  # training starts with cold mini-batches

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
            chosen = self._above_threshold(rows, counts, budget, starts, random)
            rows, counts = rows[chosen], counts[chosen]
        # An estimate may be short of the truth: what does not fit has to be left out, least frequent first.
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

    def _above_threshold(
        self,
        rows: NDArray[np.int64],
        counts: NDArray[np.int64],
        budget: int,
        starts: NDArray[np.int64],
        random: np.random.Generator,
    ) -> NDArray[np.bool_]:
        """Which of the counted rows are hot under the smallest threshold that is estimated to fit `budget` rows."""
        tables = np.searchsorted(starts, rows, "right") - 1
        shares = counts / np.bincount(tables, counts, minlength=len(starts) - 1)[tables]
        chunks = [_chunks(rows, shares, int(first), int(last), random) for first, last in pairwise(starts)]
        sizes = np.diff(starts)

        def fits(threshold: float) -> bool:
            return sum(map(_estimate, chunks, sizes, [threshold] * len(sizes))) <= budget

        least = float(shares.min(initial=1.0))  # a row that was never seen is not hot, whatever the budget
        self.threshold = least if fits(least) else _smallest(fits, least)
        return shares >= self.threshold

    def _adopt(self, hot: NDArray[np.int64], view: TierView) -> None:
        self._hot = ByRow(np.bool_)
        self._hot.reserve(view.num_rows)
        self._hot[hot] = True
        self.hot_rows = len(hot)
        per_table = np.diff(np.searchsorted(hot, view.table_starts))
        self._hot_bytes = int(per_table @ view.row_bytes)

    # --- inputs ----------------------------------------------------------------------------------------------

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        hot, cold = Refill(), Refill()
        while read := list(islice(batches, self.block)):
            queues: dict[bool, list[Batch]] = {True: [], False: []}
            for batch in read:
                is_hot = count_lookups(batch, ~self._hot[view.rows(batch)]) == 0
                self.seen_inputs += batch.num_samples
                self.hot_inputs += int(is_hot.sum())
                queues[True] += hot.add(batch, is_hot)
                queues[False] += cold.add(batch, ~is_hot)
            for is_hot_now, number in self.scheduler.phases(len(queues[False]), len(queues[True])):
                yield from self._phase(is_hot_now, queues[is_hot_now][:number])
                del queues[is_hot_now][:number]
        mixed = Refill(cold.size)  # so that no more than one batch is smaller than the others, as in the data
        for batch in (*cold.rest(), *hot.rest()):
            yield from self._phase(False, mixed.add(batch, np.ones(batch.num_samples, np.bool_)))
        yield from self._phase(False, mixed.rest())

    def _phase(self, is_hot: bool, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self.swaps += is_hot != self._last_was_hot
            self._last_was_hot = is_hot
            yield batch

    # --- state -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, NDArray[Any]]:
        inputs = [self.seen_inputs, self.hot_inputs, self.swaps, self._hot_bytes, self.scheduler.rate]
        return {"rows": self._hot.rows(), "inputs": np.array(inputs), "threshold": np.array([self.threshold])}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        if sorted(state) != ["inputs", "rows", "threshold"]:
            raise ValueError(f"FAE: needed inputs, rows and threshold, found {sorted(state)}")
        self._hot = ByRow(np.bool_)
        self._hot[state["rows"]] = True
        self.hot_rows = len(state["rows"])
        self.seen_inputs, self.hot_inputs, self.swaps, self._hot_bytes, rate = (int(x) for x in state["inputs"])
        self.scheduler = ShuffleScheduler(rate)
        self.threshold = float(state["threshold"][0])


def _smallest(fits: Callable[[float], bool], least: float) -> float:
    """The smallest threshold that fits, above one that does not; by halving on a logarithmic scale."""
    low, high = np.log(least), np.log(2.0)  # no row has twice the look-ups of its table, and nothing always fits
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(float(np.exp(middle))) else (middle, high)
    return float(np.exp(high))


def _chunks(
    rows: NDArray[np.int64], shares: NDArray[np.float64], first: int, last: int, random: np.random.Generator
) -> NDArray[np.float64]:
    """Shares (35, 1024) of random rows of the table of rows first ... last - 1, 0 = never counted.

    Of a table that is hardly larger than the chunks together: of all counted rows, (1, n).

    Args:
        rows, shares: the counted rows of all tables, in order, and their shares of their tables' look-ups.
    """
    counted = slice(*np.searchsorted(rows, [first, last]))
    if last - first <= 2 * _CHUNKS * _CHUNK_ROWS:
        return shares[None, counted]
    drawn = random.choice(last - first, _CHUNKS * _CHUNK_ROWS, replace=False) + first
    places = np.minimum(np.searchsorted(rows[counted], drawn), max(counted.stop - counted.start - 1, 0))
    if counted.start == counted.stop:
        return np.zeros((_CHUNKS, _CHUNK_ROWS))
    found = np.where(rows[counted][places] == drawn, shares[counted][places], 0.0)
    return found.reshape(_CHUNKS, _CHUNK_ROWS)


def _estimate(chunks: NDArray[np.float64], size: int, threshold: float) -> float:
    """Rows of a table of `size` rows above the threshold: exact, or from chunks.

    From chunks it is the upper end of the 99.9 % confidence interval of the mean by Student's t, with the correction
    for a finite number of chunks. The paper takes the mean; this way the hot rows most likely fit.
    """
    found = (chunks >= threshold).sum(axis=1)
    if len(found) == 1:
        return float(found[0])
    num_chunks = size / _CHUNK_ROWS
    spread = np.sqrt((num_chunks - len(found)) / num_chunks * found.var(ddof=1) / len(found))
    margin = stats.t.ppf((1 + _CONFIDENCE) / 2, len(found) - 1) * spread
    return float(num_chunks * (found.mean() + margin))
