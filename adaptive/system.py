"""The machine and its signals: usable cores and how threads wait on them, free memory, memory that ran out, requests
to stop.

It is loaded for `--help`, so it imports torch only where an error of torch's is at hand.

SIGTERM, SIGINT and SIGHUP end a run after the steps that are planned, so that weights can be saved; a second one ends
it at once.
"""

import contextlib
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from adaptive.errors import DeviceMemoryError

FEW_CORES = 4
BUSY_SHARE = 0.1  # of the cores taken by other processes, above which times are not to be trusted
START_LOOKS = 10  # seconds in which a thread begins
SHARED = 1 << 17  # items: so many are shared out among torch's threads

STOPPED = {129: "hung up", 130: "interrupted", 143: "terminated"}  # exit codes by SIGHUP, SIGINT, SIGTERM

# What libraries say that ask CUDA for memory themselves: Triton and torch ("CUDA error: out of memory"), cuBLAS.
FULL = re.compile(r"CUDA\]?( error)?: out of memory|CUBLAS_STATUS_ALLOC_FAILED")


def usable_cores() -> int:
    """Cores that this process may run on: fewer than the machine has where it is confined to some."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class OtherWork:
    """Measures how much of the usable cores other processes take, from its construction on."""

    def __init__(self) -> None:
        self._before = _core_times()

    def share(self) -> float | None:
        """Share, 0 to 1, of the usable cores that other processes or, on a virtual machine, its host (steal) took;
        None where the system does not say (no /proc/stat) or no time has passed."""
        now = _core_times()
        if now is None or self._before is None:
            return None
        busy, total, own = (after - before for after, before in zip(now, self._before, strict=True))
        return min(max((busy - own) / total, 0.0), 1.0) if total > 0 else None


def _core_times() -> tuple[float, float, float] | None:
    """Seconds so far of the usable cores: busy, in all, and of those this process with its ended children."""
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


class _Begun(threading.Event):
    """Waited for by `Thread.start` without an end, which never comes where the new thread has no memory to begin."""

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            return super().wait(timeout)
        for _ in range(START_LOOKS):  # second by second: a process that was stopped meanwhile has not waited
            if super().wait(1.0):
                return True
        raise MemoryError("a new thread could not begin")


def start_thread(thread: threading.Thread) -> None:
    """Start a thread, as its `start` does.

    Raises:
        MemoryError: if it does not begin within ten seconds, as where no memory is left.
        RuntimeError: if no more threads can be started.
    """
    thread._started = _Begun()  # type: ignore[attr-defined]
    thread.start()


def count_as_thread() -> None:
    """Have OpenMP count the calling thread among those that need a core, until it ends; where cores are few.

    Threads that share out torch's loops spin for milliseconds when they wait for each other, as long as GNU's OpenMP
    knows of no more threads than cores. It knows of those that have shared out work themselves. A thread that plans
    beside them on one of two cores would wait for one that only spins. Where there are more cores one is no loss.
    """
    import torch

    if usable_cores() <= FEW_CORES and torch.get_num_threads() > 1:
        torch.zeros(SHARED).add_(1)


def available_bytes() -> int:
    """Bytes of memory that this machine can give this process now, and its container, if it is in one, lets it take."""
    return min([_of_machine(), *_of_groups(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))])


def _of_machine() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _of_groups(root: Path, membership: Path) -> Iterator[int]:
    """What each control group (version 2, or 1) around this process that has a limit may still take."""
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
                with contextlib.suppress(OSError, ValueError):  # not there, as seen from inside; or no limit: "max"
                    limit, used = (int((folder / name).read_text()) for name in names[:2])
                    cached = [line for line in (folder / "memory.stat").read_text().splitlines() if names[2] in line]
                    yield max(0, limit - used + sum(int(line.split()[1]) for line in cached[:1]))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a GPU's memory was full, whoever found it so: torch has a class for its own allocations only."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and FULL.search(str(error)) is not None
    )


@contextmanager
def running_out(when: str) -> Iterator[None]:
    """Out of memory where nothing can be run again is an error for the user."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        cause = str(error).splitlines()[0]
        raise DeviceMemoryError(
            f"out of GPU memory {when}: {cause}. Set fewer device_rows or a larger tier.reserve, or lower batch_size"
        ) from error


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
def stop_request(request: StopRequest | None = None) -> Iterator[StopRequest]:
    """Signals set the request while inside; the second one acts as if we were not here. `request`: one to be set.

    Only a process's main thread gets signals: elsewhere the request is never set.
    """
    request = StopRequest() if request is None else request
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
        with contextlib.suppress(OSError):  # past the buffers of Python, which the interrupted code may be writing to
            os.write(2, b"\nstopping after the steps that are planned; a second signal, or Ctrl-C, ends at once\n")
        restore()

    for number in before:
        signal.signal(number, stop)
    try:
        yield request
    finally:
        restore()
