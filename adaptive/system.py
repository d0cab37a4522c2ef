"""The machine and its signals: cores, threads, memory, stop requests.

`--help` loads this module, so it imports torch only inside functions.

SIGTERM, SIGINT and SIGHUP end a run after the planned steps, so that weights can be saved. A second signal ends it at
once.
"""

import _signal  # type: ignore[import-not-found]  # functions of `signal` convert to enums: 10 us a call, not 0.1
import contextlib
import gc
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

FEW_CORES = 4
BUSY_SHARE = 0.1  # share of the cores taken by other processes above which times are not reliable
START_SECONDS = 10  # within which a new thread must begin
SPINNING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # environment variables: how waiting threads of OpenMP behave

OF_A_RANK = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # environment of a rank, as torchrun sets it

STOPPED = {129: "hung up", 130: "interrupted", 143: "terminated"}  # exit codes by SIGHUP, SIGINT, SIGTERM

# Messages of libraries that allocate CUDA memory themselves: Triton, torch ("CUDA error: out of memory"), cuBLAS.
FULL = re.compile(r"CUDA\]?( error)?: out of memory|CUBLAS_STATUS_ALLOC_FAILED")


def usable_cores() -> int:
    """Number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_rank() -> bool:
    """True if this process was started as one of several ranks."""
    return all(name in os.environ for name in OF_A_RANK)


def limit_spinning() -> None:
    """Let waiting threads of OpenMP sleep soon, unless the environment decides; call it before torch is imported.

    By default they spin for milliseconds on cores that other processes need. Two runs at once on two cores read 38,000
    samples/s each by default and 119,000 with 1,000 rounds; a run alone is as fast. With 100 rounds, or with
    OMP_WAIT_POLICY=passive, a run alone loses a fifth of its speed.
    """
    if not os.environ.keys() & set(SPINNING):
        os.environ["GOMP_SPINCOUNT"] = "1000"


@contextmanager
def loading_libraries() -> Iterator[None]:
    """Pause Python's garbage collection, and never search the objects that exist afterwards: libraries keep theirs."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


class OtherWork:
    """Measures the share of core time that other processes take, from construction on."""

    def __init__(self) -> None:
        self._start = _core_times()

    def share(self) -> float | None:
        """Share of core time, 0 to 1, taken by other processes.

        Includes time taken by the host of a virtual machine (steal). None without /proc/stat, or if no time has passed.
        """
        now = _core_times()
        if now is None or self._start is None:
            return None
        busy, total, ours = (end - start for end, start in zip(now, self._start, strict=True))
        return min(max((busy - ours) / total, 0.0), 1.0) if total > 0 else None


def _core_times() -> tuple[float, float, float] | None:
    """Seconds of the usable cores so far: busy, total, and those of this process."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    except (OSError, AttributeError):  # not Linux
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    # user, nice, system, idle, iowait, irq, softirq, steal; a guest's time is in user already
    times = [[int(value) / ticks for value in line.split()[1:9]] for line in lines if line.split()[0] in names]
    total = sum(map(sum, times))
    busy = total - sum(entry[3] + entry[4] for entry in times)
    return busy, total, sum(os.times()[:4])


def release_leaked(lock: "threading.RLock") -> None:
    """Release a lock that an exception between acquiring and entering has left to this thread, which needs it no more.

    Otherwise another thread would wait for it forever.
    """
    try:
        while True:
            lock.release()
    except RuntimeError:  # this thread does not hold it
        return


class Uninterrupted:
    """A block that no signal handler of Python interrupts: a signal during it is handled right after it.

    Only the main thread runs handlers, so elsewhere the block does nothing. Blocks may be nested.
    """

    SIGNALS = (
        signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2,
        signal.SIGVTALRM, signal.SIGPROF,
    )  # fmt: skip

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._pending: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            for number in self.SIGNALS:
                handler = _signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    _signal.signal(number, self._defer)
        except BaseException:  # of a handler that was not replaced yet
            self._restore()
            raise

    def __exit__(self, *exc: object) -> None:
        handlers = dict(self._handlers)
        self._restore()
        while self._pending:
            number, frame = self._pending.pop()
            handlers[number](number, frame)

    def _defer(self, number: int, frame: FrameType | None) -> None:
        if not self._pending:
            self._pending.append((number, frame))

    def _restore(self) -> None:
        while self._handlers:
            number, handler = self._handlers.popitem()
            try:
                _signal.signal(number, handler)
            finally:  # a handler that is in place again may raise at once
                if self._handlers:
                    self._restore()


class _StartedEvent(threading.Event):
    """Replaces the event for which `Thread.start` waits without a time limit."""

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            return super().wait(timeout)
        for _ in range(START_SECONDS):  # in steps of a second: time in which the process was stopped does not count
            if super().wait(1.0):
                return True
        raise MemoryError("a new thread could not begin")


def start_thread(thread: threading.Thread) -> None:
    """Start a thread, as `Thread.start` does, with a time limit.

    Raises:
        MemoryError: if the thread does not begin within ten seconds, because no memory is left.
        RuntimeError: if no more threads can be started.
    """
    thread._started = _StartedEvent()  # type: ignore[attr-defined]
    thread.start()


def available_bytes() -> int:
    """Bytes of memory that this process can still take, by the machine and by its container."""
    return min([_of_machine(), *_of_groups(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))])


def _of_machine() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _of_groups(root: Path, membership: Path) -> Iterator[int]:
    """Bytes left in each control group (version 1 or 2) with a limit around this process."""
    with contextlib.suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            names = ("memory.max", "memory.current", "inactive_file ")
            if "memory" in controllers.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
            elif controllers:
                continue
            top = root / "memory" if controllers else root
            inside = top / place.lstrip("/")
            for folder in (inside, *(entry for entry in inside.parents if entry.is_relative_to(top))):
                with contextlib.suppress(OSError, ValueError):  # invisible from inside a container, or no limit: "max"
                    limit, used = (int((folder / name).read_text()) for name in names[:2])
                    cached = [line for line in (folder / "memory.stat").read_text().splitlines() if names[2] in line]
                    yield max(0, limit - used + sum(int(line.split()[1]) for line in cached[:1]))


def is_out_of_memory(error: BaseException) -> bool:
    """True if the error means that GPU memory is full; torch's class covers torch only."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and FULL.search(str(error)) is not None
    )


def is_hangup_heard() -> bool:
    """True if losing the terminal ends the process: not under `nohup`."""
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


class StopRequest:
    """The signal by which the run was asked to stop, if any."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def raise_exit(self) -> None:
        """End the program as the signal would: with exit code 128 + its number."""
        if self.signal is not None:
            raise SystemExit(128 + self.signal)


@contextmanager
def stop_request(request: StopRequest | None = None) -> Iterator[StopRequest]:
    """Inside, the first signal sets the request; the second one has its usual effect.

    Only the main thread gets signals: in other threads the request is never set.

    Args:
        request: the request to set; default: a new one.
    """
    request = StopRequest() if request is None else request
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if is_hangup_heard() else [])]
    handlers = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def stop(number: int, frame: FrameType | None) -> None:
        request.signal = number
        with contextlib.suppress(OSError):  # not through Python's buffers: the interrupted code may be writing to them
            os.write(2, b"\nstopping after the planned steps; press Ctrl-C or send a second signal to stop at once\n")
        restore()

    for number in handlers:
        signal.signal(number, stop)
    try:
        yield request
    finally:
        restore()
