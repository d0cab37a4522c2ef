"""Optimizers of rows: what state a row carries, and the numbers the update kernels need.

Every optimizer is *lazy*: a row changes only in batches that look it up, and Adam's step count is the row's own.
So is weight decay, which is decoupled from the gradient (AdamW): each update that is written begins with
w *= 1 - lr * weight_decay, and neither the optimizer's state nor the sum of waiting gradients knows of it. A sum of
deferred gradients is written once and decays the row once. The formulas stand in `kernels.rows.cpu.steps`, for sums of
deferred gradients in `kernels.rows.cpu.deferred.apply_sum` and, slowly, in `tests/reference.py`.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from adaptive.config import OptimizerConfig
from adaptive.errors import ConfigError
from adaptive.kernels.rows.cpu.steps import ADAGRAD, ADAM, ROWWISE_ADAGRAD, SGD_


@dataclass(frozen=True)
class RowOptimizer(ABC):
    """Interface of the optimizers of rows. `kind` selects the formula in the kernels."""

    kind: ClassVar[int]
    counts: ClassVar[int] = 0  # of the last values of a row's state: how many are counts of updates
    lr: float
    weight_decay: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            most = 1 if item.name.startswith("beta") else math.inf
            if not isinstance(value, int | float) or not 0 <= value < most:
                raise ConfigError(
                    f"{type(self).__name__}: {item.name} from 0 to below {most} is needed, found {value!r}"
                )

    def at(self, lr: float) -> Self:
        """The same with another learning rate."""
        return replace(self, lr=lr)

    @abstractmethod
    def state_width(self, embedding_dim: int) -> int:
        """float32 values of state that travel with a row."""

    def least_state(self, embedding_dim: int) -> NDArray[np.float32]:
        """(S,) the least value that each value of a row's state can have."""
        return np.zeros(self.state_width(embedding_dim), np.float32)

    def squares_width(self, embedding_dim: int) -> int:
        """float32 values that a deferred sum keeps beside it: squares, and Adam's number of gradients.

        See `adaptive.kernels.rows.cpu.deferred`.
        """
        return 0

    @property
    def kept(self) -> float:
        """What an update keeps of a row before it takes its step: a float32 from 0 to 1, and 1 without decay."""
        return float(np.float32(max(0.0, 1.0 - self.lr * self.weight_decay)))

    @abstractmethod
    def settings(self) -> NDArray[np.float32]:
        """(5,) lr, eps, beta1, beta2, first value of the state."""

    def corrections(self) -> NDArray[np.float32]:
        """(t,) Adam's step size after t + 1 updates of a row; the last holds for all later ones."""
        return np.zeros(1, np.float32)


def _settings(
    lr: float, eps: float = 0.0, beta1: float = 0.0, beta2: float = 0.0, first: float = 0.0
) -> NDArray[np.float32]:
    return np.array([lr, eps, beta1, beta2, first], np.float32)


@dataclass(frozen=True)
class SGD(RowOptimizer):
    """Plain SGD: w -= lr * g."""

    kind: ClassVar[int] = SGD_
    lr: float = 0.1

    def state_width(self, embedding_dim: int) -> int:
        return 0

    def settings(self) -> NDArray[np.float32]:
        return _settings(self.lr)


@dataclass(frozen=True)
class Adagrad(RowOptimizer):
    """Adagrad: s += g * g; w -= lr * g / (sqrt(s) + eps), element by element, as torch.optim.Adagrad."""

    kind: ClassVar[int] = ADAGRAD
    lr: float = 0.05
    eps: float = 1e-10
    initial_accumulator: float = 0.0

    def state_width(self, embedding_dim: int) -> int:
        return embedding_dim

    def squares_width(self, embedding_dim: int) -> int:
        return embedding_dim

    def settings(self) -> NDArray[np.float32]:
        return _settings(self.lr, self.eps, first=self.initial_accumulator)


@dataclass(frozen=True)
class RowwiseAdagrad(RowOptimizer):
    """One accumulator a row: s += mean(g * g); w -= lr / (sqrt(s) + eps) * g, as FBGEMM's exact row-wise Adagrad."""

    kind: ClassVar[int] = ROWWISE_ADAGRAD
    lr: float = 0.05
    eps: float = 1e-8
    initial_accumulator: float = 0.0

    def state_width(self, embedding_dim: int) -> int:
        return 1

    def squares_width(self, embedding_dim: int) -> int:
        return 1

    def settings(self) -> NDArray[np.float32]:
        return _settings(self.lr, self.eps, first=self.initial_accumulator)


@dataclass(frozen=True)
class Adam(RowOptimizer):
    """Adam as torch.optim.SparseAdam, except that the step count is each row's own number of updates.

    A deferred sum of k gradients counts as k updates with their mean.
    """

    kind: ClassVar[int] = ADAM
    counts: ClassVar[int] = 1
    lr: float = 0.001
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999

    def state_width(self, embedding_dim: int) -> int:
        return 2 * embedding_dim + 1  # first moment, second moment, number of updates

    def least_state(self, embedding_dim: int) -> NDArray[np.float32]:
        least = super().least_state(embedding_dim)
        least[:embedding_dim] = -np.inf  # first moments have a sign
        return least

    def squares_width(self, embedding_dim: int) -> int:
        return embedding_dim + 1  # squares, number of gradients in the sum

    def settings(self) -> NDArray[np.float32]:
        return _settings(self.lr, self.eps, self.beta1, self.beta2)

    def corrections(self) -> NDArray[np.float32]:
        longest = max(self.beta1, self.beta2)
        # Beyond this many updates 1 - beta**t rounds to 1 in float32.
        steps = 1 if longest == 0 else min(1 << 20, int(np.ceil(-18.0 / np.log(longest))) + 1)
        root, rest = _bias(self.beta1, self.beta2, steps)
        size: NDArray[np.float64] = self.lr * root / rest
        return size.astype(np.float32)


@lru_cache(maxsize=8)  # a rate that changes every step needs the powers once
def _bias(beta1: float, beta2: float, steps: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """sqrt(1 - beta2**t) and 1 - beta1**t for t = 1 ... steps."""
    t = np.arange(1, steps + 1, dtype=np.float64)
    return np.sqrt(1 - np.float64(beta2) ** t), 1 - np.float64(beta1) ** t


def row_optimizer(config: OptimizerConfig) -> RowOptimizer:
    """The optimizer a configuration names."""
    decay = config.weight_decay
    if config.name == "sgd":
        return SGD(config.lr, weight_decay=decay)
    if config.name == "adagrad":
        return Adagrad(config.lr, config.eps, config.initial_accumulator, weight_decay=decay)
    if config.name == "rowwise_adagrad":
        return RowwiseAdagrad(config.lr, config.eps, config.initial_accumulator, weight_decay=decay)
    return Adam(config.lr, config.eps, config.beta1, config.beta2, weight_decay=decay)
