"""Helpers of the tests of kernels for rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adaptive.optim import SGD, Adagrad, Adam, RowwiseAdagrad

Choose = Callable[[Any], Callable[..., Any]]  # see `support.variants`
Floats = NDArray[np.float32]

OPTIMIZERS = [SGD(0.3), Adagrad(0.2, initial_accumulator=0.5), RowwiseAdagrad(0.2), Adam(0.1, beta2=0.9)]
every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)


def floats(*values: Any) -> Floats:
    return np.array(values, np.float32)


def random_rows(rng: np.random.Generator, *shape: int) -> Floats:
    """Values over several powers of ten, so that another order of summation shows."""
    return (rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(np.float32)
