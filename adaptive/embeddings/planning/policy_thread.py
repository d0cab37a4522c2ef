"""`PolicyThread`: runs a policy's methods, so that one that hangs can be reported.

Python cannot end a thread. A stuck thread is abandoned, the only thread that this project does not join. It is a
daemon, so the process can still end, and it holds nothing but the policy and read-only arrays.
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
LOOK_SECONDS = 1.0  # between two checks that the thread is alive
JOIN_SECONDS = 5.0  # to wait for a question that was interrupted, for example by Ctrl-C


class Overdue(Exception):  # noqa: N818 (becomes a PolicyError where policy and method are known)
    """A question has no answer within the time limit."""


class Raised(Exception):  # noqa: N818 (becomes a PolicyError where policy and method are known)
    """A method raised a `BaseException`, which is not the user's Ctrl-C."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def is_users(error: BaseException) -> bool:
    """True for the user's Ctrl-C, which arrives in the main thread only."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


class PolicyThread:
    """Calls a policy's methods (*questions*) one at a time, each with a time limit.

    Args:
        seconds: time limit; time spent in `elsewhere` does not count.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._questions: SimpleQueue[tuple[int, Question] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[int, object, BaseException | None]] = SimpleQueue()
        self._num_asked = self._num_answered = 0
        self._since = 0.0
        self._away = False
        self._thread = threading.Thread(target=self._run, name="adaptive-policy", daemon=True)
        start_thread(self._thread)

    @property
    def is_stuck(self) -> bool:
        """True while a question has no answer."""
        return self._num_asked > self._num_answered

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Return the answer to a question, or raise what it raises.

        Raises:
            Overdue: if it takes too long.
            Raised: if it raises neither an `Exception` nor a `SystemExit`.
            MemoryError: if the thread has ended, because no memory was left for its answer.
        """
        assert not self.is_stuck
        self._num_asked += 1
        self._since = time.monotonic()
        self._questions.put((self._num_asked, question))
        answer, error = self._wait()
        if error is not None:
            raise error if isinstance(error, Exception | SystemExit) else Raised(error)
        return cast(Answer, answer)

    def _wait(self) -> tuple[object, BaseException | None]:
        while True:
            away = self._away  # read before `_since`, which `elsewhere` sets first
            left = self._since + self._seconds - time.monotonic()
            if left <= 0 and not away:
                raise Overdue
            alive = self._thread.is_alive()  # read before looking for the answer
            try:
                number, answer, error = self._answers.get(timeout=LOOK_SECONDS if away else min(left, LOOK_SECONDS))
            except Empty:
                if not alive:
                    raise MemoryError("the policy's thread has ended") from None
                continue
            if number == self._num_asked:  # others are answers to interrupted questions
                return answer, error

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Inside a question: time spent here does not count, and the limit starts over afterwards."""
        self._away = True
        try:
            yield
        finally:
            self._since, self._away = time.monotonic(), False

    def close(self) -> None:
        """End the thread and wait for it, or a few seconds if it is stuck."""
        self._questions.put(None)
        self._thread.join(min(self._seconds, JOIN_SECONDS) if self.is_stuck else None)

    def _run(self) -> None:
        while (item := self._questions.get()) is not None:
            number, question = item
            answer: object = None
            error: BaseException | None = None
            try:
                answer = question()
            except BaseException as raised:  # raised again in the thread that asked
                error = raised
            self._num_answered = number
            self._answers.put((number, answer, error))
            del (
                item,
                question,
                answer,
                error,
            )  # they may refer to the data source, which is closed with its last reference
