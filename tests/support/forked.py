"""Runs in separate processes that can be killed by the hundred: forked by a nursery, which has run such runs, so
that what takes seconds at a start, imports and loading compiled kernels, is done."""

import faulthandler
import itertools
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from adaptive.__main__ import end_at_once
from adaptive.config import TrainConfig

PATIENCE = 300.0  # seconds after which a run hangs
NEWBORN, READY, ENDED, DONE = range(4)  # what the nursery and its children say


class Nursery:
    """A process that forks children, each with all that it has loaded; to be closed."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_nurse, args=(theirs,))
        self._process.start()
        theirs.close()
        self._tags = itertools.count()
        self._news: dict[tuple[int, int], Any] = {}

    def close(self) -> None:
        self._line.close()
        self._process.join(PATIENCE)
        self._process.kill()

    def here(self, function: Callable[..., None], *arguments: Any) -> float:
        """The function in the nursery itself: what it loads, later children have. Seconds that it took."""
        tag = next(self._tags)
        self._line.send((tag, False, function, arguments))
        seconds, error = self.heard(tag, DONE)
        assert not error, error
        return float(seconds)

    def start(self, function: Callable[..., None], *arguments: Any) -> "Child":
        """A child that does this and ends; it has begun when this returns."""
        tag = next(self._tags)
        self._line.send((tag, True, function, arguments))
        child = Child(self, tag, self.heard(tag, NEWBORN))
        self.heard(tag, READY)
        return child

    def heard(self, tag: int, what: int, seconds: float = PATIENCE) -> Any:
        """Return a message about this child, after waiting for at most so long; None: there is none."""
        until = time.monotonic() + seconds
        while (tag, what) not in self._news:
            if not self._line.poll(max(until - time.monotonic(), 0)):
                return None
            teller, about, found = self._line.recv()
            self._news[teller, about] = found
        return self._news[tag, what]


class Child:
    """A process made by a nursery."""

    def __init__(self, nursery: Nursery, tag: int, pid: int) -> None:
        self._nursery, self._tag, self.pid = nursery, tag, pid

    def ends_within(self, seconds: float) -> bool:
        return self._nursery.heard(self._tag, ENDED, seconds) is not None

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(self.pid, number)

    def ended(self, seconds: float = PATIENCE) -> int:
        """Its exit code, negative for the signal that ended it."""
        if not self.ends_within(seconds):
            self.send(signal.SIGUSR1)  # its stack goes into its log
            self.ends_within(2)
            self.send(signal.SIGKILL)
            raise AssertionError(f"it hangs: no end for {seconds} s")
        return int(os.waitstatus_to_exitcode(self._nursery.heard(self._tag, ENDED)))


def _nurse(line: Connection) -> None:
    """In the nursery: do what is asked for. No thread may be left in it, since none would be in its children."""
    import numba
    import torch

    torch.set_num_threads(1)
    numba.set_num_threads(1)
    while True:
        try:
            tag, forks, function, arguments = line.recv()
        except (EOFError, KeyboardInterrupt):
            return
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if forks:
            if os.fork() == 0:
                _midwife(line, tag, function, arguments)
            continue
        begun, error = time.monotonic(), ""
        try:
            function(*arguments)
        except BaseException as found:
            error = f"{type(found).__name__}: {found}"
        line.send((tag, DONE, (time.monotonic() - begun, error)))


def _midwife(line: Connection, tag: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Between the nursery and a child, to wait for it. Also, GNU OpenMP refuses to work in a direct child of a process
    that has used it, for its threads would be lost; with one thread there are none."""
    pid = os.fork()
    if pid == 0:
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # as `adaptive.__main__` does at first
                signal.signal(number, end_at_once)
            os.setpgid(0, 0)
            line.send((tag, READY, True))
            line.close()
            function(*arguments)
        finally:
            os._exit(99)  # not reached by what ends by itself
    line.send((tag, NEWBORN, pid))
    line.send((tag, ENDED, os.waitpid(pid, 0)[1]))
    os._exit(0)


def train(out: str, settings: dict[str, Any], resume: bool, log: str) -> None:
    """Train or resume a run of the toy data."""
    import pytest

    from adaptive.training.runs import resume_run, train_run
    from support.toy_runs import ToyData, open_toy_data

    with pytest.MonkeyPatch.context() as patch, open(log, "a") as stream:
        open_toy_data(patch, ToyData())
        if resume:
            resume_run(out, stream=stream)
        else:
            train_run(TrainConfig.model_validate({**settings, "out": out}), stream=stream)


def trained(out: str, settings: dict[str, Any], resume: bool, log: str) -> None:
    """In a child: train or resume as the command line does, and exit as it does."""
    exit_as_command(lambda: train(out, settings, resume, "/dev/stderr"), log)


def exit_as_command(action: Callable[[], object], log: str) -> None:
    import torch

    from adaptive.cli.app import _terminable, _verdict

    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.register(signal.SIGUSR1, file=2)
    torch.set_num_threads(1)
    code, stopped = 0, list[int]()
    try:
        with _terminable(stopped):
            action()
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        code, message = (stopped[0], "stopped") if stopped else _verdict(error)
        with suppress(OSError):  # files may be limited, and so the log
            print(message, file=sys.stderr)
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


def run_and_hit(
    nursery: Nursery, out: Path, settings: dict[str, Any], *, resume: bool, hits: list[tuple[float, int]]
) -> int:
    """Train, or resume, and send signals after so many seconds each; the exit code, negative for the signal."""
    child = nursery.start(trained, str(out), settings, resume, str(out.with_suffix(".log")))
    begun = time.monotonic()
    for after, number in hits:
        if child.ends_within(max(begun + after - time.monotonic(), 0)):
            break
        child.send(number)
    return child.ended()


SIGNALS: list[Callable[[float], list[tuple[float, int]]]] = [
    lambda at: [(at, signal.SIGKILL)],
    lambda at: [(at, signal.SIGKILL)],
    lambda at: [(at, signal.SIGTERM)],
    lambda at: [(at, signal.SIGINT)],
    lambda at: [(at, signal.SIGHUP)],
    lambda at: [(at, signal.SIGTERM), (at + 0.02, signal.SIGTERM)],
    lambda at: [(at, signal.SIGINT), (at + 0.005, signal.SIGKILL)],
]
