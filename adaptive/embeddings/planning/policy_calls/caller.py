"""`PolicyCaller`: asks the policy and checks the answers, in one place, before any row moves.

A policy's valid answer changes speed only; what a skip rule's changes is in the report. An invalid answer, or none in
time, stops training with a `PolicyError` that names policy, method and batch; rows and slots are then as they were.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.embeddings.planning.policy_calls.errors import OF_RULE, PolicyErrors
from adaptive.embeddings.planning.policy_calls.numbers import PolicyNumbers
from adaptive.embeddings.planning.policy_calls.source import PolicySource
from adaptive.embeddings.planning.policy_calls.thread import Overdue, PolicyThread, Raised, is_users
from adaptive.embeddings.planning.row_stats import read_only
from adaptive.errors import PolicyError
from adaptive.kernels.planning.selection import ORDERS
from adaptive.policy import Policy, RowStats, SkipRule, TierView, arranges, drops_inputs, order_of

Answer = TypeVar("Answer")
RULE_ARRANGE: Final = OF_RULE + "arrange"  # for errors, beside the policy's `arrange`
_DONE: Final = object()


class PolicyCaller:
    """Calls the methods of one policy; checks their answers and limits their time.

    Args:
        policy: to be asked.
        timeout: seconds that a method may take inside `listening`; 0: as long as it likes, without a thread.
    """

    def __init__(self, policy: Policy, timeout: float = 0.0) -> None:
        self.policy = policy
        self.seconds = 0.0
        self._timeout = timeout
        self._thread: PolicyThread | None = None
        self._stuck: PolicyThread | None = None  # was left behind
        self._told: BaseException | None = None  # the latest error that says whose it is
        self._source: PolicySource | None = None  # of the batches that are arranged
        self._errors = PolicyErrors(policy)
        self._numbers = PolicyNumbers(policy)

    @property
    def rule(self) -> SkipRule | None:
        """The skip rule that the policy carries."""
        return self.policy.rule

    @property
    def watches_movement(self) -> bool:
        """True if how far rows move is measured."""
        return self.rule is not None and self.rule.watches

    @property
    def defers(self) -> bool:
        """True if gradients may wait in sums."""
        return self.rule is not None and self.rule.at_most > 1

    @property
    def skips(self) -> bool:
        """True if rows must be watched: the rule asks about them, or their gradients may wait."""
        return self.defers or (self.rule is not None and self.rule.asks)

    @property
    def leaves_out(self) -> bool:
        """True if updates may be lost: those of rows that the rule answers with 0."""
        return self.rule is not None and self.rule.leaves_out

    @property
    def order(self) -> int | None:
        """The order of `selection.ORDERS` in which rows leave, or None: `score` is asked.

        Raises:
            PolicyError: if the policy names columns in which rows cannot be ordered.
        """
        columns = tuple(order_of(self.policy))
        if columns and columns not in ORDERS:
            known = ", ".join(map(str, ORDERS))
            raise PolicyError(f"policy {self._name}.order is {columns}; it must be () or one of {known}.")
        return ORDERS.get(columns)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, the policy's methods run in a thread of its own and are waited for no longer than the timeout.

        Raises:
            PolicyError: if a method that was given up earlier is still running: they run one at a time.
        """
        if self._stuck is not None and self._stuck.is_stuck:
            raise PolicyError(f"policy {self._name}: a method that was given up still runs; make another instance.")
        if self._timeout == 0 or self._thread is not None:
            yield
            return
        self._thread = thread = PolicyThread(self._timeout)
        try:
            yield
        finally:
            self._thread = None
            thread.close()
            self._stuck = thread if thread.is_stuck else None

    def score(self, stats: RowStats) -> NDArray[np.float64]:
        """(n,) float64 scores without NaN."""
        answer = self._ask("score", stats.step, lambda: self.policy.score(read_only(stats)))
        array = self._array("score", stats, answer)
        if array.dtype.kind not in "fiub":
            raise self._errors.wrong("score", stats.step, f"numbers, found dtype {array.dtype}")
        if array.dtype.kind == "f" and len(bad := np.flatnonzero(np.isnan(array))):
            raise self._errors.wrong(
                "score", stats.step, f"no NaN, found {len(bad)}, the first for row {stats.rows[bad[0]]}"
            )
        scores: NDArray[np.float64] = array.astype(np.float64)
        return scores

    def visits(self, stats: RowStats) -> NDArray[np.int64]:
        """(n,) the rule's answers: visits per update, at most `rule.at_most`; 0, left out, as far as a guard allows."""
        rule = self.rule
        assert rule is not None
        answer = self._ask("visits", stats.step, lambda: rule.visits(read_only(stats)))
        array = self._array("visits", stats, answer)
        if array.dtype.kind not in "iu":
            raise self._errors.wrong("visits", stats.step, f"whole numbers, found dtype {array.dtype}")
        least = 0 if rule.leaves_out else 1
        if len(bad := np.flatnonzero(array < least)):
            found = f"{array[bad[0]]} for row {stats.rows[bad[0]]}"
            hint = "" if least == 0 else " (a rule that leaves updates out says so by leaves_out = True)"
            raise self._errors.wrong("visits", stats.step, f"numbers of at least {least}, found {found}{hint}")
        checked: NDArray[np.int64] = np.minimum(array.astype(np.int64), rule.at_most)
        return np.where((checked == 0) & ~rule.allows(stats.rows), 1, checked)

    def tell(self, method: str, number: int, rows: NDArray[np.int64], *more: object) -> None:
        """Tell a policy that follows accesses of rows (n,): by `looked_up`, `left` or `came`, for batch `number`."""
        rows.flags.writeable = False
        answer = self._ask(method, number, lambda: getattr(self.policy, method)(number, rows, *more))
        if answer is not None:
            raise self._errors.wrong(method, number, f"nothing, found {type(answer).__name__}")

    def begin(self, optimizer: str) -> None:
        """Tell the rule which optimizer updates the rows."""
        if (rule := self.rule) is not None:
            self.ask("begin", lambda: rule.begin(optimizer))

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Generator[Batch, None, None]:
        """The policy's batches, each checked to be one."""
        is_arranged = arranges(self.policy)
        self._numbers.begin(kept=is_arranged)
        if not is_arranged:
            for batch in batches:  # noqa: UP028 (`yield from` would close the caller's iterator with this one)
                yield batch
            return
        source = self._source = PolicySource(batches, self._thread)
        try:
            yield from self._arranged(source, view)
        finally:
            source.closed = True

    def _arranged(self, source: PolicySource, view: TierView) -> Iterator[Batch]:
        policy, rule = self.policy, self.rule
        kept: Iterator[Batch] = source
        if rule is not None and rule.drops_inputs:
            kept = self._kept(rule, source, view)
        arranged = self._ask("arrange", -1, lambda: iter(policy.arrange(kept, view)))
        num_samples = 0
        while True:
            batch, reported = self._run("arrange", -1, lambda: (next(arranged, _DONE), self._numbers.now()))
            if batch is _DONE:
                break
            if not isinstance(batch, Batch):
                raise self._errors.wrong("arrange", -1, f"batches, found {type(batch).__name__}")
            num_samples += batch.num_samples
            self._numbers.keep(reported)
            yield batch
        if not drops_inputs(policy):
            self._check_samples(source, num_samples)

    def _kept(self, rule: SkipRule, source: PolicySource, view: TierView) -> Iterator[Batch]:
        """The batches that a rule leaves, for the policy to arrange; in the policy's thread."""
        kept: Iterator[object] | None = None
        while True:
            try:
                kept = kept or iter(rule.arrange(source, view))
                batch = next(kept, _DONE)
            except BaseException as error:
                if is_users(error) or error is source.error:
                    raise
                self._told = self._errors.raised(RULE_ARRANGE, -1, error)
                raise self._told from error
            if batch is _DONE:
                return
            if not isinstance(batch, Batch):
                self._told = self._errors.wrong(RULE_ARRANGE, -1, f"batches, found {type(batch).__name__}")
                raise self._told
            yield batch

    def _check_samples(self, source: PolicySource, num_samples: int) -> None:
        """Check that all samples came back: no report would show those that a policy left out."""
        given = source.num_samples
        unread = next(source, None) is not None
        if unread or num_samples != given:
            found = f"{num_samples} of the {given} samples it was given"
            rest = ", and did not ask for the rest" if unread else ""
            raise PolicyError(
                f"policy {self._name}.arrange gave {found}{rest}. A policy gives every sample once. To leave "
                f"inputs out, carry a skip rule with drops_inputs = True, so that reports show it. "
                f"Run `adaptive-train policies check` on it."
            )

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        with self.listening():
            self._ask("calibrate", -1, lambda: self.policy.calibrate(sample, view))

    def reported(self) -> dict[str, float]:
        """What the policy, and the skip rule beside it, want shown. Not while batches are looked ahead.

        Raises:
            PolicyError: if one names an attribute that is not there, or no number.
        """
        return self.ask("reported", self._numbers.now)

    def reported_with_next(self) -> dict[str, float]:
        """`reported` as of the next batch to be planned: when the policy gave it, if it arranges batches. Called once
        for each batch, by the look-ahead."""
        if self._numbers.are_kept:
            return self._numbers.take_next()
        return {} if self._numbers.are_none else self._run("reported", -1, self._numbers.now)

    def observe(self, number: int, loss: float) -> None:
        """Tell the policy of a loss, unless it has been given up."""
        if self._thread is None or not self._thread.is_stuck:
            self._ask("observe", number, lambda: self.policy.observe(number, loss))

    def ask(self, method: str, question: Callable[[], Answer]) -> Answer:
        """Ask for something else, such as `state_dict`, in the time allowed; a rule's methods begin with `OF_RULE`."""
        with self.listening():
            return self._ask(method, -1, question)

    def _ask(self, method: str, step: int, question: Callable[[], Answer]) -> Answer:
        started = time.perf_counter()
        try:
            return self._run(method, step, question)
        finally:
            self.seconds += time.perf_counter() - started

    def _run(self, method: str, step: int, question: Callable[[], Answer]) -> Answer:
        """The answer. Whatever a policy raises becomes a `PolicyError`; what its source of batches raises does not."""
        error: BaseException
        try:
            return question() if self._thread is None else self._thread.ask(question)
        except Overdue:
            raise self._errors.overdue(method, step, self._timeout) from None
        except Raised as found:
            error = found.error
        except KeyboardInterrupt:
            raise  # the user's: a policy's own comes as `Raised`, where it has a thread
        except BaseException as found:
            error = found
        told = (self._told, self._numbers.error, None if self._source is None else self._source.error)
        if any(error is one for one in told):
            raise error
        raise self._errors.raised(method, step, error) from error

    def _array(self, method: str, stats: RowStats, answer: object) -> NDArray[Any]:
        if not isinstance(answer, np.ndarray) or answer.shape != (len(stats),):
            found = f"shape {answer.shape}" if isinstance(answer, np.ndarray) else type(answer).__name__
            raise self._errors.wrong(method, stats.step, f"an array of shape ({len(stats)},), found {found}")
        return answer

    @property
    def _name(self) -> str:
        return type(self.policy).__name__
