"""The Triton kernels in tests, on a GPU or under Triton's interpreter, which rounds the same.

Import this before any module of `adaptive.kernels.rows.gpu`: Triton decides when a kernel is defined whether to
interpret it. TRITON_INTERPRET is set only while kernels are imported or run: other tests, and the processes they start,
must not take a CPU for a GPU.
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

from adaptive.kernels.planning.lookups import hot_chunks
from adaptive.optim import RowOptimizer
from support.row_kernels import Floats

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INTERPRETED = DEVICE.type == "cpu"
needs_gpu = pytest.mark.skipif(INTERPRETED, reason="needs a CUDA device")


@contextmanager
def ready() -> Iterator[None]:
    """Inside, kernels can be defined and run."""
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
    from adaptive.kernels.rows.gpu.initial import initial_rows
    from adaptive.kernels.rows.gpu.move import copy_rows
    from adaptive.kernels.rows.gpu.pool import pool
    from adaptive.kernels.rows.gpu.update import update

__all__ = ["accumulate", "copy_rows", "decay", "initial_rows", "pool", "update"]


@dataclass(frozen=True)
class Pinned:
    """An array that stays in host memory, where a GPU reads and writes it."""

    array: Floats


def tensor_of(argument: Any) -> Any:
    if isinstance(argument, Pinned):
        tensor = torch.from_numpy(argument.array)
        return tensor if INTERPRETED else tensor.pin_memory()
    return torch.from_numpy(argument).to(DEVICE) if isinstance(argument, np.ndarray) else argument


def run(function: Callable[..., None], *arguments: Any, **options: Any) -> None:
    """Call with tensors in place of arrays; the arrays receive what it writes."""
    tensors = [tensor_of(argument) for argument in arguments]
    with ready():
        function(*tensors, **options)
    for argument, tensor in zip(arguments, tensors, strict=True):
        array = argument.array if isinstance(argument, Pinned) else argument
        if not INTERPRETED and isinstance(array, np.ndarray):
            torch.cuda.synchronize()
            array[...] = tensor.cpu().numpy()


def assert_same_bits(result: Any, expected: Any) -> None:
    """NaN equals NaN of any payload; 0.0 and -0.0 differ."""
    np.testing.assert_array_equal(result, expected)
    both = np.stack([result, expected]).astype(np.float64)
    np.testing.assert_array_equal(*np.where(np.isnan(both), False, np.signbit(both)))


def hot_of(segments: NDArray[np.int64]) -> torch.Tensor:
    """The hot rows among rows with these segments, on the device."""
    return torch.from_numpy(hot_chunks(segments)).to(DEVICE)


def settings_of(optimizer: RowOptimizer) -> list[float]:
    return [float(value) for value in optimizer.settings()]
