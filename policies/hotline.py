"""Popular inputs first (Hotline, https://arxiv.org/abs/2204.05436, ISCA 2024).

For a while at the start, 5 % of an epoch, the access learning phase counts look-ups. Then the frequent rows stay on the
device, their only home, and a mini-batch is cut into two micro-batches: the popular inputs, which need no other row,
and the rest.
Training begins with the popular ones while rows for the others are on their way.

There is one optimizer step for a mini-batch, from the gradients of both micro-batches. Rows are updated as without
micro-batches: look-up by look-up in the order of the mini-batch. What may round differently is the order of the inputs
(popular first) and, in dense layers, a sum of two sums. The paper's first version re-packs four mini-batches and takes
a step for each micro-batch; whether its second one takes one step or two could not be found out.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, Policy, RowStats, TierView
from policies.samples import ByRow, count_lookups

UNKNOWN = 100  # mini-batches that a share of an epoch of unknown length stands for


class Hotline(Policy):
    """Learnt popular rows stay; of the others the least recently used leaves first.

    A wrong guess of what is popular costs speed, never correctness.

    Args:
        learn: mini-batches in a learning phase, or a share of an epoch's (`5%`), of which the paper takes 5 % to 20 %;
            where the length of an epoch is not known, a share means 100 mini-batches.
        every: of the mini-batches in a learning phase one in `every` is counted.
        min_share: share of the counted look-ups from which on a row is popular; the paper has 1 in 100,000.
        capacity: share of the device rows that popular rows may take. The rest is for the rows of mini-batches
            that are being fetched and trained.
        micro_batches: whether popular and other inputs run through the model apart; if not, popular inputs only stand
            first. Apart, they cost two smaller passes instead of one, and gain what training would wait for rows.
        relearn_every: mini-batches after which learning starts again, for popularity that drifts; 0: never. What was
            learnt before holds until the phase ends.

    Attributes:
        learn: mini-batches in a learning phase; of a share it is known once training starts.
        popular_rows: number of popular rows.
        seen_inputs, popular_inputs: samples that came after the first learning phase, and those that were popular.
    """

    reported = ("popular_rows", "seen_inputs", "popular_inputs")

    def __init__(
        self,
        *,
        learn: int | str = "5%",
        every: int = 1,
        min_share: float = 1e-5,
        capacity: float = 0.5,
        micro_batches: bool = True,
        relearn_every: int = 0,
    ) -> None:
        number, self._share = _learning(learn)
        if number < 1 or every < 1:
            raise ValueError(f"learn={learn}, every={every}: needed at least 1 mini-batch")
        if not (0 <= min_share <= 1 and 0 < capacity <= 1):
            raise ValueError(f"min_share={min_share}, capacity={capacity}: needed shares from 0 to 1, capacity above 0")
        self._check_relearning(relearn_every, number if self._share is None else 1)
        self.learn, self.every, self.min_share = number, every, min_share
        self.capacity, self.micro_batches, self.relearn_every = capacity, micro_batches, relearn_every
        self.popular_rows = self.seen_inputs = self.popular_inputs = 0
        self._popular = ByRow(np.bool_)
        self._counts = ByRow(np.uint32)  # of the learning phase
        self._batches = 0

    @staticmethod
    def _check_relearning(relearn_every: int, learn: int) -> None:
        if relearn_every and relearn_every <= learn:
            raise ValueError(f"relearn_every={relearn_every}: needed more than learn={learn} mini-batches, or 0: never")

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return np.where(self._popular[rows.rows], rows.last_access + (1 << 40), rows.last_access)

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        if self._share is not None:  # said once for a run, however long it becomes when it goes on
            self.learn = max(1, math.ceil(self._share * self.epoch_batches)) if self.epoch_batches else UNKNOWN
            self._share = None
            self._check_relearning(self.relearn_every, self.learn)
        for batch in batches:
            rows = view.rows(batch)
            self._learn(rows, view)
            if not self.popular_rows:
                yield batch
                continue
            popular = count_lookups(batch, ~self._popular[rows]) == 0
            self.seen_inputs += batch.num_samples
            count = int(popular.sum())
            self.popular_inputs += count
            ordered = batch.take(np.argsort(~popular, kind="stable"))
            apart = self.micro_batches and 0 < count < batch.num_samples
            yield replace(ordered, part_sizes=(count, batch.num_samples - count)) if apart else ordered

    def _learn(self, rows: NDArray[np.int64], view: TierView) -> None:
        """Count a mini-batch, if it belongs to a learning phase; with the phase's last one, decide."""
        place = self._batches % self.relearn_every if self.relearn_every else self._batches
        self._batches += 1
        if place < self.learn and place % self.every == 0:
            distinct, counts = np.unique(rows, return_counts=True)
            self._counts.reserve(view.num_rows)
            self._counts[distinct] = self._counts[distinct] + counts.astype(np.uint32)
        if place == self.learn - 1:
            self._decide(int(self.capacity * view.device_rows))

    def _decide(self, capacity: int) -> None:
        rows = self._counts.rows()
        counts = self._counts[rows].astype(np.int64)
        frequent = np.flatnonzero(counts >= self.min_share * counts.sum())
        most = frequent[np.argsort(-counts[frequent], kind="stable")[:capacity]]
        self._adopt(np.sort(rows[most]))
        self._counts = ByRow(np.uint32)

    def _adopt(self, popular: NDArray[np.int64]) -> None:
        self._popular = ByRow(np.bool_)
        self._popular[popular] = True
        self.popular_rows = len(popular)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        counted = self._counts.rows()
        return {
            "popular": self._popular.rows(),
            "counted": counted,
            "counts": self._counts[counted],
            "seen": np.array(
                [self._batches, self.seen_inputs, self.popular_inputs, self.learn if self._batches else 0]
            ),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        if sorted(state) != ["counted", "counts", "popular", "seen"]:
            raise ValueError(f"Hotline: needed popular, counted, counts and seen, found {sorted(state)}")
        self._adopt(state["popular"])
        self._counts = ByRow(np.uint32)
        self._counts[state["counted"]] = state["counts"]
        self._batches, self.seen_inputs, self.popular_inputs, *learn = (int(number) for number in state["seen"])
        if not learn and self._share:  # of an old run, in which 100 was the default
            learn = [UNKNOWN]
        if any(learn):
            (self.learn,), self._share = learn, None


def _learning(learn: int | str) -> tuple[int, float | None]:
    """Mini-batches, and the share of an epoch's if it is one."""
    text = str(learn).strip()
    if text.isdecimal():
        return int(text), None
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not (text.endswith("%") and 0 < share <= 1):
        raise ValueError(f"learn={learn}: needed a number of mini-batches, at least 1, or a share of an epoch's (5%)")
    return UNKNOWN, share
