"""`RowsOptimizer`: updates rows, with the interface of `torch.optim.Optimizer`.

A learning rate belongs to the step that uses it: the training thread updates rows with the current rate of
`param_groups`, no matter how far ahead their batch was planned. Accumulated updates (deferred) are applied with the
rate of the batch that applies them.

Rows are not parameters, so `torch.amp.GradScaler` works on a stand-in for them. The stand-in's gradient is 1, or NaN if
a gradient of the rows is not finite. `unscale_` divides it by the scale as it would divide gradients, and the gradients
of rows are multiplied by the result before they are used. The scaler's `step` leaves its scale and its finding in
`grad_scale` and `found_inf`, as for torch's fused optimizers: the kernels read the finding on the device, and no number
is fetched. Rows that are on the host or in ordinary memory need it at once. Without a scaler, none of this is
computed.
"""

import functools
import inspect
import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from adaptive.embeddings.checks import refuse_late_gradients
from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.embeddings.planned_batch import BatchSteps, GroupBatch, Planned
from adaptive.errors import ConfigError
from adaptive.system import Uninterrupted

Kind = TypeVar("Kind", bound=type[torch.optim.Optimizer])


def without_compiler(kind: Kind) -> Kind:
    """Let an optimizer class do without torch's compiler, whose import takes 0.8 s; returns the class.

    torch imports it to exclude methods from `torch.compile`. Do not call these of the class in compiled code.
    """
    for name in ("add_param_group", "state_dict", "load_state_dict", "zero_grad", "step"):
        method = inspect.unwrap(getattr(kind, name))
        setattr(kind, name, _without_gradients(method) if name == "step" else method)
    return kind


def _without_gradients(method: Callable[..., Any]) -> Callable[..., Any]:
    inside = torch.no_grad()(method)

    @functools.wraps(method)
    def step(*given: Any, **named: Any) -> Any:
        # Ctrl-C while torch switches would leave gradients off, and the next backward of a notebook without any.
        with Uninterrupted():
            return inside(*given, **named)

    return step


class _StandIn(torch.Tensor):
    """Tensor (1,) in place of all rows; its gradient is computed on first use."""

    find: Callable[[], Tensor | None]
    answer: Tensor | None

    @property
    def grad(self) -> Tensor | None:
        if self.answer is None:
            self.answer = self.find()
        return self.answer

    @grad.setter
    def grad(self, value: Tensor | None) -> None:  # set by code that clears the gradients of all parameters
        return

    def forget(self) -> None:
        self.answer = None


@without_compiler
class RowsOptimizer(torch.optim.Optimizer):
    """Updates the rows of each batch; one parameter group, whose `lr` a scheduler may change.

    `step()` is the same as `TieredEmbeddingBag.step()`. `zero_grad()` does nothing, because gradients belong to their
    batch. `state_dict()` contains the learning rate; the embeddings' `state_dict()` contains the state of rows.

    `found_inf` () float32 on the device, if it is set: a number other than 0 then makes `step()` change nothing.
    """

    _step_supports_amp_scaling = True  # for GradScaler
    found_inf: Tensor
    grad_scale: Tensor | None

    def __init__(self, lr: float, pipeline: Pipeline, batch_steps: BatchSteps, anchor: Tensor) -> None:
        """`anchor` requires a gradient unless rows are frozen."""
        self._pipeline, self._batch_steps, self._anchor = pipeline, batch_steps, anchor
        self._pending: dict[int, Planned] = {}  # batches with gradients whose rows are not updated yet
        all_finite = weakref.WeakMethod(self._all_finite)  # no reference cycle, so unused tables are freed at once

        def find() -> Tensor | None:
            method = all_finite()
            return None if method is None else method()

        self._stand_in = torch.zeros(1).as_subclass(_StandIn)
        self._stand_in.find = find
        self._stand_in.forget()
        super().__init__([self._stand_in], {"lr": lr})

    @property
    def lr(self) -> float:
        """Learning rate of the next `step()`; each table multiplies it by its `lr_scale`.

        Raises:
            ConfigError: if it is not a finite number of at least 0; also when you set it.
        """
        rate = float(self.param_groups[0]["lr"])
        if not 0 <= rate < math.inf:
            raise ConfigError(
                f"learning rate of rows: expected a finite number of at least 0, got {rate}. Set it by "
                "embeddings.optimizer.lr or a scheduler."
            )
        return rate

    @lr.setter
    def lr(self, value: float) -> None:
        self.param_groups[0]["lr"] = value
        _ = self.lr  # checks it

    def zero_grad(self, set_to_none: bool = True) -> None:
        return

    def step(self, closure: Any = None, *, grad_scale: float = 1.0) -> None:  # type: ignore[override]
        """Update the rows of the current batch; see `TieredEmbeddingBag.step`."""
        if closure is not None:
            raise ConfigError(
                "embeddings.optimizer.step(): expected no closure, got one. Gradients of rows come from one backward "
                "pass: call loss.backward(), then step()."
            )
        self._pipeline.lock.refuse_in_child()
        self._pipeline.lock.refuse_broken()
        # An exception may have kept an ended batch from leaving `_pending`: its slots have other rows now.
        pending = [p for p in self._pending.values() if p.has_gradients and self._pipeline.is_current(p.number)]
        _check_grad_scale(grad_scale)
        if not pending and not self._anchor.requires_grad:
            return
        if not pending:
            raise _no_gradients("step()")
        if grad_scale != 1.0:
            if self.bad_gradients():
                return self.discard()
            for work in self._works_with_gradients():
                work.scale_gradients(1 / grad_scale)
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and not self._pipeline.takes_flags:
            if bool(found_inf):
                return self.discard()
            found_inf = None
        # Rate and factor need no rows: on a device they are launched before the wait for rows that are in flight.
        if (rate := self.lr) != self._pipeline.rate:
            self._pipeline.use_rate(rate)
        self._unscale()
        with self._pipeline.stopwatch.stage("row_update"), self._pipeline.running_out("in the update of rows"):
            for planned in pending:
                planned.wait()
                self._batch_steps.update(planned, found_inf)
                del self._pending[planned.number]
        self._stand_in.forget()

    def clip_grad_norm_(self, max_norm: float, parameters: Iterable[Tensor] = (), *, grad_scale: float = 1.0) -> Tensor:
        """Scale all gradients to a total norm of at most `max_norm`; return the norm () before.

            embeddings.optimizer.clip_grad_norm_(1.0, model.parameters())

        The norm is that of the gradients of all looked-up vectors, as backward computes them and not summed by row,
        and of the gradients of `parameters`. Call it between backward and step.

        Args:
            max_norm: largest total norm.
            parameters: of the model, scaled by the same factor.
            grad_scale: factor by which the loss was multiplied (`torch.amp.GradScaler.get_scale()`), if the gradients
                of `parameters` are unscaled already.
        """
        _check_grad_scale(grad_scale)
        works = self._unscale()
        dense = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for work in works:
            work.scale_gradients(1 / grad_scale)
        gradients = [*dense, *(gradient for work in works if (gradient := work.gradients) is not None)]
        norms = [torch.linalg.vector_norm(gradient) for gradient in gradients] or [torch.zeros(())]  # all is frozen
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for gradient in dense:
            gradient.mul_(factor)
        for work in works:
            work.scale_gradients(factor)
        return norm

    def bad_gradients(self) -> list[str]:
        """Return the features whose gradient contains NaN or infinity. Call it after backward."""
        bad = {name for planned in self._pending.values() for name in planned.bad_gradients()}
        return [name for name in self._pipeline.features if name in bad]

    def take_gradients(self, planned: Planned, work: GroupBatch, gradients: Tensor) -> None:
        """Keep the gradients of vectors for `step()`. Autograd may call it from its own thread."""
        if not planned.trainable:
            return
        refuse_late_gradients(planned)
        work.add_gradients(gradients)
        self._pending[planned.number] = planned.whole

    def is_unapplied(self, planned: Planned) -> bool:
        """True if the batch has gradients that were neither applied nor discarded."""
        return planned.number in self._pending and planned.has_gradients

    def discard(self) -> None:
        """Drop the gradients of the current batch; its rows are not updated."""
        for planned in self._pending.values():
            for work in planned.works:
                work.forget()
        self._pending.clear()
        self._stand_in.forget()

    def end_batch(self, planned: Planned) -> None:
        """Drop what is left of a batch, since the loop has requested the next one."""
        self._pending.pop(planned.number, None)
        self._stand_in.forget()

    def _unscale(self) -> list[GroupBatch]:
        """Return `_works_with_gradients`, multiplied by the factor that a scaler has left."""
        works = self._works_with_gradients()
        if (factor := self._stand_in.answer) is not None:
            if (scale := getattr(self, "grad_scale", None)) is not None:  # `unscale_` was not called
                factor = factor * scale.double().reciprocal().float()  # as torch's scaler computes it
            for work in works:
                work.scale_gradients(factor)
            self._stand_in.answer = None
        return works

    @torch.no_grad()
    def _all_finite(self) -> Tensor | None:
        """Return 1, or NaN if a gradient is not finite, as (1,); None without gradients."""
        works = [work for planned in self._pending.values() for work in planned.works]
        finite = [torch.isfinite(gradient).all() for work in works if (gradient := work.gradients) is not None]
        if not finite:
            return None
        return torch.where(torch.stack(finite).all(), 1.0, torch.nan).reshape(1)

    def _works_with_gradients(self) -> list[GroupBatch]:
        works = [work for planned in self._pending.values() for work in planned.works if work.gradients is not None]
        if not works and self._anchor.requires_grad:
            raise _no_gradients("clip_grad_norm_()")
        return works


def _check_grad_scale(scale: float) -> None:
    if not 0 < scale < math.inf:
        raise ConfigError(
            f"grad_scale: expected a finite number above 0, got {scale!r}. It is the factor by which you multiplied "
            "the loss: the scaler's get_scale(), or 1 / n for a loss divided by n."
        )


def _no_gradients(method: str) -> ValueError:
    return ValueError(
        f"{method}: expected gradients of the current batch, got none. Call loss.backward() first, with a loss that "
        "depends on the embeddings' vectors."
    )
