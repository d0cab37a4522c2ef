"""Selection of the kernels that work on the rows of a device."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from adaptive.kernels.rows import gpu


@dataclass(frozen=True)
class RowKernels:
    """The kernels for rows on a device; arguments as in `rows.gpu`."""

    pool: Callable[..., None]
    update: Callable[..., None]
    decay: Callable[..., None]
    accumulate: Callable[..., None]
    copy_rows: Callable[..., None]
    initial_rows: Callable[..., None]


def row_kernels(device: torch.device) -> RowKernels:
    """Return Triton's kernels on a GPU, numba's on tensors in ordinary memory.

    Raises:
        ConfigError: on a GPU, if Triton is missing, too old, or cannot launch kernels.
    """
    if device.type == "cuda":
        gpu.prepare()
        return triton_rows()
    from adaptive.kernels.rows import cpu_tensors as cpu

    return RowKernels(cpu.pool, cpu.update, cpu.decay, cpu.accumulate, cpu.copy_rows, cpu.initial_rows)


def triton_rows() -> RowKernels:
    """Return the Triton kernels; only if `gpu.available`."""
    from adaptive.kernels.rows.gpu import decay, deferred, initial, move, pool, update

    return RowKernels(
        pool.pool,
        update.update,
        decay.decay,
        deferred.accumulate,
        move.copy_rows,
        initial.initial_rows,
    )
