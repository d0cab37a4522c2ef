"""Optimizers of embedding rows: state of a row and numbers for the update kernels.

Every optimizer is *lazy*: a row changes only in batches that look it up, and Adam counts steps per row. Weight decay
is lazy too, and decoupled from the gradient (AdamW): each written update begins with w *= 1 - lr * weight_decay.
Optimizer state and accumulated gradients are not decayed, and applying an accumulated update decays the row once.

The formulas are in `kernels.rows.cpu.steps`, those of accumulated updates in `kernels.rows.cpu.deferred.apply_sum`, and
slow versions of both in `tests/reference.py`.
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
from adaptive.kernels.rows.cpu.steps import FTRL as FTRL_


@dataclass(frozen=True)
class RowOptimizer(ABC):
    """Base of the row optimizers. `kind` selects the formula in the kernels."""

    kind: ClassVar[int]
    counts: ClassVar[int] = 0  # how many of the last values of a row's state are counts of updates
    lr: float
    weight_decay: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            kind, limit, above = "a finite", math.inf, ""
            if item.name in ("beta1", "beta2"):
                kind, limit, above = "a", 1.0, " and below 1"
            if not isinstance(value, int | float) or not 0 <= value < limit:
                raise ConfigError(
                    f"{type(self).__name__}: expected {kind} {item.name} of at least 0{above}, got {value!r}"
                )

    def at(self, lr: float) -> Self:
        """Copy of the optimizer with another learning rate."""
        return replace(self, lr=lr)

    @abstractmethod
    def state_width(self, embedding_dim: int) -> int:
        """Number of state values of each row."""

    def state_bytes(self, embedding_dim: int) -> int:
        """Bytes of the state of a row."""
        return 4 * self.state_width(embedding_dim)

    def squares_width(self, embedding_dim: int) -> int:
        """Number of float32 values stored next to an accumulated gradient.

        These are sums of squares and, for Adam, the number of gradients; see `adaptive.kernels.rows.cpu.deferred`.
        """
        return 0

    @property
    def decay_factor(self) -> float:
        """Factor on a row before each step: a float32 from 0 to 1, and 1 without weight decay."""
        return float(np.float32(max(0.0, 1.0 - self.lr * self.weight_decay)))

    @abstractmethod
    def settings(self) -> NDArray[np.float32]:
        """(5,) lr, eps, beta1, beta2, initial value of the state; of FTRL lr, beta, l1, l2, 0."""

    def corrections(self) -> NDArray[np.float32]:
        """(t,) Adam's step size after t + 1 updates of a row; the last is that of all later ones."""
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
    """Adagrad as torch.optim.Adagrad: s += g * g; w -= lr * g / (sqrt(s) + eps)."""

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
    """Row-wise Adagrad: s += mean(g * g); w -= lr / (sqrt(s) + eps) * g.

    One accumulator per row, as FBGEMM's exact row-wise Adagrad.
    """

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
    """Adam as torch.optim.SparseAdam, with a step count per row.

    An accumulated sum of k gradients counts as k updates with their mean.
    """

    kind: ClassVar[int] = ADAM
    counts: ClassVar[int] = 1
    lr: float = 0.001
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999

    def state_width(self, embedding_dim: int) -> int:
        return 2 * embedding_dim + 1  # first moment, second moment, number of updates

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


@lru_cache(maxsize=8)  # a scheduled rate changes every step, the powers do not
def _bias(beta1: float, beta2: float, steps: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """sqrt(1 - beta2**t) and 1 - beta1**t for t = 1 ... steps."""
    t = np.arange(1, steps + 1, dtype=np.float64)
    return np.sqrt(1 - np.float64(beta2) ** t), 1 - np.float64(beta1) ** t


@dataclass(frozen=True)
class FTRL(RowOptimizer):
    """FTRL-proximal: rates per value as Adagrad's, with L1 and L2 regularization.

        s = (sqrt(n + g * g) - sqrt(n)) / lr; z += g - s * w; n += g * g
        w = 0 if |z| <= l1, else -(z - sign(z) * l1) / ((beta + sqrt(n)) / lr + l2)

    McMahan et al., "Ad click prediction: a view from the trenches" (KDD 2013), algorithm 1, where all begins with 0.
    Rows of zeros have no gradient in models of products, so here a value without any gradient (n = 0) has the z that
    gives its initial value. `weight_decay` is refused, because each step computes w from scratch: use `l2`. Under a
    schedule, w changes with the rate itself.
    """

    kind: ClassVar[int] = FTRL_
    lr: float = 0.05
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_decay:
            raise ConfigError(f"FTRL: expected weight_decay 0, got {self.weight_decay!r}. Use l2 instead.")

    def state_width(self, embedding_dim: int) -> int:
        return 2 * embedding_dim  # sums of gradients less those of sigma w, sums of squares

    def squares_width(self, embedding_dim: int) -> int:
        return embedding_dim

    def settings(self) -> NDArray[np.float32]:
        return _settings(self.lr, self.beta, self.l1, self.l2)


def row_optimizer(config: OptimizerConfig) -> RowOptimizer:
    """Create the optimizer of a configuration, with those of its settings that it has."""
    kinds: dict[str, type[RowOptimizer]] = {
        "sgd": SGD,
        "adagrad": Adagrad,
        "rowwise_adagrad": RowwiseAdagrad,
        "adam": Adam,
        "ftrl": FTRL,
    }
    cls = kinds[config.name]
    return cls(**{item.name: getattr(config, item.name) for item in fields(cls)})
