"""What is trained on the GPU: two models, tables of any size, batches made on all cores.

`dlrm`: MLPerf's layer sizes over 26 tables in Criteo's shape, one id a bag. `heavy`: ten ids a bag and hardly any
dense part, so that embeddings are nearly all of a step.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.config import TableConfig
from adaptive.data.synthetic import CRITEO_KAGGLE
from adaptive.models.dense.dlrm import DLRM
from adaptive.models.model_settings import DLRMConfig
from benchmarks.streams import NUM_DENSE, kaggle_tables, make_batches, rank_ids
from benchmarks.variants import Optimizer, Setup, row_optimizer

T = TypeVar("T")
ModelName = Literal["dlrm", "heavy"]
Precision = Literal["float32", "tf32", "bf16"]  # of matrix products; bf16: of all of the MLPs
LAYERS: dict[ModelName, tuple[tuple[int, ...], tuple[int, ...]]] = {  # of the bottom MLP before its last, of the top
    "dlrm": ((512, 256), (1024, 1024, 512, 256, 1)),
    "heavy": ((), (64, 1)),
}
EXPONENT = 1.05  # of Zipf's law, by which ids are drawn
NUM_TABLES = len(CRITEO_KAGGLE)  # and features
RECORD_BYTES = 12  # of a row in the tracker, with its norm
TORCH_COPIES: dict[Optimizer, int] = {"sgd": 1, "adagrad": 2, "adam": 3}  # tables and state, in tables


@dataclass(frozen=True)
class Workload:
    """Tables and a model. `gigabytes` (10**9 bytes) are of weights; state comes on top."""

    model: ModelName = "dlrm"
    gigabytes: float = 10.0
    dim: int = 64
    optimizer: Optimizer = "rowwise_adagrad"  # of rows
    precision: Precision = "float32"
    ids: int = 1  # of a bag, on average
    dtype: Literal["float32", "bfloat16"] = "float32"  # of rows

    @property
    def title(self) -> str:
        parts = [self.model, f"{self.gigabytes:g} GB", f"width {self.dim}", self.optimizer]
        parts += [] if self.ids == 1 else [f"{self.ids} ids a bag"]
        parts += [] if self.dtype == "float32" else [f"rows in {self.dtype}"]
        return ", ".join(parts + [self.precision] * (self.precision != "float32"))

    @property
    def num_rows(self) -> int:
        return int(self.gigabytes * 1e9) // (4 * self.dim)

    @property
    def state_width(self) -> int:
        return row_optimizer(self.optimizer).state_width(self.dim)

    @property
    def row_bytes(self) -> int:
        """Of a row with its state."""
        return self.value_bytes * self.dim + 4 * self.state_width

    @property
    def value_bytes(self) -> int:
        return 4 if self.dtype == "float32" else 2

    def setup(self) -> Setup:
        tables = kaggle_tables(self.num_rows, self.dim)
        tables = tuple(table.model_copy(update={"dtype": self.dtype}) for table in tables)
        return Setup(tables, self.optimizer, self.ids == 1)

    def batches(self, count: int, samples: int, *, seed: int) -> list[Batch]:
        """`count` batches; batch i depends on seed + i only."""
        tables = self.setup().tables

        def one(number: int) -> Batch:
            return make_batches(tables, 1, samples, mean_hot=self.ids, exponent=EXPONENT, seed=number)[0]

        return in_threads(one, range(seed, seed + count))

    def make_model(self, device: torch.device) -> DLRM:
        """With the same initial weights each time."""
        bottom, top = LAYERS[self.model]
        config = DLRMConfig(
            embedding_dim=self.dim,
            bottom_mlp=(*bottom, self.dim),
            top_mlp=top,
            interaction="dot" if self.model == "dlrm" else "cat",
            bf16=self.precision == "bf16",
        )
        torch.backends.cuda.matmul.allow_tf32 = self.precision == "tf32"
        return DLRM(config, num_dense=NUM_DENSE, num_features=NUM_TABLES).to(device)


def in_threads(work: Callable[[int], T], numbers: range) -> list[T]:
    """`work` of each number, on up to 8 cores: for work that lets go of the interpreter."""
    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(work, numbers))


def popular_counts(sizes: Sequence[int], wanted: int) -> list[int]:
    """Count the rows of each table among the `wanted` most popular rows of all tables.

    A row of rank r has weight r ** -EXPONENT over its table's total (continuous law), with one lookup of each feature
    in a sample.
    """
    power = 1 - EXPONENT
    totals = [((size + 1.0) ** power - 1) / power for size in sizes]

    def counts(limit: float) -> list[int]:
        ranks = [(limit * total) ** (-1 / EXPONENT) for total in totals]
        return [int(min(size, max(rank, 1))) for size, rank in zip(sizes, ranks, strict=True)]

    low, high = -80.0, 0.0  # of the limit's logarithm
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(counts(np.exp(middle))) > wanted else (low, middle)
    return counts(np.exp(high))


def covering_batches(tables: Sequence[TableConfig], wanted: int, lookups: int) -> Iterator[Batch]:
    """Yield batches of about `lookups` lookups with the `wanted` most popular rows, once each.

    The most popular rows come last.
    """
    sizes = [table.num_embeddings for table in tables]
    counts = popular_counts(sizes, wanted)
    number = max(1, -(-sum(counts) // lookups))
    cuts = [np.linspace(count, 0, number + 1).astype(np.int64) for count in counts]
    for i in range(number):
        spans = [(cut[i + 1], cut[i]) for cut in cuts]
        yield _spread([rank_ids(np.arange(*span), size) for span, size in zip(spans, sizes, strict=True)])


def _spread(ids: Sequence[NDArray[np.int64]], samples: int = 64) -> Batch:
    """The batch in which the ids of each feature are spread over the samples."""
    sizes = np.concatenate([np.diff(np.linspace(0, len(part), samples + 1).astype(np.int64)) for part in ids])
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return Batch(
        dense=np.zeros((samples, NUM_DENSE), np.float32),
        ids=np.concatenate(ids),
        offsets=offsets,
        labels=np.zeros(samples, np.float32),
    )
