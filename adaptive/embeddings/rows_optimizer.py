"""`RowsOptimizer`: from gradients to updated rows, as torch's schedulers, loops and loss scalers know an optimizer.

A rate belongs to the step that uses it: rows are updated by the training thread with the rate that stands in
`param_groups` then, however far ahead their batch was planned. Gradients that wait (deferral) are applied with the rate
of the batch at which they are.

Rows are no parameters. What `torch.amp.GradScaler` asks of parameters it asks of a stand-in for them: whether gradients
are finite, and it divides that answer, a 1, by its scale, as it would divide gradients. By that number the gradients of
rows are multiplied before they are used. So `unscale_` and `step` of the scaler work, and no number has to be fetched
from a device. Without a scaler nothing of this is computed.
"""

import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from adaptive.embeddings.distributed import LocalSteps
from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.embeddings.planned_batch import GroupBatch, Planned
from adaptive.errors import ConfigError
from adaptive.system import running_out


class _StandIn(torch.Tensor):
    """(1,) in the place of all rows. Its gradient is a 1, NaN if a gradient of theirs is not finite; made when somebody
    asks for it, and None where there are no gradients."""

    find: Callable[[], Tensor | None]
    answer: Tensor | None
    was_asked: bool

    @property
    def grad(self) -> Tensor | None:
        self.was_asked = True
        if self.answer is None:
            self.answer = self.find()
        return self.answer

    @grad.setter
    def grad(self, value: Tensor | None) -> None:  # `zero_grad` of whoever goes through parameters
        return

    def forget(self) -> None:
        self.answer, self.was_asked = None, False


class RowsOptimizer(torch.optim.Optimizer):
    """Updates the rows of each batch; one parameter group for all tables, whose `lr` a scheduler may change.

    `step()` is that of the embeddings. `zero_grad()` does nothing, as each batch's gradients go with it. `state_dict()`
    holds the rate; the state of rows is in the embeddings' own.
    """

    def __init__(self, lr: float, pipeline: Pipeline, batch_steps: LocalSteps) -> None:
        self._pipeline, self._batch_steps = pipeline, batch_steps
        self._pending: dict[int, Planned] = {}  # batches that gradients have reached and that are not updated yet
        all_finite = weakref.WeakMethod(self._all_finite)  # no circle: tables go when nobody uses them any more

        def find() -> Tensor | None:
            method = all_finite()
            return None if method is None else method()

        self._stand_in = torch.zeros(1).as_subclass(_StandIn)
        self._stand_in.find = find
        self._stand_in.forget()
        super().__init__([self._stand_in], {"lr": lr})

    @property
    def lr(self) -> float:
        """The learning rate of the next `step()`, whichever batches are planned by then; that of a table is this times
        its `lr_scale`.

        Raises:
            ConfigError: if it is no finite number from 0 on; also when it is set.
        """
        rate = float(self.param_groups[0]["lr"])
        if not 0 <= rate < math.inf:
            raise ConfigError(f"the rows' learning rate: expected a number from 0 on, got {rate}")
        return rate

    @lr.setter
    def lr(self, value: float) -> None:
        self.param_groups[0]["lr"] = value
        _ = self.lr  # checks it

    def zero_grad(self, set_to_none: bool = True) -> None:
        return

    @torch.no_grad()
    def step(self, closure: Any = None, *, grad_scale: float = 1.0) -> None:  # type: ignore[override]
        """Update the rows of the batch whose backward pass has run; see `TieredEmbeddingBag.step`."""
        if closure is not None:
            raise ConfigError("the rows' optimizer takes no closure: their gradients come from one backward pass")
        self._pipeline.refuse_in_child()
        pending = [planned for planned in self._pending.values() if planned.has_gradients]
        if not pending and self._batch_steps.has_no_samples:
            return  # the other ranks' gradients come when the batch ends
        if not pending:
            raise ValueError("step(): no gradient has reached the embeddings; call loss.backward() first")
        if grad_scale != 1.0:
            self._batch_steps.refuse("grad_scale")
            if self.bad_gradients():
                return self.discard()
            for work in self._works_with_gradients():
                work.scale_gradients(1 / grad_scale)
        if (rate := self.lr) != self._pipeline.rate:
            self._pipeline.use_rate(rate)
        self._unscaled()
        with self._pipeline.stopwatch.stage("row_update"), running_out("in the update of rows"):
            for planned in pending:
                planned.wait()
                self._batch_steps.update(planned)
                del self._pending[planned.number]
        self._stand_in.forget()

    def clip_grad_norm_(self, max_norm: float, parameters: Iterable[Tensor] = (), *, grad_scale: float = 1.0) -> Tensor:
        """After backward: scale gradients so that their norm together is at most `max_norm`; returns what it was, ().

        Counted are the gradients of all vectors that were looked up, as backward hands them over, not their sums by
        row, and those of `parameters`: `embeddings.optimizer.clip_grad_norm_(1.0, model.parameters())`. Both are scaled
        by the same factor. `grad_scale`: by which the loss was multiplied (`torch.amp.GradScaler.get_scale()`) while
        `parameters` were not, or are unscaled already.
        """
        self._batch_steps.refuse("clip_grad_norm_")
        works = self._unscaled()
        dense = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for work in works:
            work.scale_gradients(1 / grad_scale)
        gradients = [*dense, *(gradient for work in works if (gradient := work.gradients) is not None)]
        norm: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one) for one in gradients]))
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for gradient in dense:
            gradient.mul_(factor)
        for work in works:
            work.scale_gradients(factor)
        return norm

    def bad_gradients(self) -> list[str]:
        """After backward: the features whose gradient holds NaN or infinity."""
        bad = {name for planned in self._pending.values() for name in planned.bad_gradients()}
        return [name for name in self._pipeline.features if name in bad]

    def take_gradients(self, planned: Planned, work: GroupBatch, gradients: Tensor) -> None:
        """Keep the gradients of vectors for `step()`. Called by autograd, on a GPU from a thread of its own."""
        if not planned.trainable:
            return
        if planned.whole.ended:
            raise ConfigError(
                f"batch {planned.number} has ended; its gradients cannot be applied. Call backward() and step() for "
                "each batch before you ask for the next one; to accumulate gradients, make batches larger."
            )
        work.add_gradients(gradients)
        self._pending[planned.number] = planned.whole

    def is_unapplied(self, planned: Planned) -> bool:
        """True if the batch has gradients that were neither applied nor discarded. May wait for the device."""
        if planned.number not in self._pending or not planned.has_gradients:
            return False
        # A scaler that asked about gradients which are not finite took no step.
        answer = self._stand_in.find() if self._stand_in.was_asked else None
        return answer is None or not bool(torch.isnan(answer).any())

    def discard(self) -> None:
        """Forget the gradients of the current batch: its rows are not updated."""
        for planned in self._pending.values():
            for work in planned.works:
                work.forget()
        self._pending.clear()
        self._stand_in.forget()

    def end_batch(self, planned: Planned) -> None:
        """The loop has asked for the next batch."""
        self._pending.pop(planned.number, None)
        self._stand_in.forget()

    def _unscaled(self) -> list[GroupBatch]:
        """`_works_with_gradients`, multiplied by what a scaler has left to do."""
        works = self._works_with_gradients()
        if (factor := self._stand_in.answer) is not None:
            self._batch_steps.refuse("a gradient scaler")
            for work in works:
                work.scale_gradients(factor)
            self._stand_in.answer = None
        return works

    @torch.no_grad()
    def _all_finite(self) -> Tensor | None:
        """(1,) a 1, NaN if a gradient is not finite; None if there is none."""
        works = [work for planned in self._pending.values() for work in planned.works]
        finite = [torch.isfinite(gradient).all() for work in works if (gradient := work.gradients) is not None]
        if not finite:
            return None
        return torch.where(torch.stack(finite).all(), 1.0, torch.nan).reshape(1)

    def _works_with_gradients(self) -> list[GroupBatch]:
        works = [work for planned in self._pending.values() for work in planned.works if work.gradients is not None]
        if not works:
            raise ValueError("no gradient has reached the embeddings; call loss.backward() first")
        return works
