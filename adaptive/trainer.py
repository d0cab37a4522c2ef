"""The training loop.

for planned in embeddings.look_ahead(batches, depth=depth):       read, plan, write back, fetch; wait
    loss = log_loss(model(planned.dense, embeddings.stack(planned)), planned.labels)       forward
    optimizer.zero_grad(); loss.backward()                                                 backward
    optimizer.step(); embeddings.step()                                                    update
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from adaptive.batch import Batch
from adaptive.embedding import TieredEmbeddingBag
from adaptive.finite import bad_parameters, explain_gradients, explain_loss
from adaptive.planned import Planned
from adaptive.recorder import Recorder


class Trainer:
    """Trains `model(dense, pooled) -> logits (B,)` and its embeddings on click labels, by mean log loss."""

    def __init__(
        self,
        embeddings: TieredEmbeddingBag,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        recorder: Recorder | None = None,
    ) -> None:
        """
        Args:
            embeddings: all features pooled and of one width.
            model: on `embeddings.device`.
            optimizer: of the model's parameters; rows have their own.
            recorder: told of each step; default: one that writes nowhere.
        """
        self.embeddings, self.model, self.optimizer = embeddings, model, optimizer
        self.recorder = Recorder(embeddings) if recorder is None else recorder

    def train(self, batches: Iterable[Batch], *, depth: int = 4, stopped: Callable[[], bool] = lambda: False) -> int:
        """Train on the batches, or until `stopped()` after a step; returns the number of steps.

        Raises:
            NonFiniteError: for a loss or gradient that is not finite; nothing of its batch was updated.
        """
        self.model.train()
        before = self.recorder.steps
        self.recorder.start()
        with contextlib.closing(self.embeddings.look_ahead(batches, depth=depth)) as coming:
            while (planned := self._next(coming)) is not None:
                self.step(planned)
                if stopped():
                    break
        self.recorder.write_interval()
        return self.recorder.steps - before

    def step(self, planned: Planned) -> None:
        """Train one batch. Whether the numbers are finite is known before anything is updated."""
        name, timed = f"step {self.recorder.steps + 1}", self.recorder.timed
        with timed("forward"):
            pooled = self.embeddings.stack(planned)
            logits = self.model(planned.dense, pooled)
            loss = binary_cross_entropy_with_logits(logits, planned.labels)
            value = float(loss.detach())
        if not math.isfinite(value):
            what = f"{name}: the loss is {value}"
            raise explain_loss(what, planned.batch, logits=logits, pooled=pooled, model=self.model)
        with timed("backward"):
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        with timed("update"):
            parameters, features = bad_parameters(self.model), self.embeddings.bad_gradients()
            if parameters or features:
                raise explain_gradients(name, planned.batch, parameters=parameters, features=features)
            self.optimizer.step()
            self.embeddings.step()
        self.recorder.step(value, logits, planned.batch.labels)

    def _next(self, coming: Iterator[Planned]) -> Planned | None:
        with self.recorder.timed("wait"):
            planned = next(coming, None)
        self.recorder.write_if_due()  # only now does the last batch count as trained
        return planned
