"""One launch of the kernel that moves rows, checked bit by bit: does the GPU path work on this machine?"""

from typing import Final

import numpy as np
import torch

from adaptive.embeddings.tiers.gpu.pinned import Pinned
from adaptive.embeddings.tiers.host import whole_pages
from adaptive.kernels.rows.choose import row_kernels

WORKS: Final = "the GPU path works here"
_ROWS, _WIDTH = 1000, 32


def launched(device: torch.device) -> str:
    """Copy rows of pinned host memory to the device, with the kernel that training uses; what came out."""
    host = whole_pages(_ROWS, _WIDTH)
    host[:] = np.random.default_rng(0).standard_normal(host.shape, np.float32)
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)  # where Triton launches
        pinned = Pinned(host, device)
        try:
            rows = torch.arange(_ROWS - 1, -1, -2, device=device)
            slots = torch.arange(len(rows), device=device)
            there = torch.zeros((len(rows), _WIDTH), device=device)
            none = torch.empty((_ROWS, 0), device=device)
            row_kernels(device).fetch(there, none, slots, pinned.tensor, none, rows)
            found, expected = there.cpu().numpy(), host[rows.cpu().numpy()]
        finally:
            pinned.close()
    except Exception as error:  # compilers, drivers and torch raise anything
        return f"failed: {type(error).__name__}: {error}"
    return WORKS if np.array_equal(found.view(np.int32), expected.view(np.int32)) else "failed: rows arrived changed"
