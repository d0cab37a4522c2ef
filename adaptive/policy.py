"""All that the author of a policy or a skip rule needs: `Policy`, `SkipRule`, `RowStats` and `TierView`.

A policy answers one question, `score`: how much does each row deserve the device? Whatever it answers, the trained
tables are the same and only the speed differs. A skip rule answers the other one, `visits`: which updates wait, or are
left out? That does change what is trained; every report shows by how much.

Letters: n candidate rows, N lookups of a batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch

NEVER = np.iinfo(np.int64).max  # `next_access` of a row that is not in the look-ahead's window


@dataclass(frozen=True)
class RowStats:
    """Aligned, read-only arrays about n candidate rows. Rows of all tables are numbered through."""

    step: int  # number of the batch that is being planned, from 0
    rows: NDArray[np.int64]  # (n,) row = start of its table + index
    table: NDArray[np.int32]  # (n,) number of the row's table
    accesses: NDArray[np.int64]  # (n,) lookups so far
    last_access: NDArray[np.int64]  # (n,) latest batch that looked the row up, -1 = none
    next_access: NDArray[np.int64]  # (n,) next batch in the window that will, NEVER = none
    update_norm: NDArray[np.float32]  # (n,) sum over updates of the L2 norm of the change
    drift: NDArray[np.float32]  # (n,) ||row - snapshot|| / ||row||; NaN = unknown, or an update was skipped
    drift_accesses: NDArray[np.int64]  # (n,) lookups between the two snapshots behind `drift`
    drift_visits: NDArray[np.int64]  # (n,) batches that looked the row up between them
    visits: NDArray[np.int64]  # (n,) batches that have looked the row up, where updates are deferred; 0 elsewhere
    saturated: NDArray[np.bool_]  # (n,) the current verdict: updates are left out, or wait
    resident: NDArray[np.bool_]  # (n,) on the device now

    def __len__(self) -> int:
        return len(self.rows)


class TierView(Protocol):
    """What a policy may ask of the tiers. Rows are numbered as in `RowStats`."""

    @property
    def num_rows(self) -> int: ...

    @property
    def device_rows(self) -> int: ...

    @property
    def table_starts(self) -> NDArray[np.int64]:
        """(tables + 1,) first row of each table, and the number of rows."""
        ...

    @property
    def row_bytes(self) -> NDArray[np.int64]:
        """(tables,) bytes of a row's weights, without optimizer state."""
        ...

    def rows(self, batch: Batch) -> NDArray[np.int64]:
        """(N,) row of each lookup, aligned with `batch.ids`."""
        ...

    def resident(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]: ...

    def accesses(self, rows: NDArray[np.int64]) -> NDArray[np.int64]: ...

    def saturated(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]: ...


class SkipRule(ABC):
    """Decides which updates are written less often, next to any policy. Nothing else skips.

    The runtime asks `visits` about the watched rows every `SkipConfig.interval` batches. Whatever a rule answers,
    placement changes nothing, and reports show what was left out. Answers are checked as a policy's are; arrays handed
    in are read-only. Parameters of `__init__` (keyword-only, annotated, with defaults) are the rule's settings.

    Gradients that wait are summed, and the optimizer takes one step with the sum. Under Adam it counts as k updates
    with their mean. Under Adagrad and row-wise Adagrad the accumulator grows by the squares of the k gradients, as if
    each had been applied, and not by the square of their sum, which would slow a row down whose gradients agree. A
    watched row takes memory for the sum and these squares: D + 1 numbers for row-wise Adagrad, 2 D for Adagrad, D for
    SGD, 2 D + 1 for Adam, which counts the gradients, too.
    """

    watches: bool = True
    """False if the rule does not need `RowStats.drift`; the runtime then keeps no snapshots."""

    asks: bool = True
    """False if `visits` need not be asked: `every` and `at_most` say everything."""

    leaves_out: bool = False
    """True if `visits` may answer 0: then updates are lost. Otherwise every gradient is applied, sooner or later."""

    drops_inputs: bool = False
    """True if `arrange` leaves samples out; it counts them in `seen_inputs` and `dropped_inputs`."""

    mode: str = ""
    """Added to the rule's name in reports, for a rule that has several modes, such as `by movement`."""

    at_most: int = 255
    """The largest answer that counts; 1: no gradient ever waits, and there are no sums."""

    every: int = 1
    """Gradients of a row wait for no more visits than the row has had so far, divided by this."""

    warmup: int = 100
    """Batches before anything waits or is left out; a guard judges from then on."""

    allowance: float = 1.0
    """The share of its skipping that a guard allows: 1 all, 0 none. Set between two batches. The runtime leaves out
    only that share of the rows answered with 0, and shrinks `at_most`; `arrange` asks `allows`."""

    seen_inputs: int = 0
    dropped_inputs: int = 0
    """Samples that came to `arrange` and those that it left out, so far."""

    reported: ClassVar[tuple[str, ...]] = ()
    """Attributes, numbers, that are shown with every record of a run."""

    def begin(self, optimizer: str) -> None:  # noqa: B027 (optional, not abstract)
        """Called before training with the name of the row optimizer: `sgd`, `adagrad`, `rowwiseadagrad` or `adam`."""

    @abstractmethod
    def visits(self, rows: RowStats) -> NDArray[Any]:
        """(n,) whole numbers. 1: every visit (a batch that looks the row up) updates the row. k > 1: gradients wait in
        a sum that every k-th visit applies. 0: updates are left out until the rule is asked again."""

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        """Leave inputs out (`drops_inputs`) before the policy sees the batches; the others keep their order. Of the
        inputs, numbered as they come, drop none that `allows` denies. Default: all batches, as they come."""
        return batches

    def allows(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) True where a guard allows skipping, for each of these numbers (n,), of rows or of inputs.

        True for the share `allowance` of all numbers, chosen by a hash, so that a number is treated alike each time;
        of two allowances the lower one chooses among the numbers of the higher one.
        """
        mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # wraps, as a hash should
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)
        chosen: NDArray[np.bool_] = (mixed >> np.uint64(32)) < np.uint64(round(self.allowance * 2**32))
        return chosen

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Arrays from which `load_state_dict` restores the rule, as `Policy.state_dict`. Default: none."""
        return {}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `state_dict` gave. Default: expects nothing."""
        _expect_no_state(self, state)


def _expect_no_state(owner: object, state: Mapping[str, NDArray[Any]]) -> None:
    if state:
        raise ValueError(f"{type(owner).__name__} has no state, got {sorted(state)}")


def order_of(policy: "Policy") -> tuple[str, ...]:
    """`Policy.order` if it speaks of the policy's own `score`; else ()."""
    if "score" in vars(policy):
        return ()
    for cls in type(policy).__mro__:
        if "order" in vars(cls):
            return policy.order if policy.order == vars(cls)["order"] else ()
        if "score" in vars(cls):
            break
    return ()


def _replaces(policy: "Policy | type[Policy]", method: Callable[..., Any]) -> bool:
    """True if the policy, or its class, has another method than this one of `Policy`."""
    current = getattr(policy, method.__name__)
    return getattr(current, "__func__", current) is not method


def arranges(policy: "Policy | type[Policy]") -> bool:
    """True if batches come to training otherwise than they are read: the policy, or its class, has another `arrange`
    than the default and its settings have a use for it (`Policy.rearranges`), or its rule drops inputs."""
    return drops_inputs(policy) or (policy.rearranges and _replaces(policy, Policy.arrange))


def drops_inputs(policy: "Policy | type[Policy]") -> bool:
    """True if the policy's skip rule drops inputs."""
    return policy.rule is not None and policy.rule.drops_inputs


def inputs_of(policy: "Policy") -> tuple[int, int]:
    """Inputs that came to the policy's skip rule and those that it dropped so far; 0 without a rule."""
    return (0, 0) if policy.rule is None else (policy.rule.seen_inputs, policy.rule.dropped_inputs)


def follows(policy: "Policy | type[Policy]") -> bool:
    """True if the policy follows accesses: it, or its class, has another `looked_up`, `left` or `came` than the
    default."""
    return any(_replaces(policy, method) for method in (Policy.looked_up, Policy.left, Policy.came))


def calibrates(policy: "Policy | type[Policy]") -> bool:
    """True if the policy looks at a sample of the data: it, or its class, has another `calibrate` than the default."""
    return _replaces(policy, Policy.calibrate)


class Policy(ABC):
    """Decides which rows deserve the device. Whatever it answers, the trained tables are the same.

    Methods run in a thread of their own, one at a time. Arrays handed in are read-only. What a method returns is
    checked before any row moves; what it raises, and a method that does not return (`TierConfig.policy_timeout_s`),
    stops training with the policy, method and batch named.

    Parameters of `__init__` (keyword-only, annotated, with defaults) are the policy's settings.
    """

    misses: ClassVar[Literal["prefetch", "host"]] = "prefetch"
    """`prefetch`: missed rows are fetched ahead of time. `host`: they are looked up and updated where they lie, and
    come in only when scored above the lowest resident row."""

    device_rows: ClassVar[str | None] = None
    """The only size of device tier that makes sense for this policy (`"0"`, `"100%"`), or None: any."""

    rearranges: bool = True
    """Whether `arrange`, where a policy defines it, does anything; one whose settings do without says no."""

    reported: ClassVar[tuple[str, ...]] = ()
    """Attributes, numbers, that are shown with every record of a run."""

    order: tuple[str, ...] = ()
    """Columns of `RowStats` that say the same as `score`: rows with the least of the first leave first, among equals
    those with the least of the second. `accesses`, `last_access`, or both. Where given, rows that leave are chosen
    without asking `score`, which costs a tenth. It counts for the class that defines `score` and those below it that
    define no other; settings under which it does not hold set it to `()`."""

    window: int = 0
    """Batches whose ids are read beyond the planned ones, so that `next_access` is known."""

    rule: SkipRule | None = None
    """Which updates are written less often; only where skipping is switched on. Make it in `__init__`: an object in the
    class body would be shared. `--skip NAME` replaces it, `--skip off` removes it."""

    epoch_batches: int | None = None
    """Batches of the data that a run trains in an epoch, set before training; None: not known. May be out by some."""

    def looked_up(self, number: int, rows: NDArray[np.int64], view: TierView) -> None:  # noqa: B027 (optional)
        """Batch `number` looks these rows (n,) up: each once, of all tables, ascending. Told once for a batch, before
        `score` is asked for it; `view` has rows where they were before the batch. Default: nothing.

        For policies that follow accesses, with `left` and `came`: queues, marks, histories.
        """

    def left(self, number: int, rows: NDArray[np.int64]) -> None:  # noqa: B027 (optional)
        """These rows (n,), ascending, leave the device for batch `number`, after `score` was asked; or they had to go
        for another reason (less memory, slots shared anew, other rows loaded), which is told before `score` is asked.
        Not told if there are none. Default: nothing."""

    def came(self, number: int, rows: NDArray[np.int64]) -> None:  # noqa: B027 (optional)
        """These rows (n,) of batch `number`, ascending, come onto the device: after `left`, if there are any. With
        `misses = "prefetch"` all that were not there. Default: nothing."""

    @abstractmethod
    def score(self, rows: RowStats) -> NDArray[Any]:
        """(n,) numbers without NaN: how much each row deserves the device. The lowest leaves first."""

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        """Regroup or split inputs before they are planned; every sample comes once. Default: as they come.

        A batch may be given parts (`Batch.part_sizes`), the first of which is then trained while rows for the others
        are still coming, and samples to be evaluated after it (`Batch.held_back`, `observe`).
        """
        return batches

    def observe(self, number: int, loss: float) -> None:  # noqa: B027 (optional, not abstract)
        """The mean loss on the held-back samples that `arrange` gave batch `number`, measured once it was trained.

        Told at least 8 batches later and at least as many as are looked ahead, so that what follows from it depends on
        no timing, nor on a depth of up to 8. Loops that do not measure (`TieredEmbeddingBag.report_loss`) tell nothing.
        Default: nothing.
        """

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:  # noqa: B027 (optional, not abstract)
        """Look at a sample of the training data before training. Default: nothing, and no sample is read.

        A run shows a random share of the inputs of an epoch (`TrainConfig.calibrate`).
        """

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Arrays from which `load_state_dict` restores the policy. Default: none.

        Asked for when no look-ahead runs. A resumed run gets back exactly these: what decides what is trained must be
        among them.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `state_dict` gave. Default: expects nothing."""
        _expect_no_state(self, state)
