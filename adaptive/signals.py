"""SIGTERM, SIGINT and SIGHUP end a run after its step, so that weights can be saved; a second one ends it at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def is_hangup_heard() -> bool:
    """Whether the loss of the terminal is to end us: not under `nohup`."""
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


class StopRequest:
    """Whether, and by which signal, the run was asked to stop."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def raise_exit(self) -> None:
        """End the program as the signal would have: exit code 128 + its number."""
        if self.signal is not None:
            raise SystemExit(128 + self.signal)


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Signals set the request while inside; the second one acts as if we were not here.

    Only a process's main thread gets signals: elsewhere the request is never set.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if is_hangup_heard() else [])]
    before = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, frame: FrameType | None) -> None:
        request.signal = number
        restore()

    for number in before:
        signal.signal(number, stop)
    try:
        yield request
    finally:
        restore()
