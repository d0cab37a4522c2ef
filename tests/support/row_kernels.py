"""Helpers of the tests of kernels for rows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import reference
from numpy.typing import NDArray

from adaptive.optim import FTRL, SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad

Choose = Callable[[Any], Callable[..., Any]]  # see `support.variants`
Floats = NDArray[np.float32]

OPTIMIZERS = [
    SGD(0.3), Adagrad(0.2, initial_accumulator=0.5), RowwiseAdagrad(0.2), Adam(0.1, beta2=0.9),
    FTRL(0.3, beta=0.5, l1=0.05, l2=0.2),
]  # fmt: skip
every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)


def floats(*values: Any) -> Floats:
    return np.array(values, np.float32)


def random_rows(rng: np.random.Generator, *shape: int) -> Floats:
    """Values over several powers of ten, so that another order of summation shows."""
    return (rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(np.float32)


@dataclass
class TwoTiers:
    """Rows with their state in slots and on the host, for a kernel or for its slow twin."""

    optimizer: RowOptimizer
    dim: int
    num_slots: int = 3
    num_host: int = 4
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __post_init__(self) -> None:
        state = reference.initial_state(self.optimizer, self.dim)
        self.device, self.host = self.values(self.num_slots), self.values(self.num_host)
        self.device_state, self.host_state = (np.tile(state, (num, 1)) for num in (self.num_slots, self.num_host))

    def values(self, num: int) -> Floats:
        return (self.rng.normal(size=(num, self.dim)) * 10.0 ** self.rng.integers(-2, 2, (num, 1))).astype(np.float32)

    @property
    def tables(self) -> tuple[Floats, ...]:
        return self.device, self.device_state, self.host, self.host_state

    @property
    def rule(self) -> tuple[Any, ...]:
        """The rule of the kernels: kind, settings, corrections."""
        return self.optimizer.kind, self.optimizer.settings(), self.optimizer.corrections()

    def step_slowly(self, location: int, gradient: Floats, squares: Any = None) -> np.float32:
        """One step of the twin; returns its norm."""
        weights, state = self.tables[:2] if location >= 0 else self.tables[2:]
        place = max(location, ~location)
        return reference.update_row(self.optimizer, weights[place], state[place], gradient, squares)

    def equals(self, other: "TwoTiers") -> bool:
        return all(np.array_equal(*arrays, equal_nan=True) for arrays in zip(self.tables, other.tables, strict=True))
