"""Drop inputs whose rows have all stopped moving: Slipstream's Input Classifier.

https://arxiv.org/abs/2404.04270, according to its abstract and summaries; the paper's body could not be read. The only
rule that saves dense work. What it costs depends on the data (docs/explanation/skipping.md), so `adaptive-train
compare` adds a run that drops as many inputs at random.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, RowStats, SkipRule, TierView
from adaptive.policies.samples import (
    ByRow,
    KeptInputs,
    check_range,
    check_state,
    count_lookups,
    greatest,
    movement,
    probed,
)

SAMPLE = 4096  # latest inputs from which the threshold is computed
MOST_DROPPED = 0.9  # of a batch: if all inputs were dropped, no row would move and no answer would change


class Inputs(SkipRule):
    """Drop inputs whose rows are all watched and saturated; the others train in full batches.

    One cold id protects an input.

    Args:
        target_drop: largest share to drop of the inputs that could be dropped. The threshold for it is computed from
            the latest 4096 inputs after every call of `visits` (Sampling Block). At most 90% of a batch is dropped.
        threshold: movement per visit up to which a row rests, instead of a target.
        probe_every: train one in `probe_every` of the inputs to drop, chosen by a hash of its number, so that rows
            which appear in no other inputs are measured again; 0: none.
        warmup: batches before anything is dropped.

    Attributes:
        seen_inputs, hot_inputs, dropped_inputs: samples read, those that could be dropped, and those that were.
        saturated_rows: watched rows whose movement is at most the threshold, as of the latest call of `visits`.
        found_threshold: the threshold in use.
    """

    drops_inputs = True
    at_most = 1
    reported = ("found_threshold", "saturated_rows", "seen_inputs", "hot_inputs", "dropped_inputs")

    def __init__(
        self,
        *,
        target_drop: float = 0.2,
        threshold: float | None = None,
        probe_every: int = 8,
        warmup: int = 100,
    ) -> None:
        check_range(0, 1, target_drop=target_drop)
        check_range(0, threshold=threshold, probe_every=probe_every, warmup=warmup)
        self.target_drop, self.threshold = target_drop, threshold
        self.probe_every, self.warmup = probe_every, warmup
        self.found_threshold = -1.0 if threshold is None else threshold  # -1: no row rests
        self.seen_inputs = self.hot_inputs = self.dropped_inputs = self.saturated_rows = 0
        self._moved = ByRow(np.float32)  # 0: not watched; else 1 + movement, infinite if unknown
        self._is_outdated = False  # the threshold, since the latest call of `visits`
        self._recent: deque[NDArray[np.float32]] = deque()  # largest movements of the latest inputs, by batch
        self._step = 0

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        """Update at every visit, and store the movement for `arrange`."""
        moved = movement(rows).astype(np.float32)
        self._moved[rows.rows] = np.where(np.isnan(moved), np.float32(np.inf), 1 + moved)
        self._is_outdated, self._step = True, rows.step
        return np.ones(len(rows), np.int64)

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        refill = KeptInputs(self)
        self._recent.clear()  # a resumed run has seen no inputs either
        self._moved.reserve(view.num_rows)
        for batch in batches:
            most = self._most(batch, view.rows(batch))
            self._find_threshold(most)
            dropped = most <= self.found_threshold if self._step >= self.warmup else np.zeros(len(most), np.bool_)
            numbers = self.seen_inputs + np.arange(batch.num_samples)
            dropped &= ~probed(numbers, 0, self.probe_every)
            dropped[np.flatnonzero(dropped)[int(MOST_DROPPED * batch.num_samples) :]] = False
            self.hot_inputs += int((most < np.inf).sum())
            yield from refill.add(batch, ~dropped)
        yield from refill.rest()

    def _most(self, batch: Batch, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(B,) largest movement among the rows of each input; infinite if it cannot be dropped."""
        moved = self._moved[rows]
        watched, lookups = (count_lookups(batch, chosen) for chosen in (moved > 0, np.ones(len(moved), np.bool_)))
        most = greatest(batch, moved) - 1
        return np.where((watched == lookups) & (watched > 0), most, np.float32(np.inf))

    def _find_threshold(self, most: NDArray[np.float32]) -> None:
        """Choose the largest threshold that drops at most `target_drop` of recent inputs, or -1."""
        if self.threshold is not None:
            self._count_saturated()
            return
        self._recent.append(most)
        while sum(map(len, self._recent)) - len(self._recent[0]) >= SAMPLE:
            self._recent.popleft()
        if self._is_outdated:
            moves = np.concatenate(self._recent)
            values, counts = np.unique(moves[moves < np.inf], return_counts=True)
            allowed = values[np.cumsum(counts) <= self.target_drop * counts.sum()]
            self.found_threshold = float(allowed[-1]) if len(allowed) else -1.0
            self._count_saturated()

    def _count_saturated(self) -> None:
        if self._is_outdated:
            self._is_outdated = False
            self.saturated_rows = int((self._moved[self._moved.rows()] - 1 <= self.found_threshold).sum())

    def expired(self, number: int, rows: NDArray[np.int64]) -> None:
        self._moved.forget(rows)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        watched = self._moved.rows()
        return {
            "watched": watched,
            "moved": self._moved[watched],
            "inputs": np.array([self.seen_inputs, self.hot_inputs, self.dropped_inputs, self._step, self._is_outdated]),
            "saturated": np.array([self.saturated_rows]),
            "threshold": np.array([self.found_threshold]),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, *self.state_dict())
        self._moved.restore(state["watched"], state["moved"])
        self.seen_inputs, self.hot_inputs, self.dropped_inputs, self._step, outdated = map(int, state["inputs"])
        self._is_outdated, self.found_threshold = bool(outdated), float(state["threshold"][0])
        self.saturated_rows = int(state["saturated"][0])
