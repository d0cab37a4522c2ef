"""How much memory a GPU has left for slots, and what is kept for others.

The tiers are made before the model, so what model, activations and gradients will take is not known yet: a share of
what is free is kept for them (`tier.reserve`). Running out later is no disaster: the device tier gives some back.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from adaptive.errors import DeviceMemoryError

# What libraries say that ask CUDA for memory themselves: Triton and torch ("CUDA error: out of memory"), cuBLAS.
FULL = re.compile(r"CUDA\]?( error)?: out of memory|CUBLAS_STATUS_ALLOC_FAILED")


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on a GPU; None where the device tier is ordinary memory."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    kept_by_torch: int = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + kept_by_torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a GPU's memory was full, whoever found it so: torch has a class for its own allocations only."""
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
        found = str(error).splitlines()[0]
        raise DeviceMemoryError(
            f"out of GPU memory {when}: {found}. Set fewer device_rows or a larger tier.reserve, or lower batch_size"
        ) from error
