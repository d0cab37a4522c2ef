"""Popular inputs first (Hotline, https://arxiv.org/abs/2204.05436, ISCA 2024).

For a while at the start, 5 % of an epoch, the access learning phase counts lookups. Then the frequent rows stay on the
device, their only home, and a mini-batch is cut into two micro-batches: the popular inputs, which need no other row,
and the rest.
Training begins with the popular ones while rows for the others are on their way (not on a GPU yet, where both
micro-batches run as one).

There is one optimizer step for a mini-batch, from the gradients of both micro-batches. Rows are updated as without
micro-batches: lookup by lookup in the order of the mini-batch. What may round differently is the order of the inputs
(popular first) and, in dense layers, a sum of two sums. The paper's first version re-packs four mini-batches and takes
a step for each micro-batch; whether its second one takes one step or two could not be found out.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, Policy, RowStats, TierView
from adaptive.policies.hotline.learning import LOGGER_BYTES, MIN_SHARE, make_learner
from adaptive.policies.samples import check_range, check_shares, check_state, count_lookups

UNKNOWN = 100  # mini-batches that a share of an epoch of unknown length stands for


class Hotline(Policy):
    """Learnt popular rows stay; of the others the least recently used leaves first.

    A wrong guess of what is popular costs speed, never correctness.

    Args:
        learn: mini-batches in a learning phase, or a share of an epoch's (`5%`), of which the paper takes 5 % to 20 %;
            where the length of an epoch is not known, a share means 100 mini-batches.
        every: of the mini-batches in a learning phase one in `every` is counted.
        logger: `exact` counts the lookups of every row. `srrip` is the paper's logger in bounded memory: 4-way sets of
            16-bit entries, tags of 14 bits and 2-bit SRRIP. It has no counts: popular is what it holds in the end.
        logger_bytes: of a `srrip` logger; the paper has 4 MB, two million rows. It gets no more entries than popular
            rows may take of the device (`capacity`). While it learns again there are two of them.
        min_share: share of the counted lookups from which on a row is popular; the paper has 1 in 100,000. Of `exact`.
        capacity: share of the device rows that popular rows may take. The rest is for the rows of mini-batches
            that are being fetched and trained.
        micro_batches: whether popular and other inputs run through the model apart; if not, popular inputs only stand
            first. Apart, they cost two smaller passes instead of one, and gain what training would wait for rows. On a
            GPU no part can start before all rows have come: there both run in one pass, whatever this says.
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
        logger: Literal["exact", "srrip"] = "exact",
        logger_bytes: int = LOGGER_BYTES,
        min_share: float = MIN_SHARE,
        capacity: float = 0.5,
        micro_batches: bool = True,
        relearn_every: int = 0,
    ) -> None:
        number, self._share = _learning(learn)
        if number < 1 or every < 1:
            raise ValueError(f"learn={learn}, every={every}: expected at least 1 mini-batch")
        check_range(0, 1, min_share=min_share)
        check_shares(capacity=capacity)
        self._check_relearning(relearn_every, number if self._share is None else 1)
        self.learn, self.every = number, every
        self.micro_batches, self.relearn_every = micro_batches, relearn_every
        self.seen_inputs = self.popular_inputs = 0
        self._learner = make_learner(logger, logger_bytes, min_share, capacity)
        self._batches = 0

    @property
    def popular_rows(self) -> int:
        return self._learner.popular_rows

    @staticmethod
    def _check_relearning(relearn_every: int, learn: int) -> None:
        if relearn_every and relearn_every <= learn:
            raise ValueError(f"relearn_every={relearn_every}: expected more than learn={learn} batches, or 0: never")

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return np.where(self._learner.popular(rows.rows), rows.last_access + (1 << 40), rows.last_access)

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
            popular = count_lookups(batch, ~self._learner.popular(rows)) == 0
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
            self._learner.count(rows, view)
        if place == self.learn - 1:
            self._learner.decide(view)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        seen = [self._batches, self.seen_inputs, self.popular_inputs, self.learn if self._batches else 0]
        return {**self._learner.state(), "seen": np.array(seen)}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, *self.state_dict())
        self._learner.load(state)
        self._batches, self.seen_inputs, self.popular_inputs, learn = (int(number) for number in state["seen"])
        if learn:
            self.learn, self._share = learn, None


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
        raise ValueError(f"learn={learn}: expected a number of mini-batches, at least 1, or a share of an epoch's (5%)")
    return UNKNOWN, share
