"""Interfaces for custom policies and skip rules.

- `Policy` scores rows: rows with the lowest scores are evicted from the device first. Its answers change speed, never
  the trained tables. `Follows`, `Calibrates` and `InputPolicy` are policies with further methods; combine them freely.
- `SkipRule` decides which row updates are accumulated or dropped, `InputRule` which samples. Their answers do change
  what is trained, and every report shows by how much.
- `RowStats` and `TierView` are what the methods see, and `ByRow` keeps a value per row. `policies/README.md` is the
  tutorial.

Letters: n candidate rows, B samples and N lookups of a batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch

SATURATED: Final = np.float32(0.05)
"""A row is saturated if its latest updates moved it by less than this share of its length each."""
NEVER = np.iinfo(np.int64).max  # `next_access` of a row that no batch in the window looks up
Value = TypeVar("Value", bound=np.generic)


@dataclass(frozen=True)
class RowStats:
    """Statistics of n candidate rows, as aligned, read-only arrays.

    Rows are numbered through all tables.
    """

    step: int  # number of the batch that is being planned, from 0
    rows: NDArray[np.int64]  # (n,) first row of the table + id
    table: NDArray[np.int32]  # (n,) number of the row's table
    accesses: NDArray[np.int64]  # (n,) lookups so far
    last_access: NDArray[np.int64]  # (n,) latest batch that looked up the row, or -1
    next_access: NDArray[np.int64]  # (n,) next batch in the window that looks up the row, or NEVER
    update_norm: NDArray[np.float32]  # (n,) sum of the L2 norms of all updates; NaN if `order` evicts without `score`
    update_size: NDArray[np.float32]  # (n,) running mean of ||update|| / ||row||; NaN if the row is not hot
    saturated: NDArray[np.bool_]  # (n,) update_size < SATURATED
    resident: NDArray[np.bool_]  # (n,) on the device now

    @property
    def age(self) -> NDArray[np.int64]:
        """(n,) batches since the latest one that looked up the row, by which keys expire."""
        return self.step - self.last_access

    def __len__(self) -> int:
        return len(self.rows)


class TierView(Protocol):
    """Read-only view of the tiers, for a policy's methods. Rows are numbered as in `RowStats`."""

    @property
    def num_rows(self) -> int:
        """Rows of all tables."""
        ...

    @property
    def device_rows(self) -> int:
        """Slots of the device tier."""
        ...

    @property
    def table_starts(self) -> NDArray[np.int64]:
        """(tables + 1,) first row of each table, then the number of rows."""
        ...

    @property
    def row_bytes(self) -> NDArray[np.int64]:
        """(tables,) bytes of a row's weights, without optimizer state."""
        ...

    def rows(self, batch: Batch) -> NDArray[np.int64]:
        """(N,) row of each lookup, aligned with `batch.ids`.

        In a table with keys, the row that the key has now, or the table's first row, which stands for all keys without
        one.
        """
        ...

    def resident(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) True for rows on the device."""
        ...

    def accesses(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) lookups so far."""
        ...

    def saturated(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) True for hot rows whose latest updates moved them by less than 5% of their length each."""
        ...


class SkipRule:
    """Decides which row updates are accumulated or skipped.

    Nothing else in the library skips work.

    Implement `visits`. A rule works next to any policy, and only if skipping is switched on (`SkipConfig`, `--skip`):

        class EveryFourth(SkipRule):
            '''Saturated rows are written at every 4th visit, with the sum of four gradients.'''

            def visits(self, rows):
                return np.where(rows.saturated, 4, 1)

    Guarantees: placement changes no answer and no number. Methods are called from one thread, never concurrently.
    Input arrays are read-only. Answers are checked before any row moves. Reports show what was skipped. A *visit* of a
    row is a batch that looks it up.

    Accumulated updates (deferred): gradients are summed, and the optimizer takes one step with the sum. Adam counts it
    as k updates with the mean gradient. Adagrad, row-wise Adagrad and FTRL add the squares of the k gradients to the
    accumulator, as if each had been applied; the square of the sum would slow down rows whose gradients agree. A
    hot row of width D takes this many extra float32 values: D under SGD, D + 1 under row-wise Adagrad, 2 D under
    Adagrad and FTRL, 2 D + 1 under Adam.

    Keyword-only parameters of `__init__`, annotated and with defaults, are the rule's settings:
    `--skip defer+at_most=8`.
    """

    least: int = 1
    """Lower limit for the answers of `visits`, 0 or 1. With 0 updates may be lost. With 1 every gradient is applied at
    some visit."""

    most: int = 255
    """Upper limit for the answers of `visits`, from 1 to 255. With 1 no gradient is accumulated. If both limits are 1,
    no row is hot, and `visits` is not called."""

    warmup: int = 100
    """Batches before anything is accumulated or skipped."""

    reported: ClassVar[tuple[str, ...]] = ()
    """Names of numeric attributes that every record of a run shows."""

    def begin(self, optimizer: str) -> None:
        """Prepare for training. `optimizer` is `sgd`, `adagrad`, `rowwiseadagrad` or `adam`."""

    def visits(self, rows: RowStats) -> NDArray[Any]:
        """Return the number of visits per update of each hot row.

        Called every `SkipConfig.interval` batches, for all hot rows of a group of tables at once.

        Returns:
            (n,) integers. 1: every visit updates the row. k > 1: gradients are accumulated and applied at every k-th
            visit. 0: updates are skipped until the next call (set `least` to 0). A row is measured when it is updated,
            so let a skipped one be updated from time to time.
        """
        return np.ones(len(rows), np.int64)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return arrays from which `load_state_dict` restores the rule. Default: none."""
        return {}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the rule from the arrays of `state_dict`. Default: accept no arrays."""
        _expect_no_state(self, state)


class InputRule(SkipRule, ABC):
    """Decides which samples are trained, before the policy sees them.

    Implement `keep`:

        class FewerNegatives(InputRule):
            '''Keep every fourth sample without a click, with the weight of four.'''

            def keep(self, batch, rows):
                fourth = np.arange(batch.num_samples) % 4 == 0
                return np.where(batch.labels > 0, 1, 4 * fourth)

    The runtime fills batches with the kept samples, in order, counts what is dropped, and passes the weights on in
    `Batch.extras["weight"]` (B,). The built-in trainer multiplies the loss of each sample by its weight. Only batches
    are seen, so answers depend neither on timing nor on where rows are, and each of several ranks gets the same ones.

    A rule may implement `visits` as well, if it sets `most` or `least`. While it does not pay, every visit is updated.
    """

    most: int = 1

    batch_share: float = 1.0
    """Size of the batches to fill, as a share of those read. With the share of samples that are kept, a run takes as
    many steps as without the rule. It may change after any batch."""

    num_rows: int = 0
    """Rows of all tables. Set before training."""

    rest: int = 0
    """Batches to be trained as they are, without asking, from the next one on. A rule that does not pay now sets it, so
    that it costs nothing; the runtime counts it down, saves and restores it."""

    pays: bool = True
    """False if skipping costs more than it saves now: `visits` is not asked then, and no update is postponed or
    measured. A rule that changes it restores it in `load_state_dict`."""

    seen_inputs: int = 0
    dropped_inputs: int = 0
    weight_sums: tuple[float, float] = 0.0, 0.0
    """Samples read and dropped, and the sums of the kept samples' weights and of their squares, so far. The runtime
    counts, saves and restores them; in `keep`, they are those of the batches before."""

    @abstractmethod
    def keep(self, batch: Batch, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the weight of each sample; 0 drops it.

        Called once per batch, in order, also during `warmup`, but not while the rule rests.

        Args:
            batch: as read, without regard to ranks.
            rows: (N,) row of each lookup, aligned with `batch.ids` and numbered through all tables. In a table with
                keys, one of its rows by a hash of the key.

        Returns:
            (B,) finite numbers of at least 0. If they are 1 / probability of being kept, times the share of samples
            that are kept, a step keeps its expected gradient.
        """

    @property
    def effective_share(self) -> float:
        """(sum w)^2 / (n * sum w^2) over the n samples kept so far, w their weights; 1 without any.

        So many samples of equal weight, as a share of those kept, would estimate the gradient as well.
        """
        total, squares = self.weight_sums
        return total**2 / ((self.seen_inputs - self.dropped_inputs) * squares) if squares else 1.0


class Policy(ABC):
    """Decides which rows deserve the device.

    Its answers change speed, never the trained tables.

    Implement `score`:

        class RecentAndFrequent(Policy):
            '''A row is worth its lookups so far, less the longer ago the latest one was.'''

            def score(self, rows):
                age = rows.step - rows.last_access
                return rows.accesses / (1 + age)

    Guarantees: methods are called from one thread, never concurrently. Input arrays are read-only. Answers are checked
    before any row moves. A wrong answer or an exception stops training, and the error names policy, method and batch.

    For repeatable runs, answer from the arguments and your own state only: no clocks, no unseeded random numbers.

    Keyword-only parameters of `__init__`, annotated and with defaults, are the policy's settings:
    `--set policy.half_life=1000`. Raise `ValueError` for bad values.
    """

    misses: ClassVar[Literal["prefetch", "host"]] = "prefetch"
    """What happens to missing rows. `prefetch`: fetched to the device ahead of time. `host`: used on the host, and
    admitted to the device only if they score above the lowest resident row."""

    device_rows: ClassVar[str | None] = None
    """The only size of the device tier that makes sense for the policy, `"0"` or `"100%"`. None: any size."""

    reported: ClassVar[tuple[str, ...]] = ()
    """Names of numeric attributes that every record of a run shows."""

    order: tuple[str, ...] = ()
    """Columns that order rows as `score` does: `accesses`, `last_access`, or both, ties broken by the second.

    If set, the runtime evicts rows with the lowest values without calling `score`, several times as fast. A subclass
    that overrides `score` starts without an order. Set it to `()` in `__init__` for settings under which it does not
    hold. It is read once, when tables are created.
    """

    window: int = 0
    """Batches to read beyond the planned ones, so that `RowStats.next_access` is known."""

    rule: SkipRule | None = None
    """The skip rule that the policy carries, used only if skipping is switched on.

    Create it in `__init__`: an object in the class body would be shared. `--skip NAME` replaces it, `--skip off`
    removes it.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "score" in vars(cls) and "order" not in vars(cls):  # an inherited order describes the inherited score
            cls.order = ()

    @abstractmethod
    def score(self, rows: RowStats) -> NDArray[Any]:
        """Return how much each candidate row deserves the device.

        Candidates are idle rows on the device and, with `misses = "host"`, missing rows. Rows that a planned batch
        needs are never candidates.

        Returns:
            (n,) numbers without NaN. Rows with the lowest scores are evicted first, equal ones in any order.
        """

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return arrays from which `load_state_dict` restores the policy. Default: none.

        Called while no batch is in flight. Include everything that decides what is trained: a resumed run gets back
        these arrays and nothing else.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the policy from the arrays of `state_dict`. Default: accept no arrays."""
        _expect_no_state(self, state)


def _expect_no_state(owner: object, state: Mapping[str, NDArray[Any]]) -> None:
    if state:
        raise ValueError(f"{type(owner).__name__}: expected no state, got {sorted(state)}. Implement load_state_dict.")


class Follows(Policy):
    """A policy that follows lookups, admissions and evictions, for queues and histories.

    All four methods are called, unless there are no rows to pass. Their arrays are ascending and numbered through all
    tables. For a batch the order is `expired`, `looked_up`, `score`, `evicted`, `admitted`.
    """

    def looked_up(self, number: int, rows: NDArray[np.int64], view: TierView) -> None:
        """Note that batch `number` looks up these distinct rows (n,). Default: do nothing.

        Called once per batch, also without rows. `view` shows the tiers before the batch's rows move.
        """

    def evicted(self, number: int, rows: NDArray[np.int64]) -> None:
        """Note that these rows (n,) are evicted. Default: do nothing.

        They make room for batch `number`. Rows evicted for another reason (loaded tables, expired keys) are passed
        before the next `score`.
        """

    def admitted(self, number: int, rows: NDArray[np.int64]) -> None:
        """Note that these rows (n,) are admitted to the device. Default: do nothing.

        They are rows of batch `number`; with `misses = "prefetch"`, all that were missing.
        """

    def expired(self, number: int, rows: NDArray[np.int64]) -> None:
        """Note that these rows (n,) lost their keys before batch `number`. Default: do nothing.

        Their keys expired, or were evicted from a full table (`TableConfig.expire`, `when_full`). From now on a row's
        number stands for another key, so forget what you know about it.
        """


class Calibrates(Policy):
    """A policy that looks at a sample of the data before training. Tables with keys do not support it."""

    @abstractmethod
    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        """Look at a random share of an epoch's samples (`TrainConfig.calibrate`); it may be empty."""


class InputPolicy(Policy):
    """A policy that regroups samples before they are planned. Training with ranks does not support it."""

    epoch_batches: int | None = None
    """Training batches of an epoch, approximately. Set before training; None if unknown."""

    @abstractmethod
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        """Regroup samples.

        Yield every sample exactly once. You may cut a batch into parts (`Batch.part_sizes`), so that the first part
        trains while rows of the others are in flight, and ask for the loss on other samples after it
        (`Batch.held_back`, `observe`).
        """

    def observe(self, number: int, loss: float) -> None:
        """Receive the mean loss on held-back samples. Default: do nothing.

        They are the samples in `held_back` of batch `number`. Called max(look-ahead depth, 8) batches later, so that
        decisions depend neither on timing nor on a depth of up to 8. Not called by loops that do not call
        `TieredEmbeddingBag.report_loss`.
        """


def arranges(policy: Policy) -> bool:
    """True if training sees other batches than the reader yields: an `InputPolicy`, or one with an `InputRule`."""
    return isinstance(policy, InputPolicy) or isinstance(policy.rule, InputRule)


def inputs_of(rule: SkipRule | None) -> tuple[int, int]:
    """Samples that an input rule has read and dropped so far; zeros for anything else."""
    return (rule.seen_inputs, rule.dropped_inputs) if isinstance(rule, InputRule) else (0, 0)


class ByRow(Generic[Value]):
    """One value per row, 0 unless written. Pages that were never written take no memory."""

    def __init__(self, dtype: type[Value]) -> None:
        self._values: NDArray[Value] = np.zeros(0, dtype)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Value]:
        inside = rows < len(self._values)
        if inside.all():
            return self._values[rows]
        values = np.zeros(len(rows), self._values.dtype)
        values[inside] = self._values[rows[inside]]
        return values

    def __setitem__(self, rows: NDArray[np.int64], values: Any) -> None:
        if len(rows):
            needed = int(rows.max()) + 1
            if needed > len(self._values):
                self.reserve(max(needed, 2 * len(self._values)))
            self._values[rows] = values

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Set the values of rows (n,) to 0."""
        self._values[rows[rows < len(self._values)]] = 0

    def reserve(self, num_rows: int) -> None:
        """Make room for rows below `num_rows` at once."""
        if num_rows > len(self._values):
            grown = np.zeros(num_rows, self._values.dtype)
            grown[: len(self._values)] = self._values
            self._values = grown

    def restore(self, rows: NDArray[np.int64], values: Any) -> None:
        """Set these values (n,) of rows (n,), and 0 for all others.

        Raises:
            ValueError: for a row below 0, or another number of values.
        """
        if len(rows) and rows.min() < 0:
            raise ValueError(f"expected a state of rows of at least 0, got {rows.min()}")
        self._values = np.zeros(0, self._values.dtype)
        self[rows] = values

    def rows(self) -> NDArray[np.int64]:
        """Rows whose value is not 0, ascending."""
        return np.flatnonzero(self._values)
