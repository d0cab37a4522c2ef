"""Host tables as memory that a GPU reads and writes itself.

Memory is pinned where it lies, page by page: torch's own pinned memory would be rounded up to the next power of two.
Pinning takes all of a table's memory at once, also of rows that were never written.
"""

import mmap
import weakref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive.tiers.host import advise

Floats = NDArray[np.float32]
PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context of the process


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
    _ask_for_huge_pages(array)
    code = int(runtime.cudaHostRegister(array.ctypes.data, array.nbytes, PORTABLE))
    if code:
        _forget_error(device)
        raise MemoryError(f"CUDA error {code} for {array.nbytes:,} bytes")


def _unpin(runtime: Any, array: Floats) -> None:
    runtime.cudaHostUnregister(array.ctypes.data)  # fails harmlessly when the process is ending


def _forget_error(device: torch.device) -> None:
    """Clear an error that does not matter: CUDA would report it at the next launch of a kernel."""
    try:
        torch.empty(1, device=device).fill_(1.0)
    except RuntimeError:
        return
