"""`PolicyCaller`: calls a policy and its skip rule and checks the answers.

A bad answer stops training with a `PolicyError` that names policy, method and batch.
Rows and slots are then unchanged.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, as_batch
from adaptive.embeddings.planning.books import ORDERS
from adaptive.embeddings.planning.row_stats import read_only
from adaptive.errors import PolicyError, error_text
from adaptive.policy import Policy, RowStats, SkipRule, TierView, arranges, order_of
from adaptive.system import release_leaked

Answer = TypeVar("Answer")
OF_RULE: Final = "rule."  # prefix of the names of a skip rule's methods
CHECK: Final = "Nothing was moved. Run `adaptive-train policies check` on it."
_DONE: Final = object()


class PolicyCaller:
    """Calls the methods of one policy and its rule, and checks the answers.

    Args:
        policy: to call.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.seconds = 0.0
        self._turn = threading.RLock()  # held during a call: batches may be arranged in one thread, planned in another
        self._explained: BaseException | None = None  # latest error that already names policy and method
        self._source: _Source | None = None  # of the batches to arrange
        self._read: deque[dict[str, float]] = deque()  # `reported` of each arranged batch that is not planned yet
        self._reported: dict[str, float] | None = None  # as of the batch to be planned, if the policy arranges batches

    @property
    def rule(self) -> SkipRule | None:
        """The policy's skip rule."""
        return self.policy.rule

    @property
    def policy_and_rule(self) -> Sequence[Policy | SkipRule]:
        """The policy, and its skip rule if it has one."""
        return [self.policy] if self.rule is None else [self.policy, self.rule]

    @property
    def defers(self) -> bool:
        """True if gradients may be accumulated."""
        return self.rule is not None and self.rule.most > 1

    @property
    def skips(self) -> bool:
        """True if rows must be watched: the rule may defer or skip updates."""
        return self.defers or self.leaves_out

    @property
    def leaves_out(self) -> bool:
        """True if updates may be lost: the rule may answer 0."""
        return self.rule is not None and self.rule.least == 0

    @cached_property
    def order(self) -> tuple[str, ...] | None:
        """Columns by which rows are evicted, one of `ORDERS`; None: by `score`.

        Read once: the books have what the order needs.

        Raises:
            PolicyError: if the policy names other columns.
        """
        columns = tuple(order_of(self.policy))
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
        """Call `looked_up`, `left`, `came` or `expired` with rows (n,) of batch `number`, if the owner has one."""
        rows.flags.writeable = False
        owner = self.rule if method.startswith(OF_RULE) else self.policy
        if owner is None:
            return
        answer = self._ask(method, number, lambda: getattr(owner, method.removeprefix(OF_RULE))(number, rows, *more))
        if answer is not None:
            raise self._wrong(method, number, "None", type(answer).__name__)

    def begin(self, optimizer: str) -> None:
        """Pass the name of the row optimizer to the rule."""
        if (rule := self.rule) is not None:
            self.ask(f"{OF_RULE}begin", lambda: rule.begin(optimizer))

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        self.ask("calibrate", lambda: self.policy.calibrate(sample, view))

    def observe(self, number: int, loss: float) -> None:
        """Pass a loss to the policy."""
        self._ask("observe", number, lambda: self.policy.observe(number, loss))

    # --- batches ---------------------------------------------------------------------------------------------

    def arrange(self, batches: Iterator[Batch], view: TierView, hashed_view: TierView) -> Generator[Batch, None, None]:
        """Yield the policy's batches, checked; `hashed_view` is for a rule that reads inputs only."""
        self._read.clear()
        if not arranges(self.policy):
            yield from batches
            return
        source = self._source = _Source(batches)
        try:
            yield from self._arranged(source, view, hashed_view)
        finally:
            source.closed = True

    def _arranged(self, source: "_Source", view: TierView, hashed_view: TierView) -> Iterator[Batch]:
        policy, rule = self.policy, self.rule
        inputs = source
        if rule is not None and rule.drops_inputs:
            of_rule = hashed_view if rule.reads_inputs_only else view
            inputs = _Source(self._without_dropped(rule, source, of_rule))
        arranged = self._ask("arrange", -1, lambda: iter(policy.arrange(inputs, view)))
        num_samples = 0
        while True:
            batch, reported = self._run("arrange", -1, lambda: (next(arranged, _DONE), self._read_reported()))
            if batch is _DONE:
                break
            if not isinstance(batch, Batch):
                raise self._wrong("arrange", -1, "batches", type(batch).__name__)
            num_samples += batch.num_samples
            self._read.append(reported)
            yield batch
        self._check_samples(inputs, num_samples)

    def _without_dropped(self, rule: SkipRule, source: "_Source", view: TierView) -> Iterator[Batch]:
        """The batches of a rule that drops inputs."""
        method = f"{OF_RULE}arrange"
        arranged: Iterator[object] | None = None
        while True:
            try:
                arranged = arranged or iter(rule.arrange(source, view))
                batch = next(arranged, _DONE)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt | GeneratorExit) or error is source.error:
                    raise
                self._explained = self._raised(method, -1, error)
                raise self._explained from error
            if batch is _DONE:
                return
            if not isinstance(batch, Batch):
                self._explained = self._wrong(method, -1, "batches", type(batch).__name__)
                raise self._explained
            yield batch

    def _check_samples(self, inputs: "_Source", num_samples: int) -> None:
        """Check that all samples were yielded: no report would show those that a policy drops."""
        num_read = inputs.num_samples
        unread = self._run("arrange", -1, lambda: next(inputs, None)) is not None
        if unread or num_samples != num_read:
            rest = " and did not read the rest" if unread else ""
            raise PolicyError(
                f"{self._owner('arrange')}.arrange: expected every sample once, got {num_samples} of the {num_read} "
                f"samples that it has read{rest}. To drop inputs, carry a skip rule with drops_inputs = True, so that "
                f"reports show it. Run `adaptive-train policies check` on it."
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
        any_names = self.policy.reported or (self.rule is not None and (self.rule.reported or self.rule.drops_inputs))
        return self._run("reported", -1, self._read_reported) if any_names else {}

    def _read_reported(self) -> dict[str, float]:
        """Names of a rule are prefixed with `rule.`, because both may count the same."""
        numbers = self._attributes("policy", self.policy, self.policy.reported)
        if (rule := self.rule) is not None:
            names = (*rule.reported, *(("seen_inputs", "dropped_inputs") if rule.drops_inputs else ()))
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

    def release_leaked(self) -> None:
        """Release the turn that an interrupted call has left to this thread, which calls nothing now."""
        release_leaked(self._turn)

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
            with self._turn:
                return question()
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if error is self._explained or (self._source is not None and error is self._source.error):
                raise
            raise self._raised(method, step, error) from error

    # --- errors; `step`: number of the batch, -1: none -------------------------------------------------------

    def _raised(self, method: str, step: int, error: BaseException) -> PolicyError:
        return PolicyError(f"{self._place(method, step)} raised {error_text(error)}. {CHECK}")

    def _wrong(self, method: str, step: int, expected: str, got: str) -> PolicyError:
        return PolicyError(f"{self._place(method, step)}: expected {expected}, got {got}. {CHECK}")

    def _place(self, method: str, step: int) -> str:
        return f"{self._owner(method)}.{method.removeprefix(OF_RULE)}{_at(step)}"

    def _owner(self, method: str) -> str:
        if method.startswith(OF_RULE):
            return f"skip rule {type(self.rule).__name__}"
        return f"policy {type(self.policy).__name__}"


def _at(step: int) -> str:
    return f" at batch {step}" if step >= 0 else ""


class _Source(Iterator[Batch]):
    """The batches for a policy to arrange; reading them does not count as the policy's.

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
