"""`PolicyCaller`: calls a policy and its skip rule, from the thread that plans, and checks the answers.

A bad answer stops training with a `PolicyError` that names policy, method and batch.
Rows and slots are then unchanged.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, as_batch
from adaptive.batch.batch import Refill, weighted
from adaptive.embeddings.planning.books import ORDERS
from adaptive.errors import PolicyError, error_text
from adaptive.policy import Calibrates, InputPolicy, InputRule, Policy, RowStats, SkipRule, TierView, arranges


def read_only(stats: RowStats) -> RowStats:
    """Make the arrays read-only, for a policy."""
    for item in fields(stats):
        value = getattr(stats, item.name)
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return stats


Answer = TypeVar("Answer")
OF_RULE: Final = "rule."  # prefix of the names of a skip rule's methods
CHECK: Final = "Nothing was moved. Run `adaptive-train policies check` on it."
COUNTED: Final = ("seen_inputs", "dropped_inputs", "effective_share", "pays")  # of an input rule, always reported
_DONE: Final = object()


class PolicyCaller:
    """Calls the methods of one policy and its rule, and checks the answers.

    Args:
        policy: to call.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.seconds = 0.0
        self._explained: BaseException | None = None  # latest error that already names policy and method
        self._source: _Source | None = None  # of the batches to arrange
        self._read: deque[dict[str, float]] = deque()  # `reported` of each arranged batch that is not planned yet
        self._reported: dict[str, float] | None = None  # as of the batch to be planned, if the policy arranges batches

    @property
    def rule(self) -> SkipRule | None:
        """The policy's skip rule."""
        return self.policy.rule

    @property
    def defers(self) -> bool:
        """True if gradients may be accumulated."""
        return self.rule is not None and self.rule.most > 1

    @property
    def skips(self) -> bool:
        """True if there must be a hot set: the rule may defer or skip updates."""
        return self.defers or self.leaves_out

    @property
    def leaves_out(self) -> bool:
        """True if updates may be lost: the rule may answer 0."""
        return self.rule is not None and self.rule.least == 0

    @property
    def pays(self) -> bool:
        """False while an input rule does not pay, as of the batch to be planned."""
        # Not as of now: the rule may have read on, as far as the window and threads have come.
        return (self._reported or {}).get(f"{OF_RULE}pays") != 0

    @cached_property
    def order(self) -> tuple[str, ...] | None:
        """Columns by which rows are evicted, one of `ORDERS`; None: by `score`.

        Read once: the books have what the order needs.

        Raises:
            PolicyError: if the policy names other columns.
        """
        columns = tuple(self.policy.order)
        if columns and columns not in ORDERS:
            choices = ", ".join(map(str, ORDERS))
            raise PolicyError(f"{self._owner('order')}.order: expected () or one of {choices}, got {columns}.")
        return columns or None

    @property
    def by_accesses(self) -> bool:
        """True if `order` has accesses, which slots then repeat."""
        return "accesses" in (self.order or ())

    @property
    def scores(self) -> bool:
        """True if rows may be evicted or admitted by `score`, which reads their statistics."""
        has_rows = self.policy.device_rows != "0"
        return has_rows and (self.policy.misses == "host" or self.order is None)

    # --- answers about rows ----------------------------------------------------------------------------------

    def score(self, stats: RowStats) -> NDArray[np.float64]:
        """(n,) float64 scores without NaN."""
        scores = self._array("score", stats, self.policy.score)
        if scores.dtype.kind not in "fiub":
            raise self._wrong("score", stats.step, "numbers", f"dtype {scores.dtype}")
        if scores.dtype.kind == "f" and len(bad := np.flatnonzero(np.isnan(scores))):
            raise self._wrong("score", stats.step, "no NaN", f"{len(bad)}, the first for row {stats.rows[bad[0]]}")
        return scores.astype(np.float64)

    def visits(self, stats: RowStats) -> NDArray[np.int64]:
        """(n,) visits per update, from `rule.least` to `rule.most`."""
        rule, method = self.rule, f"{OF_RULE}visits"
        assert rule is not None
        answer = self._array(method, stats, rule.visits)
        if answer.dtype.kind not in "iu":
            raise self._wrong(method, stats.step, "integers", f"dtype {answer.dtype}")
        least = rule.least
        if len(bad := np.flatnonzero(answer < least)):
            hint = "" if least == 0 else " (set least = 0 to skip updates)"
            got = f"{answer[bad[0]]} for row {stats.rows[bad[0]]}{hint}"
            raise self._wrong(method, stats.step, f"numbers of at least {least}", got)
        return np.minimum(answer.astype(np.int64), rule.most)

    def _array(self, method: str, stats: RowStats, ask: Callable[[RowStats], NDArray[Any]]) -> NDArray[Any]:
        """(n,) a method's answer about these rows."""
        answer: object = self._ask(method, stats.step, lambda: ask(read_only(stats)))
        if not isinstance(answer, np.ndarray) or answer.shape != (len(stats),):
            got = f"shape {answer.shape}" if isinstance(answer, np.ndarray) else type(answer).__name__
            raise self._wrong(method, stats.step, f"an array of shape ({len(stats)},)", got)
        return answer

    # --- notifications ---------------------------------------------------------------------------------------

    def notify(self, method: str, number: int, rows: NDArray[np.int64], *more: object) -> None:
        """Call a method of `Follows` with rows (n,) of batch `number`."""
        rows.flags.writeable = False
        answer = self._ask(method, number, lambda: getattr(self.policy, method)(number, rows, *more))
        if answer is not None:
            raise self._wrong(method, number, "None", type(answer).__name__)

    def begin(self, optimizer: str) -> None:
        """Pass the name of the row optimizer to the rule."""
        if (rule := self.rule) is not None:
            self.ask(f"{OF_RULE}begin", lambda: rule.begin(optimizer))

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        """Show a sample to a policy that calibrates."""
        if isinstance(policy := self.policy, Calibrates):
            self.ask("calibrate", lambda: policy.calibrate(sample, view))

    def observe(self, number: int, loss: float) -> None:
        """Pass the loss on held-back samples to the policy that has asked for it."""
        if isinstance(policy := self.policy, InputPolicy):
            self._ask("observe", number, lambda: policy.observe(number, loss))

    # --- batches ---------------------------------------------------------------------------------------------

    def arrange(
        self, batches: Iterator[Batch], view: TierView, rows_of_inputs: Callable[[Batch], NDArray[np.int64]]
    ) -> Generator[Batch, None, None]:
        """Yield what an input rule keeps of the batches, as the policy arranges it, checked.

        `rows_of_inputs` returns the rows of a batch's lookups (N,) for the rule.
        """
        self._read.clear()
        if not arranges(self.policy):
            yield from batches
            return
        source = _Source(batches)
        try:
            for batch in self._arranged(source, view, rows_of_inputs):
                self._read.append(self._run("reported", -1, self._read_reported))
                yield batch
        finally:
            source.closed = True

    def _arranged(
        self, source: "_Source", view: TierView, rows_of_inputs: Callable[[Batch], NDArray[np.int64]]
    ) -> Iterator[Batch]:
        policy, rule = self.policy, self.rule
        inputs: Iterator[Batch] = source
        if isinstance(rule, InputRule):
            rule.num_rows = view.num_rows
            inputs = self._kept(rule, source, rows_of_inputs)
        if not isinstance(policy, InputPolicy):
            yield from inputs
            return
        counted = self._source = _Source(inputs)
        arranged = self._ask("arrange", -1, lambda: iter(policy.arrange(counted, view)))
        num_samples = 0
        while (batch := self._run("arrange", -1, lambda: next(arranged, _DONE))) is not _DONE:
            if not isinstance(batch, Batch):
                raise self._wrong("arrange", -1, "batches", type(batch).__name__)
            num_samples += batch.num_samples
            yield batch
        self._check_samples(counted, num_samples)

    def _kept(
        self, rule: InputRule, source: "_Source", rows_of_inputs: Callable[[Batch], NDArray[np.int64]]
    ) -> Iterator[Batch]:
        """Fill batches with the samples that a rule keeps."""
        refill, size, has_dropped = Refill(), 0, False
        for batch in source:
            size = size or batch.num_samples
            if rule.rest:
                rule.rest -= 1
                _count_inputs(rule, batch.num_samples)
                yield from self._rest_of(refill, has_dropped=has_dropped)
                yield batch
                continue
            weights = self._weights(rule, batch, rows_of_inputs(batch))
            chosen = weights > 0
            kept = weights[chosen]
            has_dropped |= len(kept) < len(weights)
            _count_inputs(rule, batch.num_samples, kept)
            refill.size = max(1, round(size * rule.batch_share))
            # Without weights of its own, a batch keeps the loss that it has without a rule, bit for bit.
            yield from refill.add(batch, chosen, None if (kept == 1).all() else weights)
        yield from self._rest_of(refill, has_dropped=has_dropped)

    @staticmethod
    def _rest_of(refill: Refill, *, has_dropped: bool) -> Iterator[Batch]:
        """Yield the samples that fill no batch as a smaller one, which counts less: each sample counts as others do."""
        for batch in refill.rest():
            share = batch.num_samples / refill.size
            yield weighted(batch, np.full(batch.num_samples, share)) if has_dropped else batch

    def _weights(self, rule: InputRule, batch: Batch, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(B,) float64 weights that a rule returns for a batch."""
        method = f"{OF_RULE}keep"
        rows.flags.writeable = False
        answer: object = self._run(method, -1, lambda: rule.keep(batch, rows))
        expected = f"an array of shape ({batch.num_samples},)"
        if not isinstance(answer, np.ndarray) or answer.shape != (batch.num_samples,):
            got = f"shape {answer.shape}" if isinstance(answer, np.ndarray) else type(answer).__name__
            raise self._wrong(method, -1, expected, got)
        if answer.dtype.kind not in "fiub":
            raise self._wrong(method, -1, "numbers", f"dtype {answer.dtype}")
        weights = answer.astype(np.float64, copy=False)
        if weights.size and not 0 <= weights.min() <= weights.max() < np.inf:  # also if one is NaN
            bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
            got = f"{weights[bad[0]]} for sample {bad[0]}"
            raise self._wrong(method, -1, "finite weights of at least 0", got)
        return weights

    def _check_samples(self, inputs: "_Source", num_samples: int) -> None:
        """Check that all samples were yielded: no report would show those that a policy drops."""
        num_read = inputs.num_samples
        unread = self._run("arrange", -1, lambda: next(inputs, None)) is not None
        if unread or num_samples != num_read:
            rest = " and did not read the rest" if unread else ""
            raise PolicyError(
                f"{self._owner('arrange')}.arrange: expected every sample once, got {num_samples} of the {num_read} "
                f"samples that it has read{rest}. To drop inputs, carry an InputRule, so that reports show it. Run "
                "`adaptive-train policies check` on it."
            )

    # --- reported attributes ---------------------------------------------------------------------------------

    def reported(self) -> dict[str, float]:
        """Read the `reported` attributes of policy and rule. Not during a look-ahead.

        Raises:
            PolicyError: if one is missing or not a number.
        """
        return self.ask("reported", self._read_reported)

    def begin_batch(self) -> None:
        """Turn to the next batch to be planned; once, before all other calls for it."""
        self._reported = self._read.popleft() if self._read else None

    def reported_with_next(self) -> dict[str, float]:
        """`reported` as of the batch to be planned.

        For a policy that arranges batches, as of the moment when it yielded that batch.
        """
        if self._reported is not None:
            return self._reported
        any_names = self.policy.reported or (self.rule is not None and self.rule.reported)
        return self._run("reported", -1, self._read_reported) if any_names else {}

    def _read_reported(self) -> dict[str, float]:
        """Names of a rule are prefixed with `rule.`, because both may count the same."""
        numbers = self._attributes("policy", self.policy, self.policy.reported)
        if (rule := self.rule) is not None:
            names = (*rule.reported, *(COUNTED if isinstance(rule, InputRule) else ()))
            numbers |= {OF_RULE + name: value for name, value in self._attributes("skip rule", rule, names).items()}
        return numbers

    def _attributes(self, kind: str, owner: Policy | SkipRule, names: Sequence[str]) -> dict[str, float]:
        try:
            return {name: float(getattr(owner, name)) for name in names}
        except BaseException as error:  # an attribute may be a property, which is custom code
            if isinstance(error, KeyboardInterrupt):
                raise
            self._explained = PolicyError(
                f"{kind} {type(owner).__name__}.reported: expected names of numeric attributes, got {error_text(error)}"
            )
            raise self._explained from error

    # --- one call --------------------------------------------------------------------------------------------

    def ask(self, method: str, question: Callable[[], Answer]) -> Answer:
        """Call any other method, such as `state_dict`.

        `method` is its name, with the prefix `OF_RULE` for a rule's method.
        """
        return self._ask(method, -1, question)

    def _ask(self, method: str, step: int, question: Callable[[], Answer]) -> Answer:
        started = time.perf_counter()
        try:
            return self._run(method, step, question)
        finally:
            self.seconds += time.perf_counter() - started

    def _run(self, method: str, step: int, question: Callable[[], Answer]) -> Answer:
        """Return the answer; errors become a `PolicyError`, except those of the data source."""
        try:
            return question()
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if error is self._explained or (self._source is not None and error is self._source.error):
                raise
            raise PolicyError(f"{self._place(method, step)} raised {error_text(error)}. {CHECK}") from error

    # --- errors; `step`: number of the batch, -1: none -------------------------------------------------------

    def _wrong(self, method: str, step: int, expected: str, got: str) -> PolicyError:
        return PolicyError(f"{self._place(method, step)}: expected {expected}, got {got}. {CHECK}")

    def _place(self, method: str, step: int) -> str:
        return f"{self._owner(method)}.{method.removeprefix(OF_RULE)}" + (f" at batch {step}" if step >= 0 else "")

    def _owner(self, method: str) -> str:
        if method.startswith(OF_RULE):
            return f"skip rule {type(self.rule).__name__}"
        return f"policy {type(self.policy).__name__}"


class _Source(Iterator[Batch]):
    """Batches to be arranged or dropped; reading them does not count as the policy's.

    Attributes:
        error: raised by reading them.
        num_samples: yielded so far.
        closed: True if no more batches are yielded, so that an abandoned method reads no more.
    """

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.error: Exception | None = None
        self.num_samples = 0
        self.closed = False
        self._batches = batches

    def __next__(self) -> Batch:
        if self.closed:
            raise StopIteration
        try:
            batch = as_batch(next(self._batches))
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise
        self.num_samples += batch.num_samples
        return batch


def _count_inputs(rule: InputRule, num_samples: int, kept: NDArray[np.float64] | None = None) -> None:
    """Count a batch and the weights of its kept samples (n,) in the rule; none: all, with weight 1."""
    rule.seen_inputs += num_samples
    total, squares = rule.weight_sums
    if kept is None:
        rule.weight_sums = total + num_samples, squares + num_samples
        return
    rule.dropped_inputs += num_samples - len(kept)
    rule.weight_sums = total + float(kept.sum()), squares + float(kept @ kept)
