"""Helpers of the tests on a GPU: trainings on any device, and waits of the host."""

import os
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from adaptive.batch import Batch
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.models.dense.dlrm import DLRM
from adaptive.models.model_settings import DLRMConfig
from adaptive.optim import RowOptimizer
from adaptive.policy import Policy
from support.helpers import Trained, Trainee, random_batches, train_more

EXAMPLES = int(os.environ.get("GPU_SUITE_EXAMPLES", "40"))


class HostTrainee(Trainee):
    """A trainee whose dense side is always on the CPU, so that all its bits are the slow twin's."""

    def learn(self, vectors: Mapping[str, Tensor], batch: Batch) -> None:
        super().learn({name: values.cpu() for name, values in vectors.items()}, batch)


def train_on(
    device: str,
    tables: Sequence[TableConfig],
    batches: Iterable[Batch],
    optimizer: RowOptimizer,
    policy: type[Policy],
    tier: TierConfig,
    depth: int,
) -> Trained:
    """Train rows on `device` and a small readout on the CPU."""
    tier = tier.model_copy(update={"device": device})
    with TieredEmbeddingBag(tables, tier, policy=policy, optimizer=optimizer) as embeddings:
        return train_more(embeddings, HostTrainee(tables), batches, depth)


# --- a model entirely on the device -----------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """A DLRM over skewed ids, dense part and rows on one device."""

    device: str
    policy: type[Policy]
    optimizer: RowOptimizer
    device_rows: str = "40%"
    depth: int = 3
    dim: int = 16
    samples: int = 64
    bf16: bool = False
    num_batches: int = 12
    lookups: str = "auto"

    def tables(self) -> list[TableConfig]:
        sizes = (2000, 500, 40)
        return [TableConfig(name=f"t{n}", num_embeddings=rows, embedding_dim=self.dim) for n, rows in enumerate(sizes)]

    def batches(self) -> list[Batch]:
        return random_batches(self.tables(), self.num_batches, samples=self.samples, max_bag=4)

    def open(self) -> "Running":
        rows = self.policy.device_rows or self.device_rows
        ways = {"lookups": self.lookups}
        tier = TierConfig.model_validate({"device_rows": rows, "device": self.device} | ways)
        embeddings = TieredEmbeddingBag(self.tables(), tier, policy=self.policy, optimizer=self.optimizer)
        config = DLRMConfig(embedding_dim=self.dim, bottom_mlp=(32, self.dim), top_mlp=(64, 1), bf16=self.bf16)
        model = DLRM(config, num_dense=1, num_features=3).to(embeddings.device)
        return Running(embeddings, model, torch.optim.SGD(model.parameters(), lr=0.05))

    def run(self) -> dict[str, np.ndarray[Any, Any]]:
        """All numbers at the end."""
        running = self.open()
        with running.embeddings:
            for _ in running.train(self.batches(), self.depth):
                pass
            return running.numbers()


@dataclass
class Running:
    """A training in progress."""

    embeddings: TieredEmbeddingBag
    model: DLRM
    optimizer: torch.optim.Optimizer
    losses: list[Tensor] = field(default_factory=list)

    def train(self, batches: Iterable[Batch], depth: int) -> Generator[int, None, None]:
        """Yields the number of steps done; nothing here waits for the device. Close it before the embeddings."""
        with closing(self.embeddings.look_ahead(batches, depth=depth)) as look_ahead:
            for number, planned in enumerate(look_ahead, start=1):
                logits = self.model(planned.dense, self.embeddings.stack(planned))
                loss = binary_cross_entropy_with_logits(logits, planned.labels)
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                self.embeddings.step()
                self.losses.append(loss.detach())
                yield number

    def numbers(self) -> dict[str, np.ndarray[Any, Any]]:
        """Tables, optimizer state, dense weights, losses."""
        arrays = {f"table {name}": self.embeddings.rows.table_weights(name) for name in self.embeddings.table_names}
        arrays |= {f"rows {name}": array for name, array in self.embeddings.rows.state_arrays().items()}
        arrays |= {f"dense {name}": value.detach().cpu().numpy() for name, value in self.model.named_parameters()}
        arrays["losses"] = torch.stack(self.losses).cpu().numpy()
        return arrays


def assert_same(result: Mapping[str, np.ndarray[Any, Any]], expected: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Bit for bit, and finite."""
    assert result.keys() == expected.keys()
    for name, array in result.items():
        if array.dtype.kind == "f":
            assert np.isfinite(array).all(), name
        assert np.array_equal(array, expected[name]), f"{name} differs"


# --- waits -------------------------------------------------------------------------------------------------------


@contextmanager
def waiting_is_an_error(device: str) -> Iterator[None]:
    """Let torch raise if an operation makes the host wait for the device; no effect on the CPU."""
    if device != "cuda":
        yield
        return
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls it a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def reading_is_allowed(device: str) -> Iterator[list[int]]:
    """Inside `waiting_is_an_error`: `Tensor.tolist` may wait; a 1 is listed for each call."""
    calls: list[int] = []
    read = torch.Tensor.tolist

    def counted(self: Tensor) -> Any:
        calls.append(1)
        if device != "cuda":
            return read(self)
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        try:
            return read(self)
        finally:
            torch.cuda.set_sync_debug_mode(mode)

    torch.Tensor.tolist = counted  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        torch.Tensor.tolist = read  # type: ignore[method-assign]
