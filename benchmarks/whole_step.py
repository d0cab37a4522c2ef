"""The whole training step of `bench_turns`: embeddings and dense part, ours and others'.

Peers that are only embeddings get the usual dense part of plain torch (cat, bmm, index; no padding), with our initial
weights; facebookresearch/dlrm, where a checkout is given, is trained as it is. Every MLP is updated by plain SGD.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from adaptive.batch import Batch
from adaptive.models.dense.dlrm import DLRM
from adaptive.models.model_settings import DLRMConfig
from benchmarks.harness import check_equal
from benchmarks.peers_dlrm import DlrmCheckout
from benchmarks.streams import NUM_DENSE
from benchmarks.variants import DENSE_RATE, Case, Embeddings, NotAvailable, Ours, Setup, joined

TOLERANCE = 0.02  # of the change of the logits
NUM_DOTS = 26 * 27 // 2


class Whole(ABC):
    """A model in training: each `step` takes the next batch."""

    name: str

    def start(self, batches: Sequence[Batch]) -> None:
        """Train on these batches from now on."""
        self._inputs = self._stream(batches)

    @abstractmethod
    def step(self) -> None:
        """Train on one batch."""

    @abstractmethod
    def logits(self, batch: Batch) -> NDArray[np.float32]:
        """(B,) of a batch that is not trained."""

    @abstractmethod
    def _stream(self, batches: Sequence[Batch]) -> Iterator[Any]: ...

    def finish(self) -> None:
        """All batches of `start` have been trained."""
        assert next(self._inputs, None) is None, "batches are left"

    def close(self) -> None:  # noqa: B027 (most have nothing to let go of)
        """End threads and hand files over."""


class WithModel(Whole):
    """Some embeddings under a dense part in torch."""

    def __init__(
        self, name: str, embeddings: Embeddings, model: Callable[[Tensor, Tensor], Tensor], layers: Any
    ) -> None:
        self.name, self.embeddings, self._model = name, embeddings, model
        self._optimizer = torch.optim.SGD(layers.parameters(), lr=DENSE_RATE)

    def _stream(self, batches: Sequence[Batch]) -> Iterator[Any]:
        tensors = [(torch.from_numpy(batch.dense), torch.from_numpy(batch.labels)) for batch in batches]
        inputs = self.embeddings.stream(batches)
        return ((one, *both) for one, both in zip(inputs, tensors, strict=True))

    def step(self) -> None:
        inputs, dense, labels = next(self._inputs)
        logits = self._model(dense, joined(self.embeddings.pool(inputs)))
        loss = functional.binary_cross_entropy_with_logits(logits, labels)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.embeddings.update()

    @torch.no_grad()
    def logits(self, batch: Batch) -> NDArray[np.float32]:
        pooled = joined(self.embeddings.pool(self.embeddings.prepare(batch)))
        found: NDArray[np.float32] = self._model(torch.from_numpy(batch.dense), pooled).numpy().copy()
        return found

    def close(self) -> None:
        self.embeddings.close()


class DenseAlone(Whole):
    """Our dense part with constant vectors that need a gradient: the floor of a step."""

    name = "our dense part alone"

    def __init__(self, model: DLRM, case: Case) -> None:
        self._model = model
        self._optimizer = torch.optim.SGD(model.parameters(), lr=DENSE_RATE)
        self._pooled = torch.randn(case.batch, model.num_features, case.dim).mul_(0.1).requires_grad_()

    def _stream(self, batches: Sequence[Batch]) -> Iterator[Any]:
        return iter([(torch.from_numpy(batch.dense), torch.from_numpy(batch.labels)) for batch in batches])

    def step(self) -> None:
        dense, labels = next(self._inputs)
        self._pooled.grad = None
        loss = functional.binary_cross_entropy_with_logits(self._model(dense, self._pooled), labels)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def logits(self, batch: Batch) -> NDArray[np.float32]:
        raise AssertionError("it has no embeddings to compare")


class FromCheckout(Whole):
    """facebookresearch/dlrm, its loop without timers and logs."""

    name = "facebookresearch/dlrm"

    def __init__(self, checkout: DlrmCheckout) -> None:
        self._dlrm = checkout

    def _stream(self, batches: Sequence[Batch]) -> Iterator[Any]:
        return iter([
            (self._dlrm.prepare(one), torch.from_numpy(one.dense), torch.from_numpy(one.labels)) for one in batches
        ])  # fmt: skip

    def step(self) -> None:
        inputs, dense, labels = next(self._inputs)
        loss = functional.binary_cross_entropy(self._dlrm.probabilities(dense, inputs), labels)
        self._dlrm.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._dlrm.update()

    @torch.no_grad()
    def logits(self, batch: Batch) -> NDArray[np.float32]:
        found = self._dlrm.probabilities(torch.from_numpy(batch.dense), self._dlrm.prepare(batch))
        values: NDArray[np.float32] = torch.logit(found, eps=1e-7).numpy().copy()
        return values


def make_model(case: Case, num_features: int, *, small: bool = False) -> DLRM:
    """Our dense part, with the MLPs of DLRM's papers or `small` ones."""
    hidden: tuple[int, ...] = (64,) if small else (512, 256)
    bottom = (*hidden, case.dim) if small else (*hidden, 64, case.dim)
    config = DLRMConfig(embedding_dim=case.dim, bottom_mlp=bottom, top_mlp=(*hidden, 1))
    return DLRM(config, num_dense=NUM_DENSE, num_features=num_features)


def our_model(name: str, embeddings: Ours, case: Case, *, small: bool = False) -> Whole:
    """Our embeddings under our dense part."""
    model = make_model(case, len(embeddings.bag.features), small=small)
    return WithModel(name, embeddings, model, model)


def with_plain_model(
    kind: Callable[[Setup], Embeddings], case: Case, setup: Setup, ours: Ours, *, small: bool = False
) -> Whole:
    """A peer's embeddings with our weights, under the dense part of plain torch."""
    peer = kind(setup)
    peer.load(ours.weights())
    layers, forward = without_padding(make_model(case, len(setup.tables), small=small))
    return WithModel(peer.name + ", plain dense part", peer, forward, layers)


def from_checkout(path: str, case: Case, setup: Setup, ours: Ours, *, small: bool) -> Whole:
    """facebookresearch/dlrm with our weights.

    Raises:
        NotAvailable: if no checkout is given, or it cannot take part.
    """
    if not path:
        raise NotAvailable("no checkout of facebookresearch/dlrm was given (--dlrm PATH)")
    checkout = DlrmCheckout(Path(path), setup, make_model(case, len(setup.tables), small=small))
    checkout.load(ours.weights())
    return FromCheckout(checkout)


def check_wholes(case: Case, wholes: dict[str, Whole], batches: Sequence[Batch]) -> None:
    """Train all on these batches; their logits agree before and after."""
    before = {key: whole.logits(batches[0]) for key, whole in wholes.items()}
    for whole in wholes.values():
        whole.start(batches)
        for _ in batches:
            whole.step()
        whole.finish()
    expected = wholes["adaptive"].logits(batches[0])
    for key, whole in wholes.items():
        what = f"whole step, {case.title}: {whole.name}"
        zeros = np.zeros_like(expected)
        check_equal(f"{what}, before", before[key], before["adaptive"], before=zeros, tolerance=1e-3)
        check_equal(what, whole.logits(batches[0]), expected, before=before["adaptive"], tolerance=TOLERANCE)


def index_interaction(bottom: Tensor, pooled: Tensor) -> Tensor:
    """The usual way: cat, bmm, index; (B, D + dots) without padding."""
    vectors = torch.cat([bottom[:, None], pooled], dim=1)
    products = torch.bmm(vectors, vectors.transpose(1, 2))
    i, j = torch.tril_indices(vectors.shape[1], vectors.shape[1], offset=-1)
    return torch.cat([bottom, products[:, i, j]], dim=1)


def without_padding(model: DLRM) -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor]]:
    """Return layers and forward of the model, with a top MLP of as many inputs as values."""
    width = model.config.embedding_dim + NUM_DOTS
    padded = model.top[0]
    assert isinstance(padded, nn.Linear)
    narrow = nn.Linear(width, padded.out_features)
    with torch.no_grad():
        narrow.weight.copy_(padded.weight[:, :width])
        narrow.bias.copy_(padded.bias)
    bottom, top = model.bottom, nn.Sequential(narrow, *list(model.top)[1:])
    assert bottom is not None

    def forward(dense: Tensor, pooled: Tensor) -> Tensor:
        logits: Tensor = top(index_interaction(bottom(dense), pooled)[:, :width])
        return logits.squeeze(1)

    return nn.ModuleList([bottom, top]), forward
