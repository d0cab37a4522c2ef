"""Interfaces for custom policies and skip rules.

The names are `Policy`, `SkipRule`, and what their methods see: `RowStats` and `TierView`.

A policy scores rows: rows with the lowest scores are evicted from the device first. Its answers change speed, never
the trained tables. A skip rule decides which row updates are accumulated or dropped. Its answers do change what is
trained, and every report shows by how much. `policies/README.md` is the tutorial.

Letters: n candidate rows, N lookups of a batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch

SATURATED: Final = np.float32(0.05)
"""A row is saturated if its latest updates moved it by less than this share of its length each."""
NEVER = np.iinfo(np.int64).max  # `next_access` of a row that no batch in the window looks up


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
    update_size: NDArray[np.float32]  # (n,) running mean of ||update|| / ||row||; NaN if the row is not watched
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
        one. For a rule with `reads_inputs_only`, one of the table's rows by a hash of the key.
        """
        ...

    def resident(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) True for rows on the device."""
        ...

    def accesses(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) lookups so far."""
        ...

    def saturated(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) True for watched rows whose latest updates moved them by less than 5% of their length each."""
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
    watched row of width D takes this many extra float32 values: D under SGD, D + 1 under row-wise Adagrad, 2 D under
    Adagrad and FTRL, 2 D + 1 under Adam.

    Keyword-only parameters of `__init__`, annotated and with defaults, are the rule's settings:
    `--skip defer+at_most=8`.
    """

    least: int = 1
    """Lower limit for the answers of `visits`, 0 or 1. With 0 updates may be lost. With 1 every gradient is applied at
    some visit."""

    most: int = 255
    """Upper limit for the answers of `visits`, from 1 to 255. With 1 no gradient is accumulated. If both limits are 1,
    no row is watched, and `visits` is not called."""

    drops_inputs: bool = False
    """Set to True if `arrange` drops samples; count them in `seen_inputs` and `dropped_inputs`."""

    reads_inputs_only: bool = False
    """Set to True if `arrange` decides by the batches alone, apart from `TierView.rows` and `num_rows`; other
    attributes of the view raise errors. With several ranks, each runs it over all batches and gets the same answers;
    other rules that drop inputs are refused."""

    warmup: int = 100
    """Batches before anything is accumulated or skipped."""

    seen_inputs: int = 0
    dropped_inputs: int = 0
    """Samples that `arrange` has read and samples that it has dropped, so far."""

    @property
    def effective_share(self) -> float:
        """(sum w)^2 / (n * sum w^2) over the n samples that `arrange` has kept, w their weights. Default: 1.

        So many samples of equal weight, as a share of those kept, would estimate the gradient as well.
        """
        return 1.0

    reported: ClassVar[tuple[str, ...]] = ()
    """Names of numeric attributes that every record of a run shows."""

    def begin(self, optimizer: str) -> None:
        """Prepare for training. `optimizer` is `sgd`, `adagrad`, `rowwiseadagrad` or `adam`."""

    def expired(self, number: int, rows: NDArray[np.int64]) -> None:
        """Note that these rows (n,), ascending, lost their keys before batch `number`. Default: do nothing.

        As `Policy.expired`. A row that was watched no longer is.
        """

    def visits(self, rows: RowStats) -> NDArray[Any]:
        """Return the number of visits per update of each watched row.

        Called every `SkipConfig.interval` batches, for all watched rows of a group of tables at once.

        Returns:
            (n,) integers. 1: every visit updates the row. k > 1: gradients are accumulated and applied at every k-th
            visit. 0: updates are skipped until the next call (set `least` to 0). A row is measured when it is updated,
            so let a skipped one be updated from time to time.
        """
        return np.ones(len(rows), np.int64)

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        """Drop samples before the policy sees the batches. Default: drop none.

        Set `drops_inputs`. Keep the order of the others. To keep the expected gradient, weight them: the built-in
        trainer multiplies the loss of each sample by `Batch.extras["weight"]` (B,).
        """
        return batches

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return arrays from which `load_state_dict` restores the rule. Default: none."""
        return {}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the rule from the arrays of `state_dict`. Default: accept no arrays."""
        _expect_no_state(self, state)


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

    rearranges: bool = True
    """Set to False if `arrange` does nothing under the current settings."""

    reported: ClassVar[tuple[str, ...]] = ()
    """Names of numeric attributes that every record of a run shows."""

    order: tuple[str, ...] = ()
    """Columns that order rows as `score` does: `accesses`, `last_access`, or both, ties broken by the second.

    If set, the runtime evicts rows with the lowest values without calling `score`, several times as fast. It applies
    to the class that defines `score` and to subclasses that do not override `score`. Set it to `()` in `__init__` for
    settings under which it does not hold. It is read once, when tables are created.
    """

    window: int = 0
    """Batches to read beyond the planned ones, so that `RowStats.next_access` is known."""

    rule: SkipRule | None = None
    """The skip rule that the policy carries, used only if skipping is switched on.

    Create it in `__init__`: an object in the class body would be shared. `--skip NAME` replaces it, `--skip off`
    removes it.
    """

    epoch_batches: int | None = None
    """Training batches of an epoch, approximately. Set before training; None if unknown."""

    @abstractmethod
    def score(self, rows: RowStats) -> NDArray[Any]:
        """Return how much each candidate row deserves the device.

        Candidates are idle rows on the device and, with `misses = "host"`, missing rows. Rows that a planned batch
        needs are never candidates.

        Returns:
            (n,) numbers without NaN. Rows with the lowest scores are evicted first, equal ones in any order.
        """

    def looked_up(self, number: int, rows: NDArray[np.int64], view: TierView) -> None:  # noqa: B027 (optional)
        """Note that batch `number` looks up these rows. Default: do nothing.

        Called once per batch, before `score`. With `left` and `came` it serves policies that keep queues or histories.

        Args:
            number: of the batch.
            rows: (n,) distinct rows of all tables, ascending.
            view: of the tiers before the batch's rows move.
        """

    def left(self, number: int, rows: NDArray[np.int64]) -> None:  # noqa: B027 (optional)
        """Note that these rows (n,), ascending, are evicted. Default: do nothing.

        Called after `score` with the rows evicted for batch `number`. Rows evicted for another reason (rebalanced
        slots, loaded tables) are passed before the next `score`. Not called without rows.
        """

    def came(self, number: int, rows: NDArray[np.int64]) -> None:  # noqa: B027 (optional)
        """Note that these rows (n,), ascending, are admitted. Default: do nothing.

        They are rows of batch `number`; with `misses = "prefetch"`, all that were missing. Called after `left`, and not
        without rows.
        """

    def expired(self, number: int, rows: NDArray[np.int64]) -> None:  # noqa: B027 (optional)
        """Note that these rows (n,), ascending, lost their keys before batch `number`. Default: do nothing.

        Their keys expired, or were evicted from a full table (`TableConfig.expire`, `when_full`). From now on a row's
        number stands for another key, so forget what you know about it. Called after `left` and before `looked_up`,
        and not without rows.
        """

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        """Regroup samples before they are planned. Default: yield the batches unchanged.

        Yield every sample exactly once. You may cut a batch into parts (`Batch.part_sizes`), so that the first part
        trains while rows of the others are in flight, and ask for the loss on other samples after it
        (`Batch.held_back`, `observe`).
        """
        return batches

    def observe(self, number: int, loss: float) -> None:  # noqa: B027 (optional, not abstract)
        """Receive the mean loss on held-back samples. Default: do nothing.

        They are the samples in `held_back` of batch `number`. Called max(look-ahead depth, 8) batches later, so that
        decisions depend neither on timing nor on a depth of up to 8. Not called by loops that do not call
        `TieredEmbeddingBag.report_loss`.
        """

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:  # noqa: B027 (optional, not abstract)
        """Look at a random share of an epoch's samples before training (`TrainConfig.calibrate`).

        Default: do nothing; no sample is then read.
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


def order_of(policy: Policy) -> tuple[str, ...]:
    """`Policy.order` if it describes the policy's current `score`, else ()."""
    if "score" in vars(policy):
        return ()
    for cls in type(policy).__mro__:
        if "order" in vars(cls):
            return policy.order if policy.order == vars(cls)["order"] else ()
        if "score" in vars(cls):
            break
    return ()


def _overrides(owner: Policy | type[Policy] | SkipRule, method: Callable[..., Any]) -> bool:
    """True if the policy, its class, or the rule overrides this method of `Policy` or `SkipRule`."""
    current = getattr(owner, method.__name__)
    return getattr(current, "__func__", current) is not method


def arranges(policy: Policy | type[Policy]) -> bool:
    """True if training sees other batches than the reader yields.

    That is, the policy overrides `arrange` and its settings use it, or its rule drops inputs.
    """
    return drops_inputs(policy) or (policy.rearranges and _overrides(policy, Policy.arrange))


def arranges_alike(policy: Policy) -> bool:
    """True if all ranks see the same batches: nothing is arranged, or only by a rule that reads inputs only."""
    rule = policy.rule
    is_alike = rule is None or not rule.drops_inputs or rule.reads_inputs_only
    return is_alike and not (policy.rearranges and _overrides(policy, Policy.arrange))


def drops_inputs(policy: Policy | type[Policy]) -> bool:
    """True if the policy's skip rule drops inputs."""
    return policy.rule is not None and policy.rule.drops_inputs


def inputs_of(policy: Policy) -> tuple[int, int]:
    """Samples that the policy's skip rule has read and dropped so far; zeros without a rule."""
    return (0, 0) if policy.rule is None else (policy.rule.seen_inputs, policy.rule.dropped_inputs)


def follows(policy: Policy | type[Policy]) -> bool:
    """True if the policy, or its class, overrides `looked_up`, `left` or `came`."""
    return any(_overrides(policy, method) for method in (Policy.looked_up, Policy.left, Policy.came))


def forgets(owner: Policy | SkipRule) -> bool:
    """True if the policy or rule overrides `expired`."""
    return _overrides(owner, Policy.expired if isinstance(owner, Policy) else SkipRule.expired)


def calibrates(policy: Policy | type[Policy]) -> bool:
    """True if the policy, or its class, overrides `calibrate` and needs a data sample."""
    return _overrides(policy, Policy.calibrate)
