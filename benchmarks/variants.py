"""One interface for the embeddings that the step benchmarks time, ours and others'.

Letters: B samples, F features, D width.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch, one_hot_batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embeddings.engine.statistics import Statistics
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policy import Policy

Optimizer = Literal["sgd", "rowwise_adagrad", "adagrad", "adam"]
RATES: dict[Optimizer, float] = {"sgd": 0.1, "rowwise_adagrad": 0.05, "adagrad": 0.05, "adam": 0.001}
EPS = 1e-8
DENSE_RATE = 0.1  # of plain SGD, for every MLP
Block = Tensor | list[Tensor]  # (B, F, D), or F tensors (B, D)


CHECK_STEPS = 3  # batches trained before results are compared


@dataclass(frozen=True)
class Case:
    """One row of the grid."""

    batch: int
    dim: int
    optimizer: Optimizer
    mean_hot: int = 1

    @property
    def suffix(self) -> str:
        """What a ratio's name ends with; nothing for batch 2048, width 16, one id a bag."""
        parts = (
            (f"_d{self.dim}", self.dim != 16),
            (f"_b{self.batch}", self.batch != 2048),
            ("_multihot", self.mean_hot > 1),
        )
        return self.optimizer + "".join(text for text, wanted in parts if wanted)

    @property
    def title(self) -> str:
        hot = f", {self.mean_hot} ids a bag on average" if self.mean_hot > 1 else ""
        return f"batch {self.batch}, width {self.dim}, {self.optimizer}{hot}"


@dataclass(frozen=True)
class Setup:
    """What is looked up and how it is updated; equal for all variants of a comparison."""

    tables: tuple[TableConfig, ...]
    optimizer: Optimizer
    one_hot: bool = True

    @property
    def dim(self) -> int:
        return self.tables[0].embedding_dim

    @property
    def num_rows(self) -> int:
        return sum(table.num_embeddings for table in self.tables)

    @property
    def rate(self) -> float:
        return RATES[self.optimizer]


class NotAvailable(Exception):  # noqa: N818 (a reason, not a fault)
    """A peer cannot take part in this comparison; the message says why."""


class Embeddings(ABC):
    """Embedding tables with their optimizer, from anybody.

    Attributes:
        by_graph: True if the dense part's passes are to be CUDA graphs.
    """

    name: ClassVar[str]
    by_graph = False

    @abstractmethod
    def load(self, weights: Iterable[NDArray[np.float32]]) -> None:
        """Start from these tables, in order, each (rows, D)."""

    @abstractmethod
    def prepare(self, batch: Batch) -> Any:
        """The batch as this variant takes it; outside all timings."""

    @abstractmethod
    def pool(self, inputs: Any) -> Block:
        """The pooled vectors, with a graph behind them."""

    @abstractmethod
    def update(self) -> None:
        """Apply and drop the gradients of the last backward pass, if that has not happened yet."""

    def stream(self, batches: Sequence[Batch]) -> Iterator[Any]:
        """What `pool` takes, batch by batch."""
        return iter([self.prepare(batch) for batch in batches])

    @torch.no_grad()
    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """(n, F, D) the rows `ids` (n, F), as the embeddings look them up themselves."""
        batch = one_hot_batch(np.zeros((len(ids), 0), np.float32), ids, np.zeros(len(ids), np.float32))
        values: NDArray[np.float32] = joined(self.pool(self.prepare(batch))).cpu().numpy().copy()
        return values

    def close(self) -> None:  # noqa: B027 (most have nothing to let go of)
        """End threads and hand files over."""


def joined(block: Block) -> Tensor:
    """(B, F, D) one tensor."""
    return torch.stack(block, dim=1) if isinstance(block, list) else block


def row_optimizer(optimizer: Optimizer) -> RowOptimizer:
    rate = RATES[optimizer]
    if optimizer == "sgd":
        return SGD(rate)
    if optimizer == "rowwise_adagrad":
        return RowwiseAdagrad(rate, EPS)
    return Adagrad(rate, EPS) if optimizer == "adagrad" else Adam(rate, EPS)


class Ours(Embeddings):
    """`TieredEmbeddingBag`; `stream` is its look-ahead: the next batch ends the last one."""

    name = "adaptive"

    def __init__(
        self,
        setup: Setup,
        *,
        device_rows: str = "auto",
        policy: str | Policy = "device",
        depth: int = 0,
        host: str = "memory",
        skip: SkipConfig | str | None = None,
        plan_threads: int | str = 1,
        device: str = "cpu",
        transfer: str = "auto",
    ) -> None:
        tier = TierConfig(
            device_rows=device_rows, device=device, host=host, when_full="reduce_lookahead", plan_threads=plan_threads,
            transfer=transfer,
        )  # fmt: skip
        optimizer = row_optimizer(setup.optimizer)
        self.bag = TieredEmbeddingBag(setup.tables, tier, policy=policy, optimizer=optimizer, skip=skip)
        self._depth = depth
        self._running: Generator[Planned, None, None] | None = None

    def load(self, weights: Iterable[NDArray[np.float32]]) -> None:
        raise AssertionError("our own initial values are what the others load")

    def weights(self) -> Iterator[NDArray[np.float32]]:
        """All tables, in order."""
        return (self.bag.rows.table_weights(name) for name in self.bag.table_names)

    def prepare(self, batch: Batch) -> Planned:
        return self.bag.read(batch)

    def stream(self, batches: Sequence[Batch]) -> Iterator[Planned]:
        self.stop()
        self._running = self.bag.look_ahead(batches, depth=self._depth)
        return self._running

    def pool(self, inputs: Planned) -> Tensor:
        return self.bag.stack(inputs)

    def update(self) -> None:
        self.bag.step()

    def statistics(self) -> Statistics:
        """Since the last call."""
        return self.bag.statistics.take()

    def stop(self) -> None:
        """End the look-ahead."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def close(self) -> None:
        self.stop()
        self.bag.close()


def fixed_gradient(setup: Setup, num_samples: int) -> Tensor:
    """(B, F, D) small random numbers, the same at every call."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn((num_samples, len(setup.tables), setup.dim), generator=generator).mul_(0.01)


def hit_rate(statistics: Statistics) -> float:
    """Return the share of lookups whose row was on the device."""
    counts = statistics.counts.sum(axis=0)
    return float(counts[Counter.LOOKUP_HITS] / max(counts[Counter.LOOKUPS], 1))


def feature_spans(batch: Batch) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """For each feature its ids and its bags' offsets (B,), counted from 0."""
    bounds = batch.offsets[:: batch.num_samples]
    starts = batch.offsets[:-1].reshape(batch.num_features, batch.num_samples)
    return [(batch.ids[first:last], starts[feature] - first) for feature, (first, last) in enumerate(pairwise(bounds))]
