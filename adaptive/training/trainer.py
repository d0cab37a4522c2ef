"""The training loop.

for planned in embeddings.look_ahead(batches, depth=depth):       read, plan, write back, fetch; wait
    loss = log_loss(model(planned.dense, embeddings.stack(planned)), planned.labels)       forward
    optimizer.zero_grad(); loss.backward()                                                 backward
    optimizer.step()                                                                       update
    embeddings.step()                                                                      row_update

A batch in parts goes forward and backward part by part, and is updated once. The loss of a part is its samples' share
of the batch's mean, so every sample has the gradient that it has without parts, as far as its model's own rounding
does not depend on how many samples run together; dense gradients are sums of the parts' sums. Layers whose samples
influence each other (batch normalisation) would see each part as a batch. For a model with a layer that says so
(`mixes_samples = True`, as `BatchFeatureNorm` does), batches are trained whole, whatever parts they have.

What a forward pass changes by itself (buffers, such as running statistics) is put back where its batch is not trained
or is run again.

On a GPU a step waits for the device once, between the backward pass and the update: whether loss and gradients are
finite must be known before anything is updated. Everything before that is asked for without a wait.

The update of the dense weights is done wholly or not at all: a step of torch's optimizers cannot be taken back, and if
memory ran out in the middle, some weights would have moved. So the memory that it may take is asked for before, where a
batch can still be run again with fewer device rows.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.embeddings.dense_step import dense_step
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.models.dense.layers import at_step
from adaptive.models.tasks import label_tensor, labels_of, log_losses, tasks_of
from adaptive.system import running_out
from adaptive.training.evaluation import evaluate, vectors_of
from adaptive.training.finite import bad_parameters, explain_gradients, explain_loss, sums_of_gradients
from adaptive.training.telemetry.recorder import Recorder

# Most that one step takes anew, over the gradients' bytes: Adam its state (2, in its first step) and the square root of
# the second moment (1), Adagrad a root and a numerator (2), and one more for the rounding of the allocator.
UPDATE_ROOM: Final = 4


@dataclass(frozen=True)
class _Passed:
    """What forward and backward gave."""

    losses: list[float]  # of each part: its share of the batch's
    parts: list[Planned]
    logits: list[Tensor]  # of each part
    finite: bool = True  # all gradients are, for sure


class Trainer:
    """Trains `model(dense, pooled) -> logits (B,)` and its embeddings on click labels, by mean log loss.

    A model of T labels (`adaptive.models.tasks`) gives logits (B, T); its loss is the weighted sum of theirs. A model
    behind matrices for tables of several widths (`adaptive.models.dense.assembly`) is given vectors side by side.
    """

    def __init__(
        self,
        embeddings: TieredEmbeddingBag,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        recorder: Recorder | None = None,
        set_rates: Callable[[int], None] = lambda step: None,
    ) -> None:
        """
        Args:
            embeddings: all features pooled and, unless the model takes widths, of one width.
            model: on `embeddings.device`.
            optimizer: of the model's parameters; rows have their own.
            recorder: told of each step; default: one that writes nowhere.
            set_rates: called before each update with the number of steps trained so far.
        """
        self.embeddings, self.model, self.optimizer = embeddings, model, optimizer
        self.recorder = Recorder(embeddings) if recorder is None else recorder
        self._set_rates = set_rates
        self._tasks = tasks_of(model)
        self._mixes_samples = any(getattr(module, "mixes_samples", False) for module in model.modules())
        self._dense = dense_step(embeddings, model)

    def train(self, batches: Iterable[Batch], *, depth: int = 4, stopped: Callable[[], bool] = lambda: False) -> int:
        """Train on the batches, or until `stopped()` after a step; returns the number of steps.

        Raises:
            NonFiniteError: for a loss or gradient that is not finite; nothing of its batch was updated.

        With ranks, all of them are given the same batches, and each trains its own part.
        """
        self.model.train()
        before = self.recorder.steps
        self.recorder.start()
        look_ahead = contextlib.closing(self.embeddings.look_ahead(self._dense.own_parts(batches), depth=depth))
        with look_ahead as coming, self.embeddings.reporting_errors():
            while (planned := self._next(coming)) is not None:
                self.step(planned)
                self.measure(planned)
                if stopped():
                    break
        self._dense.check_alike(self.recorder.steps)
        self.recorder.write_interval()
        return self.recorder.steps - before

    def step(self, planned: Planned) -> None:
        """Train one batch. Whether the numbers are finite is known before anything is updated.

        A device that runs out of memory in the passes gives rows back, and they are run again.
        """
        name = f"step {self.recorder.steps + 1}"
        passed = self.embeddings.runtime.with_room(lambda: self._checked_passes(planned, name))
        labels = planned.batch.labels if self._tasks is None else labels_of(planned.batch, self._tasks)
        with self.recorder.timed("update"):
            loss, logits, labels = self._dense.combine(planned, passed.losses, passed.logits, labels)
        self._set_rates(self.recorder.steps)
        with self.recorder.timed("update"):
            update(self.optimizer)
        with self.recorder.timed("row_update"):
            self.embeddings.step()
        self.recorder.step(loss, logits, labels)

    def _checked_passes(self, planned: Planned, name: str) -> _Passed:
        with buffers_back_on_error(self.model):
            passed = self._passes(planned)
            self._check(passed, planned, name)
        return passed

    def _passes(self, planned: Planned) -> _Passed:
        """Forward and backward of all parts, and the one wait for the device."""
        self.optimizer.zero_grad()
        learnt, losses, logits, sums_of_blocks = [], [], [], []
        self._dense.begin()
        parts = self._in_one(planned) if self._mixes_samples and not planned.is_share else planned.parts()
        while (part := self._next_part(parts)) is not None:
            loss, logits_of_part = self._learn(part)
            learnt.append(part)
            losses.append(loss)
            logits.append(logits_of_part)
            sums_of_blocks += self._dense.take_gradients()
        if not learnt:  # this rank has no samples of the batch
            return _Passed([], [], [])
        with self.recorder.timed("backward"):
            rows = [one for work in planned.works if (one := work.gradients) is not None]
            numbers = torch.stack([*losses, *sums_of_blocks, *sums_of_gradients(self.model, rows)])
            require_room(self.optimizer, self.embeddings.device)
            values = numbers.tolist()
        return _Passed(values[: len(losses)], learnt, logits, all(map(math.isfinite, values[len(losses) :])))

    def _learn(self, part: Planned) -> tuple[Tensor, Tensor]:
        """Forward and backward; returns the part's share of the batch's loss, and its logits."""
        timed = self.recorder.timed
        with timed("forward"):
            vectors, labels = vectors_of(self.embeddings, self.model, part), self._labels(part)
            at_step(
                self.model,
                self.recorder.steps,
                first=part.first,
                samples=part.num_samples,
                whole=part.num_samples_of_all,
            )
            logits = self.model(part.dense, vectors)
            loss = log_losses(logits, labels, self._tasks, samples=part.num_samples_of_all)
        with timed("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), logits.detach()

    def _labels(self, part: Planned) -> Tensor:
        """(n,), or of a model of T labels (n, T)."""
        if self._tasks is None:
            return part.labels
        return label_tensor(part.labels, part.extras, self._tasks)

    def _check(self, passed: _Passed, planned: Planned, name: str) -> None:
        for part, loss, logits in zip(passed.parts, passed.losses, passed.logits, strict=True):
            if not math.isfinite(loss):
                with torch.no_grad():  # again, rather than keeping every batch's vectors until the wait
                    pooled = vectors_of(self.embeddings, self.model, part)
                what = f"{name}: the loss is {loss}"
                raise explain_loss(what, part.batch, logits=logits, pooled=pooled, model=self.model)
        if not passed.finite:
            parameters, features = self._bad_parameters(), self.embeddings.optimizer.bad_gradients()
            if parameters or features:
                raise explain_gradients(name, planned.batch, parameters=parameters, features=features)

    def _bad_parameters(self) -> list[str]:
        bad: dict[str, None] = {}
        for _ in self._dense.each_block():
            bad |= dict.fromkeys(bad_parameters(self.model))
        return list(bad)

    def _in_one(self, planned: Planned) -> Iterator[Planned]:
        """The whole batch as its own only part, once all of its rows are in place."""
        planned.wait()
        yield planned

    def _next_part(self, parts: Iterator[Planned]) -> Planned | None:
        with self.recorder.timed("wait"):
            return next(parts, None)

    def measure(self, planned: Planned) -> None:
        """The loss on samples of a trained batch that the policy has held back, if there are any."""
        if planned.batch.held_back is not None:
            quality = evaluate(self.embeddings, self.model, [planned.batch.held_back])
            assert quality.log_loss is not None
            self.embeddings.report_loss(planned, quality.log_loss)

    def _next(self, coming: Iterator[Planned]) -> Planned | None:
        with self.recorder.timed("wait"):
            planned = next(coming, None)
        if self.recorder.is_due:  # only now does the last batch count as trained
            self._dense.check_alike(self.recorder.steps)
            self.recorder.write_interval()
        return planned


def require_room(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Make sure, without a wait, that a GPU has the memory which `update` takes; ordinary memory is not asked.

    Raises:
        torch.OutOfMemoryError: if it has not. Nothing was updated.
    """
    if device.type == "cpu":
        return
    groups = optimizer.param_groups
    gradients = [weight.grad for group in groups for weight in group["params"] if weight.grad is not None]
    # torch keeps what is freed here for the next to ask: the optimizer.
    torch.empty(UPDATE_ROOM * sum(gradient.nbytes for gradient in gradients), dtype=torch.uint8, device=device)


def update(optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimizer.

    Raises:
        DeviceMemoryError: if it runs out of memory all the same, as one that takes more than torch's usual ones may.
    """
    with running_out("in the update of dense weights"):
        optimizer.step()


@contextlib.contextmanager
def buffers_back_on_error(model: nn.Module) -> Iterator[None]:
    """Give the model's buffers (running statistics) the values back that they had, if what is inside fails."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    except BaseException:
        for buffer, value in before:
            buffer.copy_(value)
        raise
