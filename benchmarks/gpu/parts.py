"""The whole training step.

`train` marks the beginning of each phase, and its end, in the current stream; nothing waits for the device.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from adaptive.batch import Batch
from adaptive.config import DenseOptimizerConfig
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.training.components import dense_optimizer
from adaptive.training.telemetry.recorder import Recorder
from adaptive.training.trainer import Trainer
from benchmarks.gpu.accelerator import Accelerator
from benchmarks.gpu.workloads import Workload
from benchmarks.variants import Embeddings, joined

Mark = Callable[[], Any]


class WholeStep:
    """Embeddings and a dense part with the optimizer of `adaptive-train run`."""

    phases: ClassVar[tuple[str, ...]] = ("forward", "dense", "update")

    def __init__(self, workload: Workload, accelerator: Accelerator, *, graph: bool = False) -> None:
        self._device = accelerator.device
        self.model = workload.make_model(accelerator.device)
        self._passes: Any = self.model
        self._captures = graph and accelerator.is_gpu
        self.optimizer = dense_optimizer(DenseOptimizerConfig(), self.model)

    def prepare(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return what `train` needs besides the embeddings' inputs; outside all timings."""
        dense, labels = torch.from_numpy(batch.dense), torch.from_numpy(batch.labels)
        return dense.to(self._device), labels.to(self._device)

    def train(self, embeddings: Embeddings, inputs: Any, prepared: Any, mark: Mark) -> list[Any]:
        """One step; returns a mark before each phase and one at the end."""
        dense, labels = (inputs.dense, inputs.labels) if isinstance(inputs, Planned) else prepared
        marks = [mark()]
        pooled = joined(embeddings.pool(inputs))
        marks.append(mark())
        self._learn(dense, labels, pooled)
        marks.append(mark())
        embeddings.update()
        return [*marks, mark()]

    def trainer(self, bag: TieredEmbeddingBag, *, log_every: int) -> Trainer:
        """Train the same as the command does, with a record every so many steps."""
        return Trainer(bag, self.model, self.optimizer, recorder=Recorder(bag, log_every=log_every))

    def _learn(self, dense: Tensor, labels: Tensor, pooled: Tensor) -> None:
        if self._captures:
            samples = dense.clone(), pooled.detach().clone().requires_grad_()
            self._passes, self._captures = torch.cuda.make_graphed_callables(self.model, samples), False
        loss = functional.binary_cross_entropy_with_logits(self._passes(dense, pooled), labels)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def dense_alone(self, batch: Batch) -> Callable[[], None]:
        """Return the dense part's work on a batch, without embeddings: the floor of a step."""
        dense, labels = self.prepare(batch)
        shape = (batch.num_samples, self.model.num_features, self.model.config.embedding_dim)
        pooled = torch.full(shape, 0.01, device=self._device, requires_grad=True)

        def work() -> None:
            pooled.grad = None
            self._learn(dense, labels, pooled)

        return work
