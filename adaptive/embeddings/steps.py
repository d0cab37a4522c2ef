"""From gradients to updated rows: the part of `TieredEmbeddingBag` between backward and the next batch."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor

from adaptive.embeddings.blocks import PlannedBlocks
from adaptive.embeddings.checks import check_planned
from adaptive.embeddings.distributed import Together
from adaptive.embeddings.engine.rates import RowsOptimizer
from adaptive.embeddings.engine.shrinking import give_back
from adaptive.embeddings.planned_batch import GroupWork, Planned
from adaptive.embeddings.planning.sizing import FEWER, SHRINK
from adaptive.errors import ConfigError
from adaptive.system import is_out_of_memory, running_out

T = TypeVar("T")


class Steps(Together):
    """The part that updates rows, by the rate of the moment."""

    def discard(self) -> None:
        """Forget the gradients of the current batch: its rows are not updated."""
        for planned in self._pending.values():
            for work in planned.works:
                work.forget()
        self._pending.clear()
        self._rates.forget()

    def bad_gradients(self) -> list[str]:
        """After backward: the features whose gradient holds NaN or infinity."""
        bad = {name for planned in self._pending.values() for name in planned.bad_gradients()}
        return [name for name in self.features if name in bad]

    @property
    def optimizer(self) -> RowsOptimizer:
        """The rows' optimizer as a `torch.optim.Optimizer`: for learning-rate schedulers, and loops that step it."""
        return self._rates

    @optimizer.setter
    def optimizer(self, value: object) -> None:
        raise ConfigError(
            "the rows' optimizer is fixed when tables are made, as its state lies beside the rows; set_lr() or a "
            "scheduler of embeddings.optimizer changes its rate, load_state_dict() moves rows to new tables"
        )

    def set_lr(self, lr: float) -> None:
        """The learning rate from the next `step()` on, whichever batches are planned by then; a table's own is that
        times its `lr_scale`."""
        self._rates.param_groups[0]["lr"] = lr
        _ = self._rates.lr  # checks it

    def clip_grad_norm_(self, max_norm: float, parameters: Iterable[Tensor] = (), *, grad_scale: float = 1.0) -> Tensor:
        """After backward: scale gradients so that their norm together is at most `max_norm`; returns what it was, ().

        Counted are the gradients of all vectors that were looked up, as backward hands them over, not their sums by
        row, and those of `parameters`: `embeddings.clip_grad_norm_(1.0, model.parameters())`. Both are scaled by the
        same factor. `grad_scale`: by which the loss was multiplied (`torch.amp.GradScaler.get_scale()`) while
        `parameters` were not, or are unscaled already.
        """
        self._refuse_with_ranks("clip_grad_norm_")
        works = self._unscaled()
        dense = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for work in works:
            work.scale_gradients(1 / grad_scale)
        found = [*dense, *(one for work in works if (one := work.gradients) is not None)]
        norm: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in found]))
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for gradient in dense:
            gradient.mul_(factor)
        for work in works:
            work.scale_gradients(factor)
        return norm

    def step(self, *, grad_scale: float = 1.0) -> None:
        """Update the rows of the batch whose backward pass has run, with the rate that `optimizer` has now.

        Args:
            grad_scale: by which the loss was multiplied (`torch.amp.GradScaler.get_scale()`); gradients are divided by
                it, as the scaler divides those of parameters only. If it is not 1 and a gradient is not finite, no row
                is updated, as the scaler does. bfloat16 needs no scaler.

        Raises:
            ValueError: if no backward pass has run since the last step.
        """
        self._rates.step(grad_scale=grad_scale)

    @torch.no_grad()
    def _update_rows(self, grad_scale: float) -> None:
        self._pipeline.refuse_in_child()
        pending = [planned for planned in self._pending.values() if planned.has_gradients]
        if not pending and self._has_no_samples:
            return  # the other ranks' gradients come when the batch ends
        if not pending:
            raise ValueError("step(): no gradient has reached the embeddings; call loss.backward() first")
        if grad_scale != 1.0:
            self._refuse_with_ranks("grad_scale")
            if self.bad_gradients():
                return self.discard()
            for work in self._works_with_gradients():
                work.scale_gradients(1 / grad_scale)
        if (lr := self._rates.lr) != self._pipeline.rate:
            self._pipeline.use_rate(lr)
        self._unscaled()
        with self._pipeline.stopwatch.stage("row_update"), running_out("in the update of rows"):
            for planned in pending:
                planned.wait()
                if isinstance(planned, PlannedBlocks):
                    self._update_with_ranks(planned, with_own=True)
                else:
                    with self.telling_ranks():  # a loop that ends here was not left before step()
                        self._pipeline.report(planned.number, [work.update() for work in planned.works])
                del self._pending[planned.number]
        self._rates.forget()

    def _unscaled(self) -> list[GroupWork]:
        """`_works_with_gradients`, multiplied by what a scaler has left to do."""
        works = self._works_with_gradients()
        if (factor := self._rates.factor) is not None:
            self._refuse_with_ranks("a gradient scaler")
            for work in works:
                work.scale_gradients(factor)
            self._rates.multiplied()
        return works

    @torch.no_grad()
    def _all_finite(self) -> Tensor | None:
        """(1,) a 1, NaN if a gradient is not finite; None if there is none."""
        works = [work for planned in self._pending.values() for work in planned.works]
        found = [torch.isfinite(one).all() for work in works if (one := work.gradients) is not None]
        if not found:
            return None
        return torch.where(torch.stack(found).all(), 1.0, torch.nan).reshape(1)

    def _works_with_gradients(self) -> list[GroupWork]:
        found = [work for planned in self._pending.values() for work in planned.works if work.gradients is not None]
        if not found:
            raise ValueError("no gradient has reached the embeddings; call loss.backward() first")
        return found

    def report_loss(self, planned: Planned, loss: float) -> None:
        """Tell the policy the mean loss on `planned.batch.held_back`, measured after `step()` (`Policy.observe`)."""
        check_planned(planned, self._pipeline.lanes)
        if planned.ended:
            raise ConfigError(
                f"batch {planned.number} has ended: report the loss after its step, before the next batch"
            )
        self._pipeline.report_loss(planned.number, loss)

    def with_room(self, work: Callable[[], T]) -> T:
        """The result of `work`, which is run again with fewer device rows whenever it runs out of device memory.

        Raises:
            DeviceMemoryError: if no more rows can be given back.
        """
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            self.make_room()  # outside `except`: the error would keep the attempt's tensors alive

    def make_room(self) -> None:
        """The device ran out of memory in a forward or backward pass: give a tenth of the device rows back and forget
        the current batch's gradients. Then its passes can be run again, with the result that they would have had.

        Raises:
            DeviceMemoryError: if the batches in flight need all rows; the tiers are as they were.
        """
        self.discard()
        self._since.lose(give_back(self._pipeline, SHRINK, self._tier.held_rows))
        self._sizes = self._resized(FEWER)
