"""`PolicyThread`: a policy's methods run in a thread of their own, so that one that does not return can be reported.

Python cannot end a thread. One that is stuck is left behind, the only thread this project does not join: it is a
daemon, so it does not keep the process from ending, and it holds nothing but the policy and read-only arrays.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TypeVar, cast

from adaptive.system import start_thread

Answer = TypeVar("Answer")
Question = Callable[[], object]
LOOK_SECONDS = 1.0  # between two looks whether the thread is alive
JOIN_SECONDS = 5.0  # for a question that was given up halfway, as when the user interrupts


class Overdue(Exception):  # noqa: N818 (becomes a PolicyError where policy and method are known)
    """There is no answer within the time allowed."""


class Raised(Exception):  # noqa: N818 (becomes a PolicyError where policy and method are known)
    """A method raised what is no `Exception`, such as `KeyboardInterrupt`, and must not pass for the user's."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def is_users(error: BaseException) -> bool:
    """Whether it may be the user's Ctrl-C, which comes in the main thread; elsewhere it is a policy's own."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


class PolicyThread:
    """A thread that calls a policy's methods (*questions*) one at a time, each within a time limit.

    Args:
        seconds: allowed for an answer; time spent in `elsewhere` does not count.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._questions: SimpleQueue[tuple[int, Question] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[int, object, BaseException | None]] = SimpleQueue()
        self._asked = self._answered = 0
        self._since = 0.0
        self._away = False
        self._thread = threading.Thread(target=self._run, name="adaptive-policy", daemon=True)
        start_thread(self._thread)

    @property
    def is_stuck(self) -> bool:
        """A question has no answer yet."""
        return self._asked > self._answered

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """The answer to a question; raises what it raises.

        Raises:
            Overdue: if it takes too long.
            Raised: if it raises what is neither an `Exception` nor a `SystemExit`.
            MemoryError: if the thread has ended, which it does only if there is no memory left to answer.
        """
        assert not self.is_stuck
        self._asked += 1
        self._since = time.monotonic()
        self._questions.put((self._asked, question))
        answer, error = self._wait()
        if error is not None:
            raise error if isinstance(error, Exception | SystemExit) else Raised(error)
        return cast(Answer, answer)

    def _wait(self) -> tuple[object, BaseException | None]:
        while True:
            away = self._away  # read before the time from which it counts
            left = self._since + self._seconds - time.monotonic()
            if left <= 0 and not away:
                raise Overdue
            alive = self._thread.is_alive()  # asked before looking for its answer
            try:
                number, answer, error = self._answers.get(timeout=LOOK_SECONDS if away else min(left, LOOK_SECONDS))
            except Empty:
                if not alive:
                    raise MemoryError("the policy's thread has ended") from None
                continue
            if number == self._asked:  # or else it was given up
                return answer, error

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Called inside a question: time spent here does not count, and the limit begins anew after it."""
        self._away = True
        try:
            yield
        finally:
            self._since, self._away = time.monotonic(), False

    def close(self) -> None:
        """End the thread and wait for it; a stuck one is waited for a few seconds."""
        self._questions.put(None)
        self._thread.join(min(self._seconds, JOIN_SECONDS) if self.is_stuck else None)

    def _run(self) -> None:
        while (asked := self._questions.get()) is not None:
            number, question = asked
            answer: object = None
            error: BaseException | None = None
            try:
                answer = question()
            except BaseException as found:  # raised in the thread that asked
                error = found
            self._answered = number
            self._answers.put((number, answer, error))
            del asked, question, answer, error  # they may hold the data source, which is closed when nothing holds it
