"""What is done with a batch: the embeddings alone under a fixed gradient, or the whole training step.

`train` marks the beginning of each phase, and its end, in the current stream; nothing waits for the device.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from adaptive.batch import Batch
from adaptive.embeddings.planned_batch import Planned
from adaptive.training.trainer import Trainer
from benchmarks.gpu.accelerator import Accelerator
from benchmarks.gpu.workloads import NUM_TABLES, Workload
from benchmarks.variants import DENSE_RATE, Embeddings, Ours, joined

Mark = Callable[[], Any]


class Part(ABC):
    """See the module."""

    phases: ClassVar[tuple[str, ...]]

    @abstractmethod
    def prepare(self, batch: Batch) -> Any:
        """What `train` needs of the batch besides the embeddings' inputs; outside all timings, and not for our own
        look-ahead, which brings it along."""

    @abstractmethod
    def train(self, embeddings: Embeddings, inputs: Any, prepared: Any, mark: Mark) -> list[Any]:
        """One step; returns a mark before each phase and one at the end."""


class EmbeddingPart(Part):
    """Forward, backward and update of the rows."""

    phases = ("forward", "backward", "update")

    def __init__(self, workload: Workload, accelerator: Accelerator) -> None:
        self._dim = workload.dim
        self._device = accelerator.device
        self._gradients: dict[int, tuple[Tensor, list[Tensor]]] = {}

    def prepare(self, batch: Batch) -> None:
        return None

    def train(self, embeddings: Embeddings, inputs: Any, prepared: Any, mark: Mark) -> list[Any]:
        marks = [mark()]
        pooled = embeddings.pool(inputs)
        marks.append(mark())
        samples = len(pooled[0]) if isinstance(pooled, list) else len(pooled)
        block, columns = self._gradient(samples)
        torch.autograd.backward(pooled, columns if isinstance(pooled, list) else [block])
        marks.append(mark())
        embeddings.update()
        return [*marks, mark()]

    def _gradient(self, samples: int) -> tuple[Tensor, list[Tensor]]:
        if samples not in self._gradients:
            generator = torch.Generator(self._device).manual_seed(samples)
            shape = (samples, NUM_TABLES, self._dim)
            block = torch.randn(shape, generator=generator, device=self._device).mul_(0.01)
            self._gradients = {samples: (block, [column.contiguous() for column in block.unbind(1)])}
        return self._gradients[samples]


class WholeStep(Part):
    """Embeddings and a dense part, updated by plain SGD."""

    phases = ("forward", "dense", "update")

    def __init__(self, workload: Workload, accelerator: Accelerator) -> None:
        self._device = accelerator.device
        self._model = workload.make_model(accelerator.device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=DENSE_RATE)

    def prepare(self, batch: Batch) -> tuple[Tensor, Tensor]:
        dense, labels = torch.from_numpy(batch.dense), torch.from_numpy(batch.labels)
        return dense.to(self._device), labels.to(self._device)

    def train(self, embeddings: Embeddings, inputs: Any, prepared: Any, mark: Mark) -> list[Any]:
        dense, labels = (inputs.dense, inputs.labels) if isinstance(inputs, Planned) else prepared
        marks = [mark()]
        pooled = joined(embeddings.pool(inputs))
        marks.append(mark())
        self._learn(dense, labels, pooled)
        marks.append(mark())
        embeddings.update()
        return [*marks, mark()]

    def _learn(self, dense: Tensor, labels: Tensor, pooled: Tensor) -> None:
        loss = functional.binary_cross_entropy_with_logits(self._model(dense, pooled), labels)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def dense_alone(self, batch: Batch) -> Callable[[], None]:
        """The dense part's work on a batch, with vectors that come from nowhere: the floor of a step."""
        dense, labels = self.prepare(batch)
        shape = (batch.num_samples, self._model.num_features, self._model.config.embedding_dim)
        pooled = torch.full(shape, 0.01, device=self._device, requires_grad=True)

        def work() -> None:
            pooled.grad = None
            self._learn(dense, labels, pooled)

        return work


class TrainerStep(WholeStep):
    """The same by `Trainer`, which waits for the device once a step; all of it counts as its dense phase."""

    def __init__(self, workload: Workload, accelerator: Accelerator) -> None:
        super().__init__(workload, accelerator)
        self._trainer: Trainer | None = None

    def train(self, embeddings: Embeddings, inputs: Any, prepared: Any, mark: Mark) -> list[Any]:
        if self._trainer is None:
            assert isinstance(embeddings, Ours)
            self._trainer = Trainer(embeddings.bag, self._model, self._optimizer)
            self._trainer.recorder.start()
        first = mark()
        self._trainer.step(inputs)
        last = mark()
        return [first, first, last, last]
