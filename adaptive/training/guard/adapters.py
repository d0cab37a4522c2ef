"""`Trained`: what a guard watches, copies and may overwrite: tables, whatever is trained beside them, how to do a step.

A run is one, with its model and optimizer (`TrainedRun`); a loop of one's own is another
(`adaptive.studies.own_loop.guarding`).
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.models.tasks import first_label
from adaptive.policy import Policy
from adaptive.training.build import Components
from adaptive.training.evaluation import logits_of
from adaptive.training.telemetry.record import Record
from adaptive.training.telemetry.recorder import Recorder
from adaptive.training.trainer import Trainer


class Told(Protocol):
    """What a guard hears of training, and tells: a `Recorder`."""

    steps: int  # trained so far
    samples: int
    loss: float  # mean of the latest batch, predicted before it was learnt

    def timed(self, stage: str) -> AbstractContextManager[None]: ...

    def write(self, record: Record) -> None: ...


class Trained(ABC):
    """Tables and the parts that are trained with them, such as a model and its optimizer.

    Attributes:
        embeddings: the tables.
        parts: what else has values that training changes: torch modules, optimizers, and whatever has `state_dict` and
            `load_state_dict`. They may refer to each other and to the tables.
    """

    def __init__(self, embeddings: TieredEmbeddingBag, parts: tuple[Any, ...]) -> None:
        self.embeddings, self.parts = embeddings, parts

    @abstractmethod
    def train(self, batch: Batch, step: int) -> None:
        """Train a batch, outside of any look-ahead; `step`: how many were trained before it."""

    @abstractmethod
    def logits(self, planned: Planned) -> Tensor:
        """(B,) of a batch that is read: evaluated, not trained."""

    def copied(self, policy: Policy, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """A copy in memory, its rows on the host, under another policy; it is trained independently. `arrays`: the
        tables' `state_arrays`."""
        embeddings = self.embeddings.like(policy)
        embeddings.load_state_arrays(arrays)
        rows: dict[int, Any] = {id(self.embeddings): embeddings, id(self.embeddings.optimizer): embeddings.optimizer}
        found = copy.copy(self)
        found.embeddings, found.parts = embeddings, copy.deepcopy(self.parts, rows)  # references to tables follow
        return found

    def take_over(self, other: "Trained") -> None:
        """Take the values of a copy, between two steps; the copy can go on."""
        self.embeddings.overwrite_rows(other.embeddings.state_arrays())
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            if mine is self.embeddings or mine is self.embeddings.optimizer:
                continue
            if isinstance(mine, nn.Module):
                _take_values(mine, theirs)
            else:
                mine.load_state_dict(copy.deepcopy(theirs.state_dict()))

    @property
    def modules(self) -> list[nn.Module]:
        """Those among the parts that are modules."""
        return [part for part in self.parts if isinstance(part, nn.Module)]

    @property
    def num_bytes(self) -> int:
        """Memory of the dense weights."""
        weights = {id(weight): weight for module in self.modules for weight in module.parameters()}
        return sum(weight.nbytes for weight in weights.values())


def _take_values(mine: nn.Module, theirs: nn.Module) -> None:
    """Weights and buffers, in place. Not by `state_dict`, which has the rows of tables inside."""
    with torch.no_grad():
        for one, other in zip(_values(mine), _values(theirs), strict=True):
            one.copy_(other)


def _values(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


class TrainedRun(Trained):
    """A run: its model is trained as `Trainer` does."""

    def __init__(self, components: Components) -> None:
        super().__init__(components.embeddings, (components.model, components.optimizer))
        self._tables = components.tables
        self._trainer: Trainer | None = None

    @property
    def components(self) -> Components:
        model, optimizer = self.parts
        return Components(self._tables, self.embeddings, model, optimizer)

    def copied(self, policy: Policy, arrays: Mapping[str, NDArray[Any]]) -> Self:
        found = super().copied(policy, arrays)
        found._trainer = Trainer(found.embeddings, *found.parts, recorder=_Silent(found.embeddings))
        return found

    def train(self, batch: Batch, step: int) -> None:
        assert self._trainer is not None, "only copies are trained here"
        self._trainer.recorder.steps = step  # from which dropout follows
        self._trainer.train([batch], depth=0)

    def logits(self, planned: Planned) -> Tensor:
        return first_label(logits_of(self.embeddings, self.parts[0], planned))


class _Silent(Recorder):
    """Counts steps and remembers nothing of them."""

    def step(self, loss: float | None, logits: Tensor, labels: NDArray[np.float32]) -> None:
        self.steps += 1


def concatenated(logits: Sequence[Tensor]) -> NDArray[np.float32]:
    """(n,) of all batches."""
    return np.concatenate([np.zeros(0, np.float32), *(found.float().cpu().numpy() for found in logits)])
