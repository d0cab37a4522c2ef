"""All that the author of a policy needs: `Policy`, `RowStats`, `TierView` and `Deferral`.

A policy answers one question, `score`: how much does each row deserve the device? Whatever it answers, the
trained tables are the same and only the speed differs. `saturated` and dropped inputs (`arrange`) do change what
is trained; what they left out is in every report.

Letters: n candidate rows, N look-ups of a batch.
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
    accesses: NDArray[np.int64]  # (n,) look-ups so far
    last_access: NDArray[np.int64]  # (n,) latest batch that looked the row up, -1 = none
    next_access: NDArray[np.int64]  # (n,) next batch in the window that will, NEVER = none
    update_norm: NDArray[np.float32]  # (n,) sum over updates of the L2 norm of the change
    drift: NDArray[np.float32]  # (n,) ||row - snapshot|| / ||row||; NaN = unknown, or an update was skipped
    drift_accesses: NDArray[np.int64]  # (n,) look-ups between the two snapshots behind `drift`
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
        """(N,) row of each look-up, aligned with `batch.ids`."""
        ...

    def resident(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]: ...

    def accesses(self, rows: NDArray[np.int64]) -> NDArray[np.int64]: ...

    def saturated(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]: ...


@dataclass(frozen=True)
class Deferral:
    """Write a popular row's updates less often: sum its gradients and apply the sum at every k-th visit.

    k = clamp(visits / every, 1, at_most), where a visit is a batch that looks the row up; k = 1 is the plain update.
    Nothing is dropped. The optimizer takes one step with the sum instead of k steps; under Adam it counts as k updates
    with their mean. Under Adagrad and row-wise Adagrad the accumulator grows by the squares of the k gradients, as if
    each had been applied, and not by the square of their sum, which would slow a row down whose gradients agree.
    Watched rows take memory for the sum and these squares: D + 1 numbers for row-wise Adagrad, 2 D for Adagrad, D for
    SGD, 2 D + 1 for Adam, which counts the gradients, too.
    """

    every: int = 32  # visits per unit of k: how much of its history a row may be behind
    at_most: int | None = None  # None: 8, and 4 under plain SGD, where a sum of k gradients is one k-fold step
    warmup: int = 100  # batches before any update is deferred; the harm, where any, is early

    def __post_init__(self) -> None:
        if self.every < 1 or self.warmup < 0 or (self.at_most is not None and not 1 <= self.at_most <= 255):
            raise ValueError(f"{self}: needed every >= 1, at_most from 1 to 255 or none, warmup >= 0")


class SkipRule(ABC):
    """Decides which updates are written less often: beside any policy, which decides where rows lie.

    One question, asked every `SkipConfig.interval` batches: of these watched rows and what is known of them, which
    wait, and for how many visits? Whatever a rule answers, placement changes nothing, and reports say what was left
    out. Answers are checked as a policy's are; arrays handed in are read-only. Parameters of `__init__` (keyword-only,
    annotated, with defaults) are the rule's settings.
    """

    watches: bool = True
    """Whether movement is measured (`RowStats.drift`); a rule that does without says no, and no snapshots are kept."""

    asks: bool = True
    """Whether `visits` is asked at all; for a rule that says no, `every` and `at_most` say everything."""

    leaves_out: bool = False
    """Whether `visits` may answer 0: then updates are lost. Otherwise every gradient is applied, sooner or later."""

    mode: str = ""
    """What reports add to the rule's name, where it has several ways, such as `by movement`."""

    at_most: int = 255
    """The largest answer that counts; 1: no gradient ever waits."""

    every: int = 1
    """Gradients of a row wait for no more visits than it has had so far, divided by this; counted at every visit."""

    drops_inputs: bool = False
    """Whether `arrange` leaves samples out; it counts those that came and those that it left out."""

    seen_inputs: int = 0
    dropped_inputs: int = 0

    reported: ClassVar[tuple[str, ...]] = ()
    """Attributes, numbers, that are shown with every record of a run."""

    warmup: int = 100
    """Batches before anything waits or is left out."""

    def begin(self, optimizer: str) -> None:  # noqa: B027 (optional, not abstract)
        """Told before training which optimizer updates the rows: `sgd`, `adagrad`, `rowwiseadagrad` or `adam`."""

    @abstractmethod
    def visits(self, rows: RowStats) -> NDArray[Any]:
        """(n,) whole numbers. 1: every visit (a batch that looks the row up) updates the row. k > 1: gradients wait in
        a sum that every k-th visit applies. 0: updates are left out until the rule is asked again."""

    def arrange(
        self, batches: Iterator[Batch], view: TierView, allows: Callable[[NDArray[np.int64]], NDArray[np.bool_]]
    ) -> Iterator[Batch]:
        """Leave inputs out, where the rule does that (`drops_inputs`), before the policy sees the batches; the others
        come in their order. Of the inputs, numbered as they come, only those may go that `allows` (a guard)."""
        return batches

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """As `Policy.state_dict`: what the rule must know to go on after a resume. Default: nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `state_dict` gave. Default: expects nothing."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state, found {sorted(state)}")


def order_of(policy: "Policy") -> tuple[str, ...]:
    """`Policy.order`, where it speaks of the policy's own `score`; else ()."""
    if "score" in vars(policy):
        return ()
    for cls in type(policy).__mro__:
        if "order" in vars(cls):
            return policy.order if policy.order == vars(cls)["order"] else ()
        if "score" in vars(cls):
            break
    return ()


def arranges(policy: "Policy | type[Policy]") -> bool:
    """Whether batches come to training otherwise than they are read: the policy, or its class, has another `arrange`
    than the default and its settings have a use for it (`Policy.rearranges`), or its rule leaves inputs out."""
    if policy.rule is not None and policy.rule.drops_inputs:
        return True
    return policy.rearranges and getattr(policy.arrange, "__func__", policy.arrange) is not Policy.arrange


def drops_inputs(policy: "Policy") -> bool:
    """Whether the policy, or the rule beside it, leaves inputs out."""
    return policy.drops_inputs or (policy.rule is not None and policy.rule.drops_inputs)


def inputs_of(policy: "Policy") -> tuple[int, int]:
    """Inputs that came to whoever leaves inputs out, policy or rule, and those left out so far."""
    rule = policy.rule
    owner = rule if rule is not None and rule.drops_inputs else policy
    return owner.seen_inputs, owner.dropped_inputs


def follows(policy: "Policy | type[Policy]") -> bool:
    """Whether a policy follows accesses: it, or its class, has another `looked_up`, `left` or `came` than the
    default."""
    methods = (Policy.looked_up, Policy.left, Policy.came)
    return any(getattr(found := getattr(policy, own.__name__), "__func__", found) is not own for own in methods)


def calibrates(policy: "Policy | type[Policy]") -> bool:
    """Whether a policy looks at a sample of the data: it, or its class, has another `calibrate` than the default."""
    return getattr(policy.calibrate, "__func__", policy.calibrate) is not Policy.calibrate


class Policy(ABC):
    """Decides which rows deserve the device and which have stopped moving.

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

    drops_inputs: bool = False
    """Whether `arrange` leaves samples out. That changes what is trained, as `saturated` does."""

    seen_inputs: int = 0
    dropped_inputs: int = 0
    """Samples that came to `arrange` and those that it left out, so far; counted by a policy that drops inputs."""

    reported: ClassVar[tuple[str, ...]] = ()
    """Attributes, numbers, that are shown with every record of a run."""

    watches: bool = True
    """Whether `saturated`, where a policy defines it, is to be asked and given measurements; a policy whose settings
    do without says no, and no snapshots are kept."""

    order: tuple[str, ...] = ()
    """Columns of `RowStats` that say the same as `score`: rows with the least of the first leave first, among equals
    those with the least of the second. `accesses`, `last_access`, or both. Where given, rows that leave are chosen
    without asking `score`, which costs a tenth. It counts for the class that defines `score` and those below it that
    define no other; settings under which it does not hold set it to `()`."""

    window: int = 0
    """Batches whose ids are read beyond the planned ones, so that `next_access` is known."""

    deferral: Deferral | None = None
    """Whether and how updates of popular rows are deferred; only where skipping is switched on."""

    rule: SkipRule | None = None
    """Which updates are written less often; only where skipping is switched on. `--skip NAME` puts one beside any
    policy; `deferral` and `saturated` do not count then."""

    epoch_batches: int | None = None
    """Batches of the data that a run trains in an epoch, set before training; None: not known. May be out by some."""

    warmup: int = 0
    """Batches before anything is left out, as far as the policy knows; a guard judges from then on."""

    allowance: float = 1.0
    """The share of its skipping that a guard allows: 1 all, 0 none. Set between two batches. Of the rows that
    `saturated` names only that share is skipped, and `deferral.at_most` shrinks, without the policy doing anything;
    a policy that drops inputs keeps those that `allows` leaves out."""

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

    def saturated(self, rows: RowStats) -> NDArray[np.bool_]:
        """(n,) rows whose updates are to be skipped until asked again. Default: none."""
        return np.zeros(len(rows), np.bool_)

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        """Regroup, split or drop inputs before they are planned. Default: as they come.

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

    def allows(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) whether skipping is allowed for each of these numbers (n,), of rows or of inputs.

        True for the share `allowance` of all numbers, chosen by a hash, so that a number is treated alike each time;
        of two allowances the lower one chooses among the numbers of the higher one.
        """
        mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # wraps, as a hash should
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)
        chosen: NDArray[np.bool_] = (mixed >> np.uint64(32)) < np.uint64(round(self.allowance * 2**32))
        return chosen

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Arrays from which `load_state_dict` restores the policy. Default: none.

        Asked for when no look-ahead runs. A resumed run gets back exactly these: what decides what is trained must be
        among them.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `state_dict` gave. Default: expects nothing."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state, found {sorted(state)}")
