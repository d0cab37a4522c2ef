"""Host tables as memory that a GPU reads and writes itself.

Memory is pinned where it lies, page by page: torch's own pinned memory would be rounded up to the next power of two.
Pinning takes all of a table's memory at once, also of rows that were never written.
"""

import contextlib
import mmap
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32]
PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context of the process


def whole_pages(num_rows: int, width: int) -> Floats:
    """(num_rows, width) on pages of its own, which are taken when they are first written or pinned."""
    size = 4 * num_rows * width
    if not size:
        return np.empty((num_rows, width), np.float32)
    return np.frombuffer(_pages(size), np.float32).reshape(num_rows, width)


def _pages(size: int) -> mmap.mmap:
    """Private memory: shared memory, Python's default, gets no huge pages however it asks for them.

    A process that is forked does not have it: on older systems the first write of either one would move the parent's
    page away from where the GPU reads and writes.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, size)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _advise(pages, mmap.MADV_DONTFORK)
    return pages


def _advise(pages: mmap.mmap, advice: int) -> None:
    with contextlib.suppress(OSError):  # a system that knows no such thing
        pages.madvise(advice)


def _ask_for_huge_pages(array: Floats) -> None:
    """For all of an array of `whole_pages`, before they are taken: 500 times fewer to pin, and to look up later."""
    below: Any = array
    while isinstance(below, np.ndarray):
        below = below.base
    if isinstance(below, memoryview) and isinstance(below.obj, mmap.mmap) and hasattr(mmap, "MADV_HUGEPAGE"):
        _advise(below.obj, mmap.MADV_HUGEPAGE)


class Pinned:
    """An array of `whole_pages`, pinned until `close`; `tensor` is the same memory as the device sees it."""

    def __init__(self, array: Floats, device: torch.device) -> None:
        """Raises MemoryError if the system does not let so much memory be pinned."""
        self.tensor = torch.from_numpy(array)
        self._close: weakref.finalize[..., Pinned] | None = None
        if device.type == "cuda" and array.size:
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            _pin(runtime, array, device)
            # The array is an argument so that its memory outlives the registration.
            self._close = weakref.finalize(self, _unpin, runtime, array)
            self.tensor = torch.as_tensor(_SeenFromDevice(array), device=device)
            assert self.tensor.data_ptr() == array.ctypes.data

    def close(self) -> None:
        """Nothing may be copying. Closing twice is fine."""
        if self._close is not None:
            self._close()


class _SeenFromDevice:
    """Pinned memory has one address for host and device."""

    def __init__(self, array: Floats) -> None:
        self._array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self._array.shape, "typestr": "<f4", "data": (self._array.ctypes.data, False), "version": 3}


def _pin(runtime: Any, array: Floats, device: torch.device) -> None:
    _ask_for_huge_pages(array)
    code = int(runtime.cudaHostRegister(array.ctypes.data, array.nbytes, PORTABLE))
    if code:
        _forget_error(device)
        raise MemoryError(f"CUDA error {code} for {array.nbytes:,} bytes")


def _unpin(runtime: Any, array: Floats) -> None:
    runtime.cudaHostUnregister(array.ctypes.data)  # fails harmlessly when the process is ending


def _forget_error(device: torch.device) -> None:
    """CUDA keeps the error of a call for the next launch of a kernel to trip over: one that does not matter."""
    try:
        torch.empty(1, device=device).fill_(1.0)
    except RuntimeError:
        return


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
            for folder in (inside, *(one for one in inside.parents if one.is_relative_to(top))):
                with contextlib.suppress(OSError, ValueError):  # not there, as seen from inside; or no limit: "max"
                    limit, used = (int((folder / name).read_text()) for name in names[:2])
                    cached = [line for line in (folder / "memory.stat").read_text().splitlines() if names[2] in line]
                    yield max(0, limit - used + sum(int(line.split()[1]) for line in cached[:1]))
