"""The Triton kernels in tests: on the GPU where there is one, else under Triton's interpreter, which rounds alike.

Import this before any module of `adaptive.kernels.rows.gpu`: Triton decides when a kernel is defined whether it will be
interpreted. TRITON_INTERPRET is set only while kernels are imported or run: to other tests, and to the processes they
start, a CPU must not look like a GPU.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad

Floats = NDArray[np.float32]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INTERPRETED = DEVICE.type == "cpu"
OPTIMIZERS = [SGD(0.3), Adagrad(0.2, initial_accumulator=0.5), RowwiseAdagrad(0.2), Adam(0.1, beta2=0.9)]

needs_gpu = pytest.mark.skipif(INTERPRETED, reason="needs a CUDA device")


@contextmanager
def ready() -> Iterator[None]:
    """Kernels can be defined, and run."""
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):  # the interpreter computes with numpy
        if INTERPRETED:
            patch.setenv("TRITON_INTERPRET", "1")
        yield


if INTERPRETED and os.environ.get("TRITON_INTERPRET") != "1":
    assert sys.modules.get("triton") is None, "Triton was imported before this, to compile"
with ready():
    pytest.importorskip("triton", reason="Triton is not installed; it comes with CUDA builds of torch")
    from adaptive.kernels.rows.gpu.decay import decay
    from adaptive.kernels.rows.gpu.deferred import accumulate
    from adaptive.kernels.rows.gpu.drift import drift
    from adaptive.kernels.rows.gpu.initial import initial_rows
    from adaptive.kernels.rows.gpu.move import fetch, write_back
    from adaptive.kernels.rows.gpu.pool import pool
    from adaptive.kernels.rows.gpu.update import update

__all__ = ["accumulate", "decay", "drift", "fetch", "initial_rows", "pool", "update", "write_back"]


@dataclass(frozen=True)
class Pinned:
    """An array that stays in the host's memory, where a GPU reads and writes it."""

    array: Floats


def tensor_of(argument: Any) -> Any:
    if isinstance(argument, Pinned):
        tensor = torch.from_numpy(argument.array)
        return tensor if INTERPRETED else tensor.pin_memory()
    return torch.from_numpy(argument).to(DEVICE) if isinstance(argument, np.ndarray) else argument


def run(function: Callable[..., None], *arguments: Any, **options: Any) -> None:
    """Call with tensors in place of arrays; what it writes is in the arrays afterwards."""
    tensors = [tensor_of(argument) for argument in arguments]
    with ready():
        function(*tensors, **options)
    for argument, tensor in zip(arguments, tensors, strict=True):
        array = argument.array if isinstance(argument, Pinned) else argument
        if not INTERPRETED and isinstance(array, np.ndarray):
            torch.cuda.synchronize()
            array[...] = tensor.cpu().numpy()


def assert_same_bits(found: Any, expected: Any) -> None:
    """NaN equals NaN, whatever its payload; 0.0 and -0.0 differ."""
    np.testing.assert_array_equal(found, expected)
    both = np.stack([found, expected]).astype(np.float64)
    np.testing.assert_array_equal(*np.where(np.isnan(both), False, np.signbit(both)))


def random_rows(rng: np.random.Generator, *shape: int) -> Floats:
    """Values over several powers of ten, so that another order of summation shows."""
    return (rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(np.float32)


def settings_of(optimizer: RowOptimizer) -> list[float]:
    return [float(value) for value in optimizer.settings()]
