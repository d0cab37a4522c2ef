"""Which kernels work on the rows of a device."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from adaptive.kernels.rows import gpu, torch_ops

WIDEST = 1024  # columns that Triton's kernels know


@dataclass(frozen=True)
class RowKernels:
    """The kernels for rows on a device; arguments as in `torch_ops`."""

    pool: Callable[..., None]
    update: Callable[..., None]
    decay: Callable[..., None]
    accumulate: Callable[..., None]
    drift: Callable[..., None]
    fetch: Callable[..., None]
    write_back: Callable[..., None]
    initial_rows: Callable[..., None]


def row_kernels(device: torch.device, width: int) -> RowKernels:
    """Triton's on a GPU, for the widths that they know; else torch operations.

    Raises:
        ConfigError: if Triton is there and cannot launch kernels.
    """
    if device.type == "cuda" and width <= WIDEST and gpu.available(device):
        gpu.prepare()
        return triton_rows()
    return torch_rows()


def torch_rows() -> RowKernels:
    """Torch operations, on any device."""
    return RowKernels(
        torch_ops.pool,
        torch_ops.update,
        torch_ops.decay,
        torch_ops.accumulate,
        torch_ops.drift,
        torch_ops.fetch,
        torch_ops.write_back,
        torch_ops.initial_rows,
    )


def triton_rows() -> RowKernels:
    """Triton kernels, which `gpu.available` must have found."""
    from adaptive.kernels.rows.gpu import decay, deferred, drift, initial, move, pool, update

    return RowKernels(
        pool.pool,
        update.update,
        decay.decay,
        deferred.accumulate,
        drift.drift,
        move.fetch,
        move.write_back,
        initial.initial_rows,
    )
