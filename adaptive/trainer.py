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
finite must be known before anything is updated. Everything before that is asked for without a wait. With
`finite_check="a_step_later"` it does not wait: the numbers are looked at when the next step has asked for its own
passes (`step.unchecked`), and before anybody sees what they have changed. Ranks look before the update all the same:
their gradients cross by the host anyway.

The update of the dense weights is done wholly or not at all: a step of torch's optimizers cannot be taken back, and if
memory ran out in the middle, some weights would have moved. So the memory that it may take is asked for before, where a
batch can still be run again with fewer device rows.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.config import FiniteCheck
from adaptive.embedding import TieredEmbeddingBag
from adaptive.embedding.blocks import PlannedBlocks
from adaptive.embedding.dense import StepTogether
from adaptive.errors import ConfigError
from adaptive.evaluation import evaluate, vectors_of
from adaptive.finite import bad_parameters, explain_gradients, explain_loss, sums_of_gradients
from adaptive.models.layers.dropout import at_step
from adaptive.models.tasks import label_tensor, labels_of, log_losses, tasks_of
from adaptive.planned import Planned
from adaptive.step.graphs import DenseGraph, Inputs
from adaptive.step.unchecked import LaterChecks, LearntPart, Numbers, numbers_of, total_loss
from adaptive.step.update import buffers_back_on_error, require_room, update
from adaptive.telemetry.recorder import Recorder


@dataclass(frozen=True)
class _Passed:
    """What forward and backward gave."""

    losses: list[float]  # of each part: its share of the batch's
    parts: list[Planned]
    logits: list[Tensor]  # of each part
    finite: bool = True  # all gradients are, for sure
    numbers: Numbers | None = None  # of a step that is not looked at yet, whose losses are none

    @property
    def loss(self) -> float | None:
        """Of the batch, where it is known."""
        return total_loss(self.losses) if self.numbers is None else None


class Trainer:
    """Trains `model(dense, pooled) -> logits (B,)` and its embeddings on click labels, by mean log loss.

    A model of T labels (`adaptive.models.tasks`) gives logits (B, T); its loss is the weighted sum of theirs. A model
    behind matrices for tables of several widths (`adaptive.models.widths`) is given vectors side by side.
    """

    def __init__(
        self,
        embeddings: TieredEmbeddingBag,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        recorder: Recorder | None = None,
        set_rates: Callable[[int], None] = lambda step: None,
        finite_check: FiniteCheck = "before_update",
        dense_graphs: bool = False,
    ) -> None:
        """
        Args:
            embeddings: all features pooled and, unless the model takes widths, of one width.
            model: on `embeddings.device`.
            optimizer: of the model's parameters; rows have their own.
            recorder: told of each step; default: one that writes nowhere.
            set_rates: called before each update with the number of steps trained so far.
            finite_check: when loss and gradients are looked at. "a_step_later": a GPU is not waited for in a step; the
                numbers are the same, but if one is not finite, the step has updated tables and weights when that is
                known, and they are refused from then on. With ranks it is as "before_update".
            dense_graphs: on a GPU, batches of one shape go forward and backward through the model as a CUDA graph
                (`step.graphs`); elsewhere nothing changes.

        Raises:
            ConfigError: `dense_graphs` with ranks, or a model whose passes depend on the host.
        """
        if finite_check not in get_args(FiniteCheck):
            raise ConfigError(
                f"finite_check: one of {', '.join(get_args(FiniteCheck))} is needed, found {finite_check!r}"
            )
        self.embeddings, self.model, self.optimizer = embeddings, model, optimizer
        self.recorder = Recorder(embeddings) if recorder is None else recorder
        self._set_rates = set_rates
        self._tasks = tasks_of(model)
        self._mixes_samples = any(getattr(module, "mixes_samples", False) for module in model.modules())
        self._together = None if embeddings.ranks is None else StepTogether(embeddings.ranks, model)
        self._looks_later = finite_check == "a_step_later" and self._together is None
        self._graph: DenseGraph | None = None
        if dense_graphs:
            if self._together is not None:
                raise ConfigError(
                    "dense_graphs: ranks train block by block, which no graph does; set dense_graphs=false"
                )
            self._graph = DenseGraph(model, self._tasks, embeddings.device)
        self._later = LaterChecks(embeddings, self.recorder)

    def train(self, batches: Iterable[Batch], *, depth: int = 4, stopped: Callable[[], bool] = lambda: False) -> int:
        """Train on the batches, or until `stopped()` after a step; returns the number of steps.

        Raises:
            NonFiniteError: for a loss or gradient that is not finite; nothing of its batch was updated, or else the
                error says so: then tables and model are refused from now on.

        With ranks, all of them are given the same batches, and each trains its own part.
        """
        if self._together is not None:
            batches = self._together.own_parts(batches)
        self.model.train()
        before = self.recorder.steps
        self.recorder.start()
        look_ahead = contextlib.closing(self.embeddings.look_ahead(batches, depth=depth))
        with look_ahead as coming, self.embeddings.telling_ranks(), self._later.told_first():
            while (planned := self._next(coming)) is not None:
                self.step(planned)
                self.measure(planned)
                if stopped():
                    break
            self.check()
        self._check_alike()
        self.recorder.write_interval()
        return self.recorder.steps - before

    def step(self, planned: Planned) -> None:
        """Train one batch. Whether the numbers are finite is known before anything is updated, or one step later.

        A device that runs out of memory in the passes gives rows back, and they are run again. A loop of one's own that
        calls this, and looks a step later, calls `check` before it saves the model or ends.
        """
        self._later.refuse_spoiled()
        name = f"step {self.recorder.steps + 1}"
        passed = self.embeddings.with_room(lambda: self._checked_passes(planned, name))
        self.check()
        if passed.numbers is not None:
            parts = [LearntPart(part.first, logits) for part, logits in zip(passed.parts, passed.logits, strict=True)]
            self._later.expect(name, planned.batch, parts, passed.numbers)
        loss, logits, labels = self._of_all(planned, passed)
        self._set_rates(self.recorder.steps)
        with self.recorder.timed("update"):
            update(self.optimizer)
        with self.recorder.timed("row_update"):
            self.embeddings.step()
        self.recorder.step(loss, logits, labels)

    def check(self) -> None:
        """Look at the numbers of the latest step, if nobody has yet (`finite_check="a_step_later"`).

        Raises:
            NonFiniteError: if one is not finite. Tables and model are spoiled, and refused from now on.
        """
        self._later.check()

    def _of_all(self, planned: Planned, passed: _Passed) -> tuple[float | None, Tensor, NDArray[np.float32]]:
        """Loss, logits and labels of the whole batch; with ranks, dense gradients are sums over all of them now."""
        labels = planned.batch.labels if self._tasks is None else labels_of(planned.batch, self._tasks)
        if self._together is not None:
            assert isinstance(planned, PlannedBlocks)
            with self.recorder.timed("update"):
                return self._together.agree(self.embeddings, planned, passed.losses, passed.logits, labels)
        logits = torch.cat(passed.logits) if len(passed.logits) > 1 else passed.logits[0]
        return passed.loss, logits, labels

    def _checked_passes(self, planned: Planned, name: str) -> _Passed:
        with buffers_back_on_error(self.model):
            passed = self._passes(planned)
            self._check(passed, planned, name)
        return passed

    def _passes(self, planned: Planned) -> _Passed:
        """Forward and backward of all parts, and the one wait for the device, if the numbers are looked at now."""
        self.optimizer.zero_grad()
        learnt, losses, logits, sums_of_blocks = [], [], [], []
        if self._together is not None:
            self._together.begin()
        parts = self._in_one(planned) if self._mixes_samples and not planned.is_share else planned.parts()
        while (part := self._next_part(parts)) is not None:
            loss, logits_of_part = self._learn(part)
            learnt.append(part)
            losses.append(loss)
            logits.append(logits_of_part)
            if self._together is not None:
                sums_of_blocks.append(self._together.take_gradients())
        if not learnt:  # this rank has no samples of the batch
            return _Passed([], [], [])
        with self.recorder.timed("backward"):
            if self._looks_later:
                unchecked = numbers_of(losses, self.model, planned)
                require_room(self.optimizer, self.embeddings.device)
                return _Passed([], learnt, logits, numbers=unchecked)
            rows = [one for work in planned.works if (one := work.gradients) is not None]
            numbers = torch.stack([*losses, *sums_of_blocks, *sums_of_gradients(self.model, rows)])
            require_room(self.optimizer, self.embeddings.device)
            found = numbers.tolist()
        return _Passed(found[: len(losses)], learnt, logits, all(map(math.isfinite, found[len(losses) :])))

    def _learn(self, part: Planned) -> tuple[Tensor, Tensor]:
        """Forward and backward; returns the part's share of the batch's loss, and its logits."""
        timed = self.recorder.timed
        with timed("forward"):
            vectors, labels = vectors_of(self.embeddings, self.model, part), self._labels(part)
            passes = None
            if self._graph is not None and not part.is_share:
                passes = self._graph.passes(Inputs(part.dense, vectors, labels))
        if passes is not None:
            with timed("backward"):
                passes.hand_on(vectors)
            return passes.loss, passes.logits
        with timed("forward"):
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
        if passed.numbers is not None:
            return
        for part, loss, logits in zip(passed.parts, passed.losses, passed.logits, strict=True):
            if not math.isfinite(loss):
                with torch.no_grad():  # again, rather than keeping every batch's vectors until the wait
                    pooled = vectors_of(self.embeddings, self.model, part)
                what = f"{name}: the loss is {loss}"
                raise explain_loss(what, part.batch, logits=logits, pooled=pooled, model=self.model)
        if not passed.finite:
            parameters, features = self._bad_parameters(), self.embeddings.bad_gradients()
            if parameters or features:
                raise explain_gradients(name, planned.batch, parameters=parameters, features=features)

    def _bad_parameters(self) -> list[str]:
        if self._together is None:
            return bad_parameters(self.model)
        found: dict[str, None] = {}
        for block in range(len(self._together.blocks)):
            self._together.put_back(block)
            found |= dict.fromkeys(bad_parameters(self.model))
        return list(found)

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
            found = evaluate(self.embeddings, self.model, [planned.batch.held_back])
            assert found.log_loss is not None
            self.embeddings.report_loss(planned, found.log_loss)

    def _check_alike(self) -> None:
        if self._together is not None and self.embeddings.ranks is not None and self.embeddings.ranks.size > 1:
            self._together.check_alike(self.recorder.steps)

    def _next(self, coming: Iterator[Planned]) -> Planned | None:
        with self.recorder.timed("wait"):
            planned = next(coming, None)
        if self.recorder.is_due:  # only now does the last batch count as trained
            self.check()
            self._check_alike()
            self.recorder.write_interval()
        return planned
