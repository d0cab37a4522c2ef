"""Popular inputs first (Hotline, https://arxiv.org/abs/2204.05436, ISCA 2024).

In the access learning phase, the first 5% of an epoch, lookups are counted. Afterwards the frequent rows stay on the
device, and each mini-batch is cut into two micro-batches: the popular inputs, which need no other rows, and the rest.
Training starts with the popular ones while rows for the others are in flight (not on a GPU yet, where both
micro-batches run as one).

There is one optimizer step per mini-batch, from the gradients of both micro-batches. Rows are updated as without
micro-batches, lookup by lookup in the order of the mini-batch. Rounding may differ through the order of the inputs
(popular first) and, in dense layers, through a sum of two sums. The paper's first version repacks four mini-batches and
takes a step per micro-batch; its second version does not say if it takes one step or two.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, ByRow, Follows, InputPolicy, RowStats, TierView
from adaptive.policies.samples import check_shares, check_state, count_lookups

if TYPE_CHECKING:
    from adaptive import AccessLog

UNKNOWN = 100  # mini-batches in the learning phase if the length of an epoch is unknown
LOGGER_BYTES = 4 * 2**20
_ENTRY_BYTES = 2  # of a logger
_NO_LOG: NDArray[np.uint16] = np.zeros(0, np.uint16)

Rows = NDArray[np.int64]
State = dict[str, NDArray[Any]]


class Counters:
    """An exact counter per row: a bitmap and, while it learns, 4 bytes per row."""

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self.popular_rows = 0
        self._popular = ByRow(np.bool_)
        self._counts = ByRow(np.uint32)

    def count(self, rows: Rows, view: TierView) -> None:
        """Count the rows of a mini-batch's lookups (N,)."""
        distinct, counts = np.unique(rows, return_counts=True)
        self._counts.reserve(view.num_rows)
        self._counts[distinct] = self._counts[distinct] + counts.astype(np.uint32)

    def decide(self, view: TierView) -> None:
        """Select the popular rows at the end of the learning phase: the most looked up, as many as there is room for.

        The paper motivates popularity by 1 in 100,000 lookups of all data. Of the few of the phase, this share is five:
        it selected 10 times fewer inputs than what fits. The paper's logger has no such bound, either.
        """
        rows = self._counts.rows()
        room = int(self._capacity * view.device_rows)
        most = np.argsort(-self._counts[rows].astype(np.int64), kind="stable")[:room]
        self._adopt(np.sort(rows[most]))
        self._counts = ByRow(np.uint32)

    def popular(self, rows: Rows) -> NDArray[np.bool_]:
        """(n,) True for popular rows."""
        return self._popular[rows]

    def forget(self, rows: Rows) -> None:
        """Forget what is known about rows (n,), which are other keys' rows from now on."""
        self.popular_rows -= int(self._popular[rows].sum())
        self._popular.forget(rows)
        self._counts.forget(rows)

    def _adopt(self, popular: Rows) -> None:
        self._popular = ByRow(np.bool_)
        self._popular[popular] = True
        self.popular_rows = len(popular)

    def state(self) -> State:
        counted = self._counts.rows()
        return {"popular": self._popular.rows(), "counted": counted, "counts": self._counts[counted]}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._adopt(state["popular"])
        self._counts = ByRow(np.uint32)
        self._counts[state["counted"]] = state["counts"]


class Logger:
    """The paper's access logger, with an entry per row that may stay on the device."""

    def __init__(self, num_bytes: int, capacity: float) -> None:
        self._num_bytes, self._capacity = num_bytes, capacity
        self._learning: AccessLog | None = None
        self._learnt: AccessLog | None = None
        self.popular_rows = 0

    def count(self, rows: Rows, view: TierView) -> None:
        if self._learning is None:
            from adaptive import AccessLog  # compiles kernels, which would slow down `policies list`

            self._learning = AccessLog(min(self._num_bytes // _ENTRY_BYTES, int(self._capacity * view.device_rows)))
        self._learning.add(rows)

    def decide(self, view: TierView) -> None:
        self._learnt, self._learning = self._learning, None
        self.popular_rows = 0 if self._learnt is None else self._learnt.num_held

    def forget(self, rows: Rows) -> None:
        """Do nothing: an entry has no row, only some bits of its hash."""

    def popular(self, rows: Rows) -> NDArray[np.bool_]:
        return np.zeros(len(rows), np.bool_) if self._learnt is None else self._learnt.holds(rows)

    def state(self) -> State:
        logs = {"learning": self._learning, "learnt": self._learnt}
        return {name: _NO_LOG if log is None else log.entries() for name, log in logs.items()}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._learning, self._learnt = _log(state["learning"]), _log(state["learnt"])
        self.popular_rows = 0 if self._learnt is None else self._learnt.num_held


def _log(entries: NDArray[np.uint16]) -> "AccessLog | None":
    from adaptive import AccessLog  # as above

    return None if entries.ndim == 1 and not len(entries) else AccessLog.restored(entries)


Learner = Counters | Logger
"""Counts lookups, and selects the popular rows at the end of the phase."""


def make_learner(logger: str, num_bytes: int, capacity: float) -> Learner:
    """Create a learner.

    Raises:
        ValueError: for options that do not go together.
    """
    if logger == "exact":
        if num_bytes != LOGGER_BYTES:
            raise ValueError(f"logger_bytes={num_bytes}: expected logger=srrip with it, got exact")
        return Counters(capacity)
    if logger != "srrip":
        raise ValueError(f"logger={logger}: expected exact or srrip")
    if num_bytes < 4 * _ENTRY_BYTES:
        raise ValueError(f"logger_bytes={num_bytes}: expected at least {4 * _ENTRY_BYTES}, a set of four entries")
    return Logger(num_bytes, capacity)


class Hotline(Follows, InputPolicy):
    """Keep the learned popular rows, and the most recently used of the others.

    A wrong guess of popular rows costs speed, never correctness.

    Args:
        learn: mini-batches in the learning phase, or a share of those of an epoch (`5%`; the paper takes 5% to 20%). If
            the length of an epoch is unknown, a share means 100 mini-batches.
        logger: `exact` counts the lookups of every row; the most looked up are popular. `srrip` is the paper's logger
            in bounded memory: 4-way sets of 16-bit entries, tags of 14 bits and 2-bit SRRIP. It has no counts: popular
            rows are those it holds at the end of the phase.
        logger_bytes: size of a `srrip` logger; 4 MB in the paper, two million rows. It gets no more entries than the
            popular rows may take of the device (`capacity`).
        capacity: share of the device rows for popular rows. The rest is for the rows of mini-batches in flight.
        micro_batches: run popular and other inputs through the model separately; if False, popular inputs are only
            moved to the front. Two smaller passes take longer than one, but overlap with fetching. On a GPU both always
            run in one pass, because no part can start before all rows are fetched.

    Attributes:
        learn: mini-batches in the learning phase; for a share, known once training starts.
        popular_rows: number of popular rows.
        seen_inputs, popular_inputs: samples after the learning phase, and the popular ones among them.
    """

    reported = ("popular_rows", "seen_inputs", "popular_inputs")

    def __init__(
        self,
        *,
        learn: int | str = "5%",
        logger: Literal["exact", "srrip"] = "exact",
        logger_bytes: int = LOGGER_BYTES,
        capacity: float = 0.5,
        micro_batches: bool = True,
    ) -> None:
        number, self._share = _learning(learn)
        if number < 1:
            raise ValueError(f"learn={learn}: expected at least 1")
        check_shares(capacity=capacity)
        self.learn, self.micro_batches = number, micro_batches
        self.seen_inputs = self.popular_inputs = 0
        self._learner = make_learner(logger, logger_bytes, capacity)
        self._batches = 0

    @property
    def popular_rows(self) -> int:
        return self._learner.popular_rows

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return np.where(self._learner.popular(rows.rows), rows.last_access + (1 << 40), rows.last_access)

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        if self._share is not None:  # decided once, even if the run is resumed with more epochs
            self.learn = max(1, math.ceil(self._share * self.epoch_batches)) if self.epoch_batches else UNKNOWN
            self._share = None
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
        """Count a mini-batch of the learning phase; decide after the last one."""
        self._batches += 1
        if self._batches <= self.learn:
            self._learner.count(rows, view)
        if self._batches == self.learn:
            self._learner.decide(view)

    def expired(self, number: int, rows: NDArray[np.int64]) -> None:
        self._learner.forget(rows)

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
    """Parse the setting `learn`: number of mini-batches, and share of an epoch or None."""
    text = str(learn).strip()
    if text.isdecimal():
        return int(text), None
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not (text.endswith("%") and 0 < share <= 1):
        raise ValueError(f"learn={learn}: expected at least 1 mini-batch, or a share of an epoch (5%)")
    return UNKNOWN, share
