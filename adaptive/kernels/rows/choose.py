"""Which kernels work on the rows of a device."""

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
    drift: Callable[..., None]
    fetch: Callable[..., None]
    write_back: Callable[..., None]
    initial_rows: Callable[..., None]


def row_kernels(device: torch.device) -> RowKernels:
    """Triton's on a GPU; numba's on tensors in ordinary memory.

    Raises:
        ConfigError: on a GPU, if Triton is missing, too old, or cannot launch kernels.
    """
    if device.type == "cuda":
        gpu.prepare()
        return triton_rows()
    from adaptive.kernels.rows import cpu_tensors as here

    return RowKernels(
        here.pool,
        here.update,
        here.decay,
        here.accumulate,
        here.drift,
        here.fetch,
        here.write_back,
        here.initial_rows,
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
