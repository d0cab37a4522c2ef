"""`Subject`: a policy under test, each of whose methods is waited for no longer than a run would wait."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.embeddings.planning.policy_calls import overdue_text
from adaptive.embeddings.planning.policy_thread import Overdue, PolicyThread
from adaptive.plugins import make_policy
from adaptive.policy import Policy, RowStats, TierView, order_of
from adaptive.studies.policy_checks.fixtures import FollowedView

Answer = TypeVar("Answer")


class BrokenError(Exception):
    """A check that found the contract broken; the message says how."""


class DoubtError(Exception):
    """Nothing is broken, but it can hardly be what its author means; the message says why."""


class HungError(BrokenError):
    """A method did not return. It is left behind in its thread, so there is nothing more to ask."""


class Subject:
    """Makes policies of one class and asks them, in a thread that ends with it.

    Args:
        cls: their class.
        options: their parameters.
        timeout: seconds that a method may take; 0: as long as it likes, without a thread.
    """

    def __init__(self, cls: type[Policy], options: Mapping[str, Any], timeout: float) -> None:
        self.cls, self.options, self.timeout = cls, options, timeout
        self._thread = PolicyThread(timeout) if timeout else None

    def __enter__(self) -> "Subject":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._thread is not None:
            self._thread.close()

    def policy(self, options: Mapping[str, Any] | None = None) -> Policy:
        """The bare policy, with its own parameters or other ones.

        Raises:
            PolicyError: if it does not take them.
            HungError: see `ask`.
        """
        given = self.options if options is None else options
        return self.ask("__init__", lambda: make_policy(self.cls, given))

    def make(self) -> "Asked":
        return Asked(self.policy(), self)

    def ask(self, method: str, question: Callable[[], Answer], step: int = -1) -> Answer:
        """The answer of a method; raises what it raises.

        Raises:
            HungError: if there is none in time.
        """
        if self._thread is None:
            return question()
        try:
            return self._thread.ask(question)
        except Overdue:
            raise HungError(overdue_text(f"policy {self.cls.__name__}", method, step, self.timeout)) from None


class Asked:
    """A policy's methods, asked by a `Subject`; what they return is not checked."""

    def __init__(self, policy: Policy, subject: Subject) -> None:
        self._policy, self._subject = policy, subject

    @property
    def order(self) -> tuple[str, ...]:
        return order_of(self._policy)

    @property
    def window(self) -> int:
        return self._policy.window

    def score(self, rows: RowStats) -> Any:
        return self._subject.ask("score", lambda: self._policy.score(rows), rows.step)

    def follow(self, number: int, rows: NDArray[np.int64], view: FollowedView) -> None:
        """A batch as a policy that follows accesses is told of it: the rows that are not there come, and of those that
        are not needed half as many leave. `view` has them then."""
        coming = rows[~view.there[rows]]
        leaving = np.setdiff1d(np.flatnonzero(view.there), rows)[: len(coming) // 2]
        for array in (rows, coming, leaving):
            array.flags.writeable = False
        policy = self._policy
        told: dict[str, Callable[[], object]] = {
            "looked_up": lambda: policy.looked_up(number, rows, view),
            "left": lambda: policy.left(number, leaving),
            "came": lambda: policy.came(number, coming),
        }
        for method, tell in told.items():
            if (answer := self._subject.ask(method, tell, number)) is not None:
                raise BrokenError(f"{method} must return nothing, found {type(answer).__name__}")
        view.there[leaving], view.there[coming] = False, True

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        self._subject.ask("calibrate", lambda: self._policy.calibrate(sample, view))

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Any]:
        """Lazily, each batch in its own time."""
        end = object()
        arranged = self._subject.ask("arrange", lambda: iter(self._policy.arrange(batches, view)))
        while (found := self._subject.ask("arrange", lambda: next(arranged, end))) is not end:
            yield found

    def state_dict(self) -> Any:
        return self._subject.ask("state_dict", self._policy.state_dict)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._subject.ask("load_state_dict", lambda: self._policy.load_state_dict(state))
