"""How much memory a GPU has left for slots, and what is kept for others.

The tiers are made before the model, so what model, activations and gradients will take is not known yet: a share of
what is free is kept for them (`tier.reserve`). Running out later is no disaster: the device tier gives some back.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from adaptive.config import parse_size
from adaptive.errors import DeviceMemoryError

RESERVE_SHARE = 0.2
RESERVE_LEAST = 1 << 30


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on a GPU; None where the device tier is ordinary memory."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    kept_by_torch: int = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + kept_by_torch


def reserve_bytes(reserve: str, free: int) -> int:
    """Of `free` bytes, those that are not for slots. auto: 20 %, but 1 GiB at least, but half at most."""
    if reserve == "auto":
        return min(max(int(RESERVE_SHARE * free), RESERVE_LEAST), free // 2)
    return parse_size(reserve, row_bytes=1, num_rows=free)


@contextmanager
def running_out(when: str) -> Iterator[None]:
    """Out of memory where nothing can be run again is an error for the user."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        found = str(error).splitlines()[0]
        raise DeviceMemoryError(
            f"out of GPU memory {when}: {found}. Set fewer device_rows or a larger tier.reserve, or lower batch_size"
        ) from error
