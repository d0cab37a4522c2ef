"""Host tables as memory that a GPU reads and writes itself.

Memory is pinned where it lies, page by page: torch's own pinned memory would be rounded up to the next power of two.
Pinning takes all of a table's memory at once, also of rows that were never written.
"""

import mmap
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive.embeddings.tiers.host import advise
from adaptive.system import usable_cores

Floats = NDArray[np.float32]
PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context of the process
# Pinned at once. Drivers have refused far larger stretches than they can pin in pieces: from 2 GiB on (Linux 6.11) or
# 512 GiB (r580). Only kernels use this memory, which see one address space; a copy could not cross from piece to piece.
PIECE_BYTES = 1 << 30
TOUCHED_BYTES = 64 << 20  # whose pages one thread has given at a time
MOST_THREADS = 8  # the system's own locks let more hardly help


def _ask_for_huge_pages(array: Floats) -> None:
    """For all of an array of `whole_pages`, before they are taken: 500 times fewer to pin, and to look up later."""
    below: Any = array
    while isinstance(below, np.ndarray):
        below = below.base
    if isinstance(below, memoryview) and isinstance(below.obj, mmap.mmap) and hasattr(mmap, "MADV_HUGEPAGE"):
        advise(below.obj, mmap.MADV_HUGEPAGE)


class Pinned:
    """An array of `whole_pages`, pinned until `close`; `tensor` is the same memory as the device sees it."""

    def __init__(self, array: Floats, device: torch.device) -> None:
        """Raises MemoryError if the system does not let so much memory be pinned."""
        # Of no size (the state of SGD): there is nothing to pin, but kernels want all of a table on one device.
        self.tensor = torch.from_numpy(array) if array.size else torch.empty(array.shape, device=device)
        self._close: weakref.finalize[..., Pinned] | None = None
        if device.type == "cuda" and array.size:
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            _pin(runtime, array, device)
            # The array is an argument so that its memory outlives the registration.
            self._close = weakref.finalize(self, _unpin, runtime, array)
            self.tensor = torch.as_tensor(_SeenFromDevice(array), device=device)
            assert self.tensor.data_ptr() == array.ctypes.data

    def close(self) -> None:
        """Unpin it, with no copy under way. Closing twice is fine."""
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
    """All of it, or nothing."""
    _ask_for_huge_pages(array)
    _take_pages(array)
    pieces = _pieces(array)
    for number, (address, size) in enumerate(pieces):
        code = int(runtime.cudaHostRegister(address, size, PORTABLE))
        if code:
            _let_go(runtime, pieces[:number])
            _forget_error(device)
            raise MemoryError(f"CUDA error {code} for {size:,} of {array.nbytes:,} bytes")


def _unpin(runtime: Any, array: Floats) -> None:
    _let_go(runtime, _pieces(array))


def _let_go(runtime: Any, pieces: list[tuple[int, int]]) -> None:
    for address, _ in reversed(pieces):
        runtime.cudaHostUnregister(address)  # fails harmlessly when the process is ending


def _pieces(array: Floats) -> list[tuple[int, int]]:
    """(address, bytes) of the stretches that are pinned one by one."""
    starts = range(0, array.nbytes, PIECE_BYTES)
    return [(array.ctypes.data + start, min(PIECE_BYTES, array.nbytes - start)) for start in starts]


def _take_pages(array: Floats) -> None:
    """Have the system give all pages of an array, from several threads; values stay. Pinning would do so in one."""
    every = array.reshape(-1).view(np.uint8)

    def take(start: int) -> None:
        one_each = every[start : start + TOUCHED_BYTES : mmap.PAGESIZE]
        np.bitwise_or(one_each, 0, out=one_each)  # written, and the same

    with ThreadPoolExecutor(min(MOST_THREADS, usable_cores())) as pool:
        list(pool.map(take, range(0, array.nbytes, TOUCHED_BYTES)))


def _forget_error(device: torch.device) -> None:
    """Clear an error that does not matter: CUDA would report it at the next launch of a kernel."""
    try:
        torch.empty(1, device=device).fill_(1.0)
    except RuntimeError:
        return
