"""Host tables as memory that a GPU reads and writes itself.

Memory is pinned in place, page by page: torch's own pinned memory would be rounded up to the next power of two.
Pinning takes all of a table's memory at once, including rows that were never written.
"""

import mmap
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from adaptive.arrays import Floats
from adaptive.embeddings.tiers.host import advise
from adaptive.system import available_bytes, usable_cores

PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context of the process
# Pinned in one call. Drivers refuse long stretches that they can pin in pieces: from 2 GiB on (Linux 6.11) or 512 GiB
# (r580). Only kernels use this memory, and they see one address space; a copy could not cross from piece to piece.
PIECE_BYTES = 1 << 30
TOUCHED_BYTES = 64 << 20  # that one thread touches at a time
MOST_THREADS = 8  # more hardly help: they wait for locks of the system


def _ask_for_huge_pages(array: Floats) -> None:
    """Ask for huge pages for an array of `whole_pages`, before its pages are taken.

    There are 500 times fewer to pin, and to translate later.
    """
    below: Any = array
    while isinstance(below, np.ndarray):
        below = below.base
    if isinstance(below, memoryview) and isinstance(below.obj, mmap.mmap) and hasattr(mmap, "MADV_HUGEPAGE"):
        advise(below.obj, mmap.MADV_HUGEPAGE)


class Pinned:
    """An array of `whole_pages`, pinned until `close`; `tensor` is the device's view of it.

    Raises:
        MemoryError: if the system does not allow so much memory to be pinned.
    """

    def __init__(self, array: Floats, device: torch.device) -> None:
        # An empty array (the state of SGD) is not pinned, but kernels expect all of a table on one device.
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
        """Unpin it; no copy may be in flight. Closing twice is fine."""
        if self._close is not None:
            self._close()


class _SeenFromDevice:
    """An array for torch to view on the device: pinned memory has one address for both."""

    def __init__(self, array: Floats) -> None:
        self._array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data, kind = (self._array.ctypes.data, False), self._array.dtype.str
        return {"shape": self._array.shape, "typestr": kind, "data": data, "version": 3}


def _pin(runtime: Any, array: Floats, device: torch.device) -> None:
    """Pin all of an array, or nothing."""
    # Taking pages that the system does not have ends the process; for tables with keys it has lent any capacity.
    if array.nbytes > (available := available_bytes()):
        raise MemoryError(f"{available:,} bytes of free memory for {array.nbytes:,} bytes")
    _ask_for_huge_pages(array)
    _take_pages(array)
    pieces = _pieces(array)
    for number, (address, size) in enumerate(pieces):
        code = int(runtime.cudaHostRegister(address, size, PORTABLE))
        if code:
            _unpin_pieces(runtime, pieces[:number])
            _clear_error(device)
            raise MemoryError(f"CUDA error {code} for {size:,} of {array.nbytes:,} bytes")


def _unpin(runtime: Any, array: Floats) -> None:
    _unpin_pieces(runtime, _pieces(array))


def _unpin_pieces(runtime: Any, pieces: list[tuple[int, int]]) -> None:
    for address, _ in reversed(pieces):
        runtime.cudaHostUnregister(address)  # fails harmlessly when the process is ending


def _pieces(array: Floats) -> list[tuple[int, int]]:
    """Return (address, bytes) of the pieces that are pinned one by one."""
    starts = range(0, array.nbytes, PIECE_BYTES)
    return [(array.ctypes.data + start, min(PIECE_BYTES, array.nbytes - start)) for start in starts]


def _take_pages(array: Floats) -> None:
    """Touch all pages of an array from several threads; pinning would do so in one.

    Values do not change.
    """
    every_byte = array.reshape(-1).view(np.uint8)

    def take(start: int) -> None:
        first_bytes = every_byte[start : start + TOUCHED_BYTES : mmap.PAGESIZE]
        np.bitwise_or(first_bytes, 0, out=first_bytes)  # a write that changes nothing

    with ThreadPoolExecutor(min(MOST_THREADS, usable_cores())) as pool:
        list(pool.map(take, range(0, array.nbytes, TOUCHED_BYTES)))


def _clear_error(device: torch.device) -> None:
    """Clear an error that was handled: CUDA would report it at the next kernel launch."""
    try:
        torch.empty(1, device=device).fill_(1.0)
    except RuntimeError:
        return
