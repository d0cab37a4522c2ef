"""The device that is timed: a GPU, or the CPU for rehearsals.

With `cpu-torch` the device tier runs the GPU's code on the CPU; clocks are the host's and waiting is a no-op. So
the tests walk through all of `benchmarks.gpu` on a machine without a GPU.
"""

import math
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from adaptive.system import available_bytes
from benchmarks import harness

TierDevice = Literal["cuda", "cpu-torch"]
NO_GPU = "torch finds no CUDA device here: nothing was checked and nothing was timed"
LINK = ("Memcpy HtoD", "Memcpy DtoH", "copy_kernel")  # names of copies between host and device, in a profile
CACHE_BYTES = 64 << 20  # more than the caches of a GPU hold
SLEEP_CYCLES = 2_000_000  # about a millisecond
MOST_SLEEP_CYCLES = 64 * SLEEP_CYCLES
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy")  # calls in which the host waits


@dataclass(frozen=True)
class Work:
    """Work on the device, as a profiler saw it."""

    kernels: int  # kernels, copies and fills
    busy_ms: float  # in which the device did any of them but copies over the link
    host_waits: int  # calls in which a host thread waited for the device
    link_ms: float


class Accelerator:
    """A device with its clock. `tier` is a value of `TierConfig.device`."""

    def __init__(self, tier: TierDevice) -> None:
        self.tier = tier
        self.is_gpu = tier == "cuda"
        self.device = torch.device("cuda" if self.is_gpu else "cpu")
        self._cache: Tensor | None = None

    def synchronize(self) -> None:
        """Wait until the device has done all queued work."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def mark(self) -> Any:
        """A point in the work of the current stream."""
        if not self.is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def milliseconds(self, first: Any, last: Any) -> float:
        """Between two marks; call after `synchronize`."""
        return float(first.elapsed_time(last) if self.is_gpu else (last - first) * 1e3)

    def times_ms(self, work: Callable[[], object], *, rounds: int, warm_up: int = 2) -> list[float]:
        """Return the stream's time for each call of `work`, with its data not in caches.

        The stream sleeps until the host has launched all of the work: otherwise launches would be timed, not kernels.
        """
        pairs: list[tuple[Any, Any]] = []
        cycles = SLEEP_CYCLES
        while len(pairs) < warm_up + rounds:
            self._fill_queue(cycles)
            first = self.mark()
            work()
            last = self.mark()
            if self.is_gpu and len(pairs) >= warm_up and first.query() and cycles < MOST_SLEEP_CYCLES:
                cycles *= 2  # the device began before all was launched
            else:
                pairs.append((first, last))
        self.synchronize()
        return [self.milliseconds(*pair) for pair in pairs[warm_up:]]

    def launch_ms(self, work: Callable[[], object], *, rounds: int) -> list[float]:
        """Return the host's time to launch `work`, for each call on an idle device."""
        times = []
        for _ in range(rounds):
            self.synchronize()
            start = time.perf_counter()
            work()
            times.append((time.perf_counter() - start) * 1e3)
        self.synchronize()
        return times

    def _fill_queue(self, cycles: int) -> None:
        """Give the current stream other work that overwrites the device's caches and lasts so many cycles."""
        if not self.is_gpu:
            return
        if self._cache is None:
            self._cache = torch.empty(CACHE_BYTES, dtype=torch.uint8, device=self.device)
        self._cache.zero_()
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]

    def pinned(self, *shape: int) -> Tensor:
        """A float32 tensor in host memory that the device reaches by itself."""
        return torch.ones(shape, pin_memory=self.is_gpu)

    def free_bytes(self) -> int:
        """Device memory that can be taken."""
        if not self.is_gpu:
            return available_bytes()
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0])

    def profile(self, work: Callable[[], object]) -> Work:
        """Do the work once under torch's profiler, which slows the host."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.is_gpu:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self.synchronize()
        with torch.profiler.profile(activities=activities, acc_events=True) as seen:
            work()
            self.synchronize()
        events = seen.events() or []
        on_device = [event for event in events if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
        waits = sum(event.name in WAITS for event in events if event.device_type == DeviceType.CPU)
        spans: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for event in on_device:
            spans[event.name.startswith(LINK)].append((event.time_range.start, event.time_range.end))
        return Work(len(on_device), _covered(spans[False]) / 1e3, waits, _covered(spans[True]) / 1e3)


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of spans: kernels of several streams run at the same time."""
    total, until = 0.0, -math.inf
    for first, last in sorted(spans):
        total += max(last - max(first, until), 0.0)
        until = max(until, last)
    return total


def open_accelerator(tier: str) -> Accelerator:
    """Return the device of the name `cuda` or `cpu-torch`.

    Raises:
        SystemExit: for any other name, and for `cuda` where torch finds none.
    """
    if tier == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit(f"{NO_GPU}. torch {torch.__version__} is built for {built_for()}.")
        return Accelerator("cuda")
    if tier == "cpu-torch":
        return Accelerator("cpu-torch")
    raise SystemExit(f"expected device=cuda, or cpu-torch for a rehearsal, got {tier}")


def built_for() -> str:
    """The CUDA version of torch's build, in words."""
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU only"


def describe(tier: str) -> str:
    """Return host, versions and GPU as text, from nvidia-smi: no context is made on the GPU."""
    return f"{harness.hardware()}. {_describe_gpu() if tier == 'cuda' else 'A rehearsal on the CPU: no GPU numbers'}"


def _describe_gpu() -> str:
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader", "--id=0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        name, memory, driver = answer.stdout.strip().split(", ")
    except (OSError, subprocess.SubprocessError, ValueError):
        return f"GPU: nvidia-smi does not answer; torch is built for {built_for()}"
    return f"GPU: {name}, {memory}, driver {driver}; torch is built for {built_for()}"
