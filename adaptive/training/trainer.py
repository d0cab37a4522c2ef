"""The training loop.

for planned in embeddings.look_ahead(batches, depth=depth):       read, plan, write back, fetch; wait
    loss = log_loss(model(planned.dense, embeddings.stack(planned)), planned.labels)       forward
    optimizer.zero_grad(); loss.backward()                                                 backward
    optimizer.step()                                                                       update
    embeddings.step()                                                                      row_update

A batch in parts goes forward and backward part by part, followed by one update. The loss of a part is its samples'
share of the batch's mean, so each sample has the same gradient as without parts, except for rounding that depends on
the number of samples in a matrix product. Layers whose samples influence each other (batch normalization) would treat
each part as a batch. If a layer sets `mixes_samples = True`, batches are trained whole.

Changes of buffers in a forward pass (running statistics) are undone if the batch is not trained.

Loss and gradients must be finite before anything changes. On a GPU the host does not wait to see it: a flag on the
device stops all changes, and the host looks two steps later (`flagged_steps`). A step waits once, between the backward
pass and the update, where the flag cannot be read: on a CPU, among several processes, if rows are updated on the host,
with dense optimizers that are not fused, and in `step` outside of `train`. A step that need not wait is launched as one
CUDA graph if its batch has the size of most (`dense_graph`).

The update of dense weights must not fail halfway: torch's optimizers cannot undo a step, so running out of memory in
the middle would leave some weights changed. Its memory is therefore allocated before, while nothing has changed.
"""

import contextlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from adaptive.arrays import Floats
from adaptive.batch import Batch
from adaptive.distributed.sharded_embedding_bag import Embeddings
from adaptive.embeddings.planned_batch import LookAhead, Planned
from adaptive.errors import NonFiniteError
from adaptive.models.loss import log_loss
from adaptive.training.dense_graph import DenseStep, has_dropout
from adaptive.training.evaluation import evaluate, vectors_of
from adaptive.training.finite import bad_parameters, explain_gradients, explain_loss, sums_of_gradients
from adaptive.training.flagged_steps import (
    LAG,
    FlaggedSteps,
    Judged,
    may_be_flagged,
    rates_as_on_the_device,
    restoring_on_error,
    save_buffers,
)
from adaptive.training.telemetry.recorder import Recorder

# Maximum new memory of a step, as a multiple of the gradients' bytes: Adam its state (2, in its first step) and the
# square root of the second moment (1), Adagrad a root and a numerator (2), and 1 for the rounding of the allocator.
UPDATE_ROOM: Final = 4
IN_PASSES: Final = "in the forward or backward pass"
IN_UPDATE: Final = "in the update of dense weights"


@dataclass(frozen=True)
class Passed:
    """Results of the forward and backward passes."""

    losses: list[float]  # per part: its share of the batch's loss
    parts: list[Planned]
    logits: list[Tensor]  # per part
    finite: bool = True  # all gradients are finite; False: perhaps not


class Trainer:
    """Trains `model(dense, pooled)` and its embeddings on labels, by the mean log loss.

    A model for tables of several widths (`adaptive.models.dense.assembly`) takes concatenated vectors.
    The loss of each sample is multiplied by `Batch.extras["weight"]` (B,), if the batch has it.
    """

    def __init__(
        self,
        embeddings: Embeddings,
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
            optimizer: for the model's parameters; rows have a separate one.
            recorder: records each step; default: one without sinks.
            set_rates: called before each update with the number of trained steps.
        """
        self.embeddings, self.model, self.optimizer = embeddings, model, optimizer
        self.recorder = Recorder(embeddings) if recorder is None else recorder
        self._set_rates = set_rates
        self._steps: FlaggedSteps | None = None  # one for all trainings: a graph has its flag and rates
        self._flagged: FlaggedSteps | None = None  # these, in `train`
        self._dense_step = DenseStep(embeddings, model, optimizer, self._run_dense)
        self._seed = torch.initial_seed() % 2**64
        self._has_dropout = has_dropout(model)
        self._mixes_samples = any(getattr(module, "mixes_samples", False) for module in model.modules())

    def train(self, batches: Iterable[Batch], *, depth: int = 4, after_step: Callable[[], None] = lambda: None) -> int:
        """Train until the batches end; return the number of steps.

        Raises:
            NonFiniteError: for a loss or gradient that is not finite; its batch changes nothing.
        """
        self.model.train()
        first_step = self.recorder.steps
        self.recorder.start()
        with (
            self._looking_later(),
            contextlib.closing(self._look_ahead(self._recorded(batches), depth)) as planned_batches,
            self.embeddings.reporting_errors(),
        ):
            while (planned := self._next(planned_batches)) is not None:
                self.step(planned)
                self.measure(planned)
                after_step()
            self._look()
        self._write_interval()
        return self.recorder.steps - first_step

    @contextlib.contextmanager
    def _looking_later(self) -> Iterator[None]:
        """Let steps go on without a wait, if they can."""
        if may_be_flagged(self.embeddings, self.optimizer):
            if self._steps is None:
                self._steps = FlaggedSteps(self.embeddings, self.model, self.optimizer)
            self._steps.start()
            self._flagged = self._steps
        try:
            yield
        finally:
            with contextlib.suppress(NonFiniteError):  # after another error: record the steps that are trained
                self._look()
            self._flagged = None

    def _recorded(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """Return the batches, after the dense step has been recorded as a graph for those of the first one's size."""
        return batches if self._flagged is None else self._dense_step.record(batches, self._flagged)

    def _look(self, lag: int = 0) -> None:
        if self._flagged is not None:
            self._flagged.look(lag)

    @property
    def _launched(self) -> int:
        """Number of the latest step; the recorder has those that the host has looked at."""
        return self.recorder.steps + (0 if self._flagged is None else self._flagged.in_flight)

    def _look_ahead(self, batches: Iterable[Batch], depth: int) -> LookAhead:
        return self.embeddings.look_ahead(batches, depth=depth)

    def _write_interval(self) -> None:
        if self._flagged is None:
            self.recorder.write_interval()
        else:
            self._flagged.then(partial(self.recorder.write_interval, self.recorder.cut(self._launched)))

    def step(self, planned: Planned) -> None:
        """Train one batch. Nothing changes unless loss and gradients are finite.

        Raises:
            DeviceMemoryError: if GPU memory runs out. In the passes, nothing has changed then.
            NonFiniteError: for this batch; in `train` perhaps for one of the two before it.
        """
        if self._flagged is not None:
            return self._step_on(planned, self._flagged)
        name, buffers = f"step {self._launched + 1}", save_buffers(self.model)
        with self.embeddings.runtime.pipeline.running_out(IN_PASSES), restoring_on_error(buffers):
            passed = self._passes(planned)
            self._check(passed, planned, name)
        with self.recorder.timed("update"):
            of_batch = self._combine(planned, passed)
        self._set_rates(self._launched)
        running_out = self.embeddings.runtime.pipeline.running_out
        with self.recorder.timed("update"), running_out(IN_UPDATE), rates_as_on_the_device(self.optimizer):
            self.optimizer.step()
        with self.recorder.timed("row_update"):
            self.embeddings.step()
        self.recorder.step(*of_batch)

    def _step_on(self, planned: Planned, flagged: FlaggedSteps) -> None:
        """`step` without a wait, as a part of `train`."""
        name, before = f"step {self._launched + 1}", (save_buffers(self.model), len(self.optimizer.state))
        self._set_rates(self._launched)
        running_out = self.embeddings.runtime.pipeline.running_out
        with running_out(IN_PASSES), restoring_on_error(before[0]), flagged.deciding():
            judged = self._dense_step(planned)
        with self.recorder.timed("row_update"), flagged.deciding():
            self.embeddings.step()
        labels, weights = planned.batch.labels, weights_of(planned)
        record = lambda loss, logits: self.recorder.step(loss, logits, labels, weights)  # noqa: E731
        flagged.add(name, planned.batch, judged, before, record)
        flagged.look(LAG)

    def _run_dense(self, planned: Planned) -> Judged:
        """Forward, loss, backward, flag and update of dense weights: what a graph repeats."""
        assert self._flagged is not None
        self.optimizer.zero_grad()
        judged = self._flagged.judge(planned, *self._forward_backward(planned))
        reserve_update_memory(self.optimizer, self.embeddings.device)
        with self.recorder.timed("update"), self.embeddings.runtime.pipeline.running_out(IN_UPDATE):
            self.optimizer.step()
        return judged

    def _combine(self, planned: Planned, passed: Passed) -> tuple[float, Tensor, Floats, Floats]:
        """Return the loss of the whole batch, and logits, labels and weights (B,) of its samples; no weights: (0,)."""
        logits = torch.cat(passed.logits) if len(passed.logits) > 1 else passed.logits[0]
        # One after the other: the built-in `sum` compensates rounding errors.
        return reduce(operator.add, passed.losses, 0.0), logits, planned.batch.labels, weights_of(planned)

    def _passes(self, planned: Planned) -> Passed:
        """Run forward and backward of all parts, and wait for the device once."""
        self.optimizer.zero_grad()
        passed, losses, logits = [], [], []
        parts = planned.parts()
        if self._mixes_samples and not planned.is_share:  # the whole batch, after waiting for all of its rows
            planned.wait()
            parts = iter([planned])
        while (part := self._wait_for_next(parts)) is not None:
            loss, logits_of_part = self._forward_backward(part)
            passed.append(part)
            losses.append(loss)
            logits.append(logits_of_part)
        if not passed:  # no samples
            return Passed([], [], [])
        with self.recorder.timed("backward"):
            rows = [work.gradients for work in planned.works if work.gradients is not None]
            numbers = torch.stack([*losses, *sums_of_gradients(self.model, rows)])
            reserve_update_memory(self.optimizer, self.embeddings.device)
            values = numbers.tolist()  # THE wait of a step for the device: all before is launched, nothing has changed
        finite = all(map(math.isfinite, values[len(losses) :]))
        return Passed(values[: len(losses)], passed, logits, finite)

    def _forward_backward(self, part: Planned) -> tuple[Tensor, Tensor]:
        """Return the part's share of the batch's loss, and its logits, after forward and backward."""
        with self.recorder.timed("forward"):
            vectors = vectors_of(self.embeddings, self.model, part)
            words = self._seed, self._launched, part.first
            with seeded(words, self.embeddings.device) if self._has_dropout else contextlib.nullcontext():
                logits: Tensor = self.model(part.dense, vectors)
            loss = self._loss(part, logits)
        with self.recorder.timed("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), logits.detach()

    def _loss(self, part: Planned, logits: Tensor) -> Tensor:
        """Return a part's share of the batch's loss."""
        weights = part.extras.get("weight")
        weights = None if weights is None else weights.to(logits.dtype)
        return log_loss(logits, part.labels, samples=part.num_samples_of_all, weights=weights)

    def _check(self, passed: Passed, planned: Planned, name: str) -> None:
        for part, loss, logits in zip(passed.parts, passed.losses, passed.logits, strict=True):
            if not math.isfinite(loss):
                with torch.no_grad():  # pooled again, to avoid keeping the vectors of every batch until the wait
                    pooled = vectors_of(self.embeddings, self.model, part)
                name += f": the loss is {loss}"
                raise explain_loss(name, part.batch, logits=logits, pooled=pooled, model=self.model)
        if not passed.finite:
            parameters, bad = list(bad_parameters(self.model)), set(planned.bad_gradients())
            features = [name for name in self.embeddings.features if name in bad]
            if parameters or features:
                raise explain_gradients(name, planned.batch, parameters=parameters, features=features)

    def _wait_for_next(self, works: Iterator[Planned]) -> Planned | None:
        with self.recorder.timed("wait"):
            return next(works, None)

    def measure(self, planned: Planned) -> None:
        """Report the loss on samples of the batch that the policy held back, if there are any."""
        if planned.batch.held_back is not None:
            self._look()
            loss = evaluate(self.embeddings, self.model, [planned.batch.held_back]).log_loss
            assert loss is not None
            self.embeddings.report_loss(planned, loss)

    def _next(self, planned_batches: Iterator[Planned]) -> Planned | None:
        planned = self._wait_for_next(planned_batches)
        if self.recorder.is_due(self._launched):  # fetching the next batch makes the last one count as trained
            self._write_interval()
        return planned


def weights_of(planned: Planned) -> Floats:
    """Weights (B,) of the samples; (0,): all are 1."""
    return np.asarray(planned.batch.extras.get("weight", ()), np.float32)


def reserve_update_memory(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Reserve the memory of `update` on a GPU without a wait; does nothing on a CPU.

    Raises:
        torch.OutOfMemoryError: if it is not available. Nothing was updated.
    """
    if device.type == "cpu":
        return
    groups = optimizer.param_groups
    gradients = [weight.grad for group in groups for weight in group["params"] if weight.grad is not None]
    # torch's allocator keeps the freed memory for the optimizer, which allocates next.
    torch.empty(UPDATE_ROOM * sum(gradient.nbytes for gradient in gradients), dtype=torch.uint8, device=device)


@contextlib.contextmanager
def seeded(numbers: Sequence[int], device: torch.device) -> Iterator[None]:
    """Seed torch's generators, for dropout, by the run's seed, the step and the part; restore them afterwards.

    So a resumed run drops the same values. Use it only for models with
    dropout: a loader may draw from the generators in the look-ahead thread.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        words = np.random.SeedSequence(numbers).generate_state(1, np.uint64)
        torch.manual_seed(int(words[0] >> np.uint64(1)))
        yield
