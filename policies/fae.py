"""Train hot and cold inputs separately (FAE, https://arxiv.org/abs/2103.00686).

A calibrator decides once, on a sample, which rows are hot. An input is hot if all its lookups are. Hot and cold inputs
train in separate mini-batches, so that a hot mini-batch needs nothing from the host. Rows of cold inputs are looked up
and updated on the host.

**Inputs are reordered**, which changes what is trained: a popularity curriculum, as in the paper (PVLDB 15(1), 2022).

Differences from the paper:

- A row is stored once, not on both sides, so a swap synchronizes nothing. `two_home_bytes` reports the bytes that the
  original would have copied.
- The paper sorts the data once, on disk; here they are sorted as they stream in. At R(r), r percent of an epoch's
  mini-batches are read. Their cold inputs train immediately; the hot ones wait, up to `spool_bytes` in memory and then
  in a temporary file, and train next. At R(50) this makes four phases per epoch, as in the paper, if hot inputs are
  spread evenly over the data.
- A run with `save_every` trains the waiting inputs before each save, and starts a new phase after it.
- If the length of an epoch is unknown, phases are percentages of `block` mini-batches, which makes many more swaps.
  Calibration on a share of the data (`calibrate = "5%"`) reads all of it and makes the length known.
- The paper adapts the rate to the test loss at each swap. Here some of the first inputs are held back: the loss on them
  is measured after the last mini-batch of a phase, and they train in the last two phases. The loss arrives 8
  mini-batches later, or as many as are looked ahead. In the second epoch these inputs are no longer new.
- The paper estimates from random chunks of rows how many are hot; here the counted rows are at hand.
- Cold rows may use free slots of the device.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, ByRow, Calibrates, InputPolicy, Refill, RowStats, TierView, concatenate
from adaptive.policies.samples import (
    PeekableBatches,
    Spool,
    check_range,
    check_state,
    count_lookups,
    count_rows,
)

START, LEAST, MOST = 50, 1, 100  # percent of an epoch's cold mini-batches
PATIENCE = 4  # swaps in a row with a lower test loss


class ShuffleScheduler:
    """The number of cold mini-batches between two swaps to hot ones.

    Many swaps mix hot and cold inputs well, and each costs a copy of the hot rows; few swaps cost little and may hurt
    the model. R(r) trains r percent of an epoch's cold mini-batches, then r percent of its hot ones.

    The clamps are those of the paper's text; its equation has them the wrong way round.
    """

    def __init__(self, rate: int = START) -> None:
        check_range(LEAST, MOST, rate=rate)
        self.rate = rate
        self._latest: float | None = None
        self._falls = 0

    def observe(self, test_loss: float) -> int:
        """Halve the rate if the loss rose; double it if it fell 4 times in a row; return it."""
        previous, self._latest = self._latest, test_loss
        if previous is None or test_loss == previous:
            self._falls = 0
        elif test_loss > previous:
            self._falls = 0
            self.rate = max(self.rate // 2, LEAST)
        else:
            self._falls += 1
            if self._falls == PATIENCE:
                self._falls = 0
                self.rate = min(self.rate * 2, MOST)
        return self.rate

    def phases(self, epoch: int) -> Iterator[int]:
        """Yield the mini-batches to read for each phase, until all `epoch` ones are read.

        The rate may change meanwhile.
        """
        share = done = 0
        while share < 100:
            share = min(share + self.rate, 100)
            until = -(-epoch * share // 100)
            if until > done:
                number, done = until - done, until
                yield number

    def state(self) -> list[float]:
        """Numbers for `restored`."""
        return [self.rate, self._falls, np.nan if self._latest is None else self._latest]

    @classmethod
    def restored(cls, state: Sequence[float]) -> "ShuffleScheduler":
        """Create a scheduler from the state of another one."""
        rate, falls, latest = state
        scheduler = cls(int(rate))
        scheduler._falls, scheduler._latest = int(falls), None if np.isnan(latest) else float(latest)
        return scheduler


def hold_back(batches: Sequence[Batch], one_in: int) -> tuple[list[Batch], Batch | None]:
    """Split batches into the rest and a batch of one in `one_in` samples (0: none)."""
    if not one_in:
        return list(batches), None
    rest, held = list[Batch](), list[Batch]()
    num_seen = 0
    for batch in batches:
        chosen = (num_seen + np.arange(batch.num_samples)) % one_in == one_in - 1
        num_seen += batch.num_samples
        for samples, pile in ((np.flatnonzero(chosen), held), (np.flatnonzero(~chosen), rest)):
            if len(samples):
                pile.append(batch.take(samples))
    return rest, concatenate(held) if held else None


def find_threshold(
    rows: NDArray[np.int64], counts: NDArray[np.int64], budget: int, starts: NDArray[np.int64]
) -> tuple[float, NDArray[np.bool_]]:
    """Return the smallest threshold whose hot rows fit, and (n,) True for the rows that are hot.

    Args:
        rows, counts: (n,) the counted rows of all tables, ascending, and their lookups.
        budget: number of rows that fit.
        starts: (tables + 1,) first row of each table, and the number of rows.
    """
    tables = np.searchsorted(starts, rows, "right") - 1
    shares = counts / np.bincount(tables, counts, minlength=len(starts) - 1)[tables]
    levels, sizes = np.unique(shares, return_counts=True)
    fitting = levels[::-1][np.cumsum(sizes[::-1]) <= budget]  # from the largest share down
    threshold = float(fitting[-1]) if len(fitting) else np.inf
    return threshold, shares >= threshold


class FAE(Calibrates, InputPolicy):
    """Only the rows that the calibrator selects as hot are worth the device.

    Args:
        select: `threshold`: rows with at least a share t of their table's lookups are hot, with the smallest t whose
            hot rows fit the device, as in the paper; the rest of the room goes to the most frequent
            other rows. `top`: the most frequent rows of all tables together, as many as fit, as in the released code.
        small_table_bytes: smaller tables are hot as a whole, smallest first, as far as they fit; for
            `select="threshold"` only.
        rate: percent of the epoch's cold mini-batches to train before the next hot ones.
        block: mini-batches from which inputs are held back: the first of an epoch, or of its first phase if that has
            fewer. If the length of an epoch is unknown, the rate is a percentage of this number.
        held_back: hold back one of this many inputs for the test loss; 0: none, and the rate is constant.
        measure_every: fewest mini-batches between two test losses; each costs a forward pass over the held-back inputs.
        spool_bytes: memory for waiting hot mini-batches; more of them wait in a temporary file.

    Attributes:
        hot_rows: number of hot rows.
        threshold: the share t that was chosen.
        scheduler: the rate, and the rule that changes it.
        seen_inputs, hot_inputs: samples classified so far, and the hot ones among them.
        swaps: changes between hot and cold mini-batches so far.
    """

    misses = "host"
    reported = ("hot_rows", "seen_inputs", "hot_inputs", "rate", "swaps", "two_home_bytes")

    def __init__(
        self,
        *,
        select: Literal["threshold", "top"] = "threshold",
        small_table_bytes: int = 1_000_000,
        rate: int = START,
        block: int = 64,
        held_back: int = 32,
        measure_every: int = 64,
        spool_bytes: int = 1 << 26,
    ) -> None:
        check_range(0, small_table_bytes=small_table_bytes)
        check_range(1, block=block, measure_every=measure_every, spool_bytes=spool_bytes)
        if held_back < 0 or held_back == 1:
            raise ValueError(f"held_back={held_back}: expected one input in 2 or more, or 0: none")
        self.select, self.small_table_bytes = select, small_table_bytes
        self.block, self.held_back = block, held_back
        self.measure_every, self.spool_bytes = measure_every, spool_bytes
        self.scheduler = ShuffleScheduler(rate)
        self.threshold = 1.0
        self.hot_rows = self.seen_inputs = self.hot_inputs = self.swaps = 0
        self._hot = ByRow(np.bool_)
        self._hot_bytes = 0
        self._last_was_hot = False  # training starts with cold mini-batches
        self._unmeasured = 0  # mini-batches since the latest loss was requested

    @property
    def rate(self) -> int:
        """Percent of the cold mini-batches to train before the next hot ones."""
        return self.scheduler.rate

    @property
    def two_home_bytes(self) -> int:
        """Bytes of weights that copying the hot rows at every swap would have moved."""
        return self.swaps * self._hot_bytes

    def score(self, rows: RowStats) -> NDArray[np.int8]:
        return self._hot[rows.rows].astype(np.int8)

    # --- calibrator ------------------------------------------------------------------------------------------

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        if not sample:
            return
        rows, counts = count_rows(sample, view)
        small, budget = np.zeros(0, np.int64), view.device_rows
        if self.select == "threshold":
            starts = view.table_starts
            tables = self._small_tables(view, budget)
            small = np.concatenate([small, *(np.arange(starts[table], starts[table + 1]) for table in tables)])
            others = ~np.isin(np.searchsorted(starts, rows, "right") - 1, tables)
            rows, counts, budget = rows[others], counts[others], budget - len(small)
            self.threshold, chosen = find_threshold(rows, counts, budget, starts)
            counts = counts + chosen * counts.max(initial=0)  # they come first
        # A threshold may leave room: of many rows that are equally frequent, it takes all or none.
        most = np.argsort(-counts, kind="stable")[:budget]
        self._adopt(np.union1d(small, rows[most]), view)

    def _small_tables(self, view: TierView, left: int) -> list[int]:
        """Tables that are hot as a whole, with at most `left` rows in total."""
        sizes = np.diff(view.table_starts)
        chosen = []
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
        epoch = self.epoch_batches or self.block
        first = list(islice(batches, min(self.block, next(self.scheduler.phases(epoch), 1))))
        size = first[0].num_samples if first else 0
        hot, cold = Refill(size), Refill(size)
        first, held = hold_back(first, self.held_back)
        self._unmeasured = self.measure_every
        source = PeekableBatches(chain(first, batches))
        with Spool(self.spool_bytes) as waiting:

            def cold_ones(batches: Iterable[Batch]) -> Iterator[Batch]:
                """Yield the cold mini-batches and queue the hot ones."""
                for batch in batches:
                    is_hot = count_lookups(batch, ~self._hot[view.rows(batch)]) == 0
                    self.seen_inputs += batch.num_samples
                    self.hot_inputs += int(is_hot.sum())
                    for full in hot.add(batch, is_hot):
                        waiting.add(full)
                    yield from cold.add(batch, ~is_hot)

            while source.more:
                for number in self.scheduler.phases(epoch):
                    yield from self._phase(False, cold_ones(source.take(number)), held)
                    if source.more:
                        yield from self._phase(True, waiting.drain(), held)
                        continue
                    if held is not None:
                        yield from self._phase(False, cold_ones([held]), None)
                    yield from self._phase(False, self._mixed(size, *cold.rest(), *hot.rest()), None)
                    yield from self._phase(True, waiting.drain(), None)
                    break

    def _mixed(self, size: int, *batches: Batch) -> Iterator[Batch]:
        """Join incomplete batches, so that only the last one is smaller than the others."""
        mixed = Refill(size)
        for batch in batches:
            yield from mixed.add(batch, np.ones(batch.num_samples, np.bool_))
        yield from mixed.rest()

    def _phase(self, is_hot: bool, batches: Iterator[Batch], held: Batch | None) -> Iterator[Batch]:
        """Yield mini-batches of one kind; request the loss on `held` after the last, if due."""
        following = next(batches, None)
        while following is not None:
            batch, following = following, next(batches, None)
            self.swaps += is_hot != self._last_was_hot
            self._last_was_hot = is_hot
            self._unmeasured += 1
            if following is None and held is not None and self._unmeasured >= self.measure_every:
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
