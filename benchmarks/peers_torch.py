"""Plain PyTorch: `nn.EmbeddingBag(sparse=True)` for each table, or one for all tables."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive.batch import Batch
from benchmarks.variants import EPS, Block, Embeddings, NotAvailable, Setup, feature_spans

torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call] # as it is anyway; said aloud, torch does not warn

Spans = list[tuple[Tensor, Tensor]]


def torch_optimizer(parameters: Iterable[nn.Parameter], setup: Setup) -> torch.optim.Optimizer:
    """The optimizer of torch that takes sparse gradients.

    Raises:
        NotAvailable: for row-wise Adagrad, which torch does not have.
    """
    if setup.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=setup.rate)
    if setup.optimizer == "adagrad":
        return torch.optim.Adagrad(parameters, lr=setup.rate, eps=EPS)
    if setup.optimizer == "adam":
        return torch.optim.SparseAdam(list(parameters), lr=setup.rate, eps=EPS)
    raise NotAvailable(f"torch.optim has no {setup.optimizer} for sparse gradients")


class EmbeddingBags(Embeddings):
    """One module a table."""

    name = "torch, one EmbeddingBag a table"

    def __init__(self, setup: Setup, optimizer: Callable[[list[nn.Parameter], Setup], Any] = torch_optimizer) -> None:
        self._tables = nn.ModuleList(
            nn.EmbeddingBag(rows, setup.dim, mode="sum", sparse=True, _weight=_empty(rows, setup.dim))
            for rows in [table.num_embeddings for table in setup.tables]
        )
        self._optimizer = optimizer(list(self._tables.parameters()), setup)

    @torch.no_grad()
    def load(self, weights: Iterable[NDArray[np.float32]]) -> None:
        for parameter, table in zip(self._tables.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(table))

    def prepare(self, batch: Batch) -> Spans:
        return [(torch.from_numpy(ids), torch.from_numpy(starts)) for ids, starts in feature_spans(batch)]

    def pool(self, inputs: Spans) -> Block:
        return [table(ids, starts) for table, (ids, starts) in zip(self._tables, inputs, strict=True)]

    def update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()


class JoinedTable(Embeddings):
    """All tables in one `nn.Embedding` (one id a bag) or `nn.EmbeddingBag`."""

    name = "torch, one joined table"

    def __init__(self, setup: Setup) -> None:
        sizes = [table.num_embeddings for table in setup.tables]
        self._starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        self._one_hot = setup.one_hot
        self._dim = setup.dim
        weight = _empty(sum(sizes), setup.dim)
        self._table: nn.Embedding | nn.EmbeddingBag
        if setup.one_hot:
            self._table = nn.Embedding(sum(sizes), setup.dim, sparse=True, _weight=weight)
        else:
            self._table = nn.EmbeddingBag(sum(sizes), setup.dim, mode="sum", sparse=True, _weight=weight)
        self._optimizer = torch_optimizer(self._table.parameters(), setup)

    @torch.no_grad()
    def load(self, weights: Iterable[NDArray[np.float32]]) -> None:
        for start, table in zip(self._starts, weights, strict=True):
            self._table.weight[start : start + len(table)] = torch.from_numpy(table)

    def prepare(self, batch: Batch) -> tuple[Tensor, Tensor]:
        spans = feature_spans(batch)
        shifted = [ids + start for (ids, _), start in zip(spans, self._starts, strict=True)]
        if self._one_hot:
            block = np.ascontiguousarray(np.stack(shifted, axis=1))
            return torch.from_numpy(block), torch.empty(0)
        return torch.from_numpy(np.concatenate(shifted)), torch.from_numpy(batch.offsets[:-1])

    def pool(self, inputs: tuple[Tensor, Tensor]) -> Block:
        ids, offsets = inputs
        if self._one_hot:
            vectors: Tensor = self._table(ids)
            return vectors
        pooled: Tensor = self._table(ids, offsets)
        return list(pooled.view(-1, len(pooled) // len(self._starts), self._dim).unbind(0))

    def update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()


def _empty(rows: int, dim: int) -> Tensor:
    return torch.empty(rows, dim)  # modules would draw initial values, which takes long
