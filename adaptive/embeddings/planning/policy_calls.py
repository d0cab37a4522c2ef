"""`PolicyCaller`: calls a policy and the skip rule that it carries, and checks the answers before any row moves.

A policy's valid answer changes speed only; what a skip rule's changes is in the report. An invalid answer, or none in
time, stops training with a `PolicyError` that names policy, method and batch; rows and slots are then as they were.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, as_batch
from adaptive.embeddings.planning.policy_thread import Overdue, PolicyThread, Raised, is_users
from adaptive.embeddings.planning.row_stats import read_only
from adaptive.errors import PolicyError, error_text
from adaptive.kernels.planning.selection import ORDERS
from adaptive.policy import Policy, RowStats, SkipRule, TierView, arranges, order_of

Answer = TypeVar("Answer")
OF_RULE: Final = "rule."  # before the name of a method of the skip rule
CHECK: Final = "Nothing was moved; run `adaptive-train policies check` on it."
_DONE: Final = object()


class PolicyCaller:
    """Calls the methods of one policy and its rule; checks their answers and limits their time.

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
        self._explained: BaseException | None = None  # the latest error that says whose it is
        self._source: _Source | None = None  # of the batches that are arranged
        self._reported: deque[dict[str, float]] | None = None  # with each arranged batch that is to be planned

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
            choices = ", ".join(map(str, ORDERS))
            raise PolicyError(f"{self._owner('order')}.order is {columns}; it must be () or one of {choices}.")
        return ORDERS.get(columns)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, the policy's methods run in a thread of its own and are waited for no longer than the timeout.

        Raises:
            PolicyError: if a method that was given up earlier is still running: they run one at a time.
        """
        if self._stuck is not None and self._stuck.is_stuck:
            raise PolicyError(f"{self._owner('')}: a method that was given up still runs; make another instance.")
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

    # --- questions about rows --------------------------------------------------------------------------------

    def score(self, stats: RowStats) -> NDArray[np.float64]:
        """(n,) float64 scores without NaN."""
        scores = self._array("score", stats, self.policy.score)
        if scores.dtype.kind not in "fiub":
            raise self._wrong("score", stats.step, f"numbers, found dtype {scores.dtype}")
        if scores.dtype.kind == "f" and len(bad := np.flatnonzero(np.isnan(scores))):
            needed = f"no NaN, found {len(bad)}, the first for row {stats.rows[bad[0]]}"
            raise self._wrong("score", stats.step, needed)
        return scores.astype(np.float64)

    def visits(self, stats: RowStats) -> NDArray[np.int64]:
        """(n,) the rule's answers: visits per update, at most `rule.at_most`; 0, left out, as far as a guard allows."""
        rule, method = self.rule, f"{OF_RULE}visits"
        assert rule is not None
        answer = self._array(method, stats, rule.visits)
        if answer.dtype.kind not in "iu":
            raise self._wrong(method, stats.step, f"whole numbers, found dtype {answer.dtype}")
        least = 0 if rule.leaves_out else 1
        if len(bad := np.flatnonzero(answer < least)):
            needed = f"numbers of at least {least}, found {answer[bad[0]]} for row {stats.rows[bad[0]]}"
            hint = "" if least == 0 else " (a rule that leaves updates out says so by leaves_out = True)"
            raise self._wrong(method, stats.step, needed + hint)
        visits: NDArray[np.int64] = np.minimum(answer.astype(np.int64), rule.at_most)
        return np.where((visits == 0) & ~rule.allows(stats.rows), 1, visits)

    def _array(self, method: str, stats: RowStats, ask: Callable[[RowStats], NDArray[Any]]) -> NDArray[Any]:
        """(n,) the answer about these rows."""
        answer: object = self._ask(method, stats.step, lambda: ask(read_only(stats)))
        if not isinstance(answer, np.ndarray) or answer.shape != (len(stats),):
            got = f"shape {answer.shape}" if isinstance(answer, np.ndarray) else type(answer).__name__
            raise self._wrong(method, stats.step, f"an array of shape ({len(stats)},), found {got}")
        return answer

    # --- what is passed on to them ---------------------------------------------------------------------------

    def tell(self, method: str, number: int, rows: NDArray[np.int64], *more: object) -> None:
        """Tell a policy that follows accesses of rows (n,): by `looked_up`, `left` or `came`, for batch `number`."""
        rows.flags.writeable = False
        answer = self._ask(method, number, lambda: getattr(self.policy, method)(number, rows, *more))
        if answer is not None:
            raise self._wrong(method, number, f"nothing, found {type(answer).__name__}")

    def begin(self, optimizer: str) -> None:
        """Tell the rule which optimizer updates the rows."""
        if (rule := self.rule) is not None:
            self.ask(f"{OF_RULE}begin", lambda: rule.begin(optimizer))

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        self.ask("calibrate", lambda: self.policy.calibrate(sample, view))

    def observe(self, number: int, loss: float) -> None:
        """Tell the policy of a loss, unless it has been given up."""
        if self._thread is None or not self._thread.is_stuck:
            self._ask("observe", number, lambda: self.policy.observe(number, loss))

    # --- batches ---------------------------------------------------------------------------------------------

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Generator[Batch, None, None]:
        """The policy's batches, each checked to be one."""
        if not arranges(self.policy):
            self._reported = None
            for batch in batches:  # noqa: UP028 (`yield from` would close the caller's iterator with this one)
                yield batch
            return
        self._reported = deque()
        source = self._source = _Source(batches, self._thread)
        try:
            yield from self._arranged(source, view)
        finally:
            source.closed = True

    def _arranged(self, source: "_Source", view: TierView) -> Iterator[Batch]:
        policy, rule = self.policy, self.rule
        kept = source
        if rule is not None and rule.drops_inputs:
            kept = _Source(self._kept(rule, source, view), None)
        arranged = self._ask("arrange", -1, lambda: iter(policy.arrange(kept, view)))
        num_samples = 0
        while True:
            batch, reported = self._run("arrange", -1, lambda: (next(arranged, _DONE), self._reported_now()))
            if batch is _DONE:
                break
            if not isinstance(batch, Batch):
                raise self._wrong("arrange", -1, f"batches, found {type(batch).__name__}")
            num_samples += batch.num_samples
            assert self._reported is not None
            self._reported.append(reported)
            yield batch
        self._check_samples(kept, num_samples)

    def _kept(self, rule: SkipRule, source: "_Source", view: TierView) -> Iterator[Batch]:
        """The batches that a rule leaves, for the policy to arrange; in the policy's thread."""
        method = f"{OF_RULE}arrange"
        kept: Iterator[object] | None = None
        while True:
            try:
                kept = kept or iter(rule.arrange(source, view))
                batch = next(kept, _DONE)
            except BaseException as error:
                if is_users(error) or error is source.error:
                    raise
                self._explained = self._raised(method, -1, error)
                raise self._explained from error
            if batch is _DONE:
                return
            if not isinstance(batch, Batch):
                self._explained = self._wrong(method, -1, f"batches, found {type(batch).__name__}")
                raise self._explained
            yield batch

    def _check_samples(self, kept: "_Source", num_samples: int) -> None:
        """Check that all samples came back: no report would show those that a policy left out."""
        num_read = kept.num_samples
        unread = self._run("arrange", -1, lambda: next(kept, None)) is not None
        if unread or num_samples != num_read:
            rest = ", and did not ask for the rest" if unread else ""
            raise PolicyError(
                f"{self._owner('arrange')}.arrange gave {num_samples} of the {num_read} samples it was given{rest}. A "
                f"policy gives every sample once. To leave inputs out, carry a skip rule with drops_inputs = True, so "
                f"that reports show it. Run `adaptive-train policies check` on it."
            )

    # --- what they report ------------------------------------------------------------------------------------

    def reported(self) -> dict[str, float]:
        """What the policy and its skip rule want shown. Not while batches are looked ahead.

        Raises:
            PolicyError: if one names an attribute that is not there, or no number.
        """
        return self.ask("reported", self._reported_now)

    def reported_with_next(self) -> dict[str, float]:
        """`reported` as of the next batch to be planned: when the policy gave it, if it arranges batches. Called once
        for each batch, by the look-ahead."""
        if self._reported is not None:
            return self._reported.popleft()
        wanted = self.policy.reported or (self.rule is not None and self.rule.reported)
        return self._run("reported", -1, self._reported_now) if wanted else {}

    def _reported_now(self) -> dict[str, float]:
        """A rule's names begin with the name of its class, for both may count the same."""
        numbers = self._attributes("policy", self.policy)
        if self.rule is not None:
            prefix = type(self.rule).__name__.lower()
            numbers |= {f"{prefix}.{name}": value for name, value in self._attributes("skip rule", self.rule).items()}
        return numbers

    def _attributes(self, kind: str, owner: Policy | SkipRule) -> dict[str, float]:
        try:
            return {name: float(getattr(owner, name)) for name in owner.reported}
        except BaseException as error:  # an attribute may be code of the policy's
            if is_users(error):
                raise
            self._explained = PolicyError(
                f"{kind} {type(owner).__name__}.reported must name attributes that are numbers: {error_text(error)}"
            )
            raise self._explained from error

    # --- one call --------------------------------------------------------------------------------------------

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
            text = overdue_text(self._owner(method), method.removeprefix(OF_RULE), step, self._timeout)
            raise PolicyError(text) from None
        except Raised as raised:
            error = raised.error
        except KeyboardInterrupt:
            raise  # the user's: a policy's own comes as `Raised`, where it has a thread
        except BaseException as raised:
            error = raised
        if error is self._explained or (self._source is not None and error is self._source.error):
            raise error
        raise self._raised(method, step, error) from error

    # --- errors: the batch that was asked about is `step`; -1: none ------------------------------------------

    def _raised(self, method: str, step: int, error: BaseException) -> PolicyError:
        return PolicyError(f"{self._place(method, step)} raised {error_text(error)}. {CHECK}")

    def _wrong(self, method: str, step: int, needed: str) -> PolicyError:
        return PolicyError(f"{self._place(method, step)} must return {needed}. {CHECK}")

    def _place(self, method: str, step: int) -> str:
        return f"{self._owner(method)}.{method.removeprefix(OF_RULE)}{_at(step)}"

    def _owner(self, method: str) -> str:
        if method.startswith(OF_RULE):
            return f"skip rule {type(self.rule).__name__}"
        return f"policy {type(self.policy).__name__}"


def overdue_text(owner: str, method: str, step: int, seconds: float) -> str:
    """The error about a method that was given up; `step`: the batch it was asked about, or -1."""
    return (
        f"{owner}.{method}{_at(step)} has not returned for {seconds:g} s and is left behind. "
        f"Nothing was moved; look there for a loop or a wait without an end. For a method that is only "
        f"slow raise the limit: --set tier.policy_timeout_s={10 * seconds:g} (0: none)."
    )


def _at(step: int) -> str:
    return f" at batch {step}" if step >= 0 else ""


class _Source(Iterator[Batch]):
    """The batches that a policy arranges. Their errors, and the time to read them, are not the policy's.

    Attributes:
        error: what reading them raised.
        num_samples: handed out so far.
        closed: no more are handed out: a method that was given up reads no more.
    """

    def __init__(self, batches: Iterator[Batch], thread: PolicyThread | None) -> None:
        self.error: Exception | None = None
        self.num_samples = 0
        self.closed = False
        self._batches = batches
        self._thread = thread

    def __next__(self) -> Batch:
        if self.closed:
            raise StopIteration
        try:
            with nullcontext() if self._thread is None else self._thread.elsewhere():
                batch = as_batch(next(self._batches))
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise
        self.num_samples += batch.num_samples
        return batch
