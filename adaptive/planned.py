"""`Planned`: one batch on its way through the model, and the work on its rows, group by group."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch
from adaptive.tiers.pipeline import Lane
from adaptive.tiers.plan import Feedback, GroupPlan, Pooling


class GroupWork:
    """The rows of one group in one batch: pooled forward, updated after backward."""

    def __init__(
        self,
        lane: Lane,
        plan: GroupPlan | None,
        pooling: Pooling | None = None,
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        assert (plan is None) != (pooling is None)
        self.plan = plan
        self.gradients: Tensor | None = None
        self._lane = lane
        self._pooling = plan.pooling if plan is not None else pooling
        self._weights = weights  # the rows themselves, for a batch that is only read

    def pool(self) -> Tensor:
        """(V, D) the vectors."""
        assert self._pooling is not None
        return self._lane.device.pool(self._pooling, self._weights)

    def add_gradients(self, gradients: Tensor) -> None:
        """Keep the gradients of the vectors (V, D); a second backward pass adds to the first."""
        if self.plan is None:
            return
        gradients = gradients.detach().contiguous()
        self.gradients = gradients if self.gradients is None else self.gradients + gradients

    def update(self) -> Feedback:
        """Update the rows from the gradients."""
        assert self.plan is not None
        plan, device = self.plan, self._lane.device
        if self.gradients is None:  # the loss does not depend on this group
            return Feedback(np.zeros(0, np.int64), np.zeros(0, np.float32))
        rows, norms = plan.grouping.rows, device.update(plan.grouping, self.gradients)
        if plan.deferred is not None:
            norms = np.concatenate([norms, device.defer(plan.deferred, self.gradients)])
            rows = np.concatenate([rows, plan.deferred.due_rows])
        self.gradients = None
        if plan.snapshots is None:
            return Feedback(rows, norms)
        return Feedback(rows, norms, plan.snapshots, device.drift(plan.snapshots))

    def split(self, vectors: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Feature -> its part of the vectors."""
        features = self._lane.group.features
        pooled = sorted((f for f in features if f.column >= 0), key=lambda f: f.column)
        loose = [f for f in features if f.column < 0]
        samples = batch.num_samples
        sizes = [batch.num_lookups(f.position) for f in loose]
        parts = torch.split(vectors, [samples * len(pooled), *sizes])
        columns = parts[0].view(samples, len(pooled), -1).unbind(1) if pooled else ()
        named = {f.name: column for f, column in zip(pooled, columns, strict=True)}
        return named | {f.name: part for f, part in zip(loose, parts[1:], strict=True)}

    def bad_gradients(self, batch: Batch) -> list[str]:
        """Features whose gradient is not finite."""
        if self.gradients is None or bool(torch.isfinite(self.gradients.sum())):
            # A sum that overflows is looked at closely; a finite sum has finite terms, or terms that cancel NaN-free.
            return []
        parts = self.split(self.gradients, batch)
        return [name for name, part in parts.items() if not bool(torch.isfinite(part).all())]


class Planned:
    """A batch whose rows are in place.

    `dense` (B, num_dense) and `labels` (B,) are float32 tensors on the device; `batch` is the batch as read.
    """

    def __init__(self, batch: Batch, works: Sequence[GroupWork], device: torch.device) -> None:
        self.batch = batch
        self.works = tuple(works)
        self.dense = _tensor(batch.dense, device)
        self.labels = _tensor(batch.labels, device)

    @property
    def trainable(self) -> bool:
        return self.works[0].plan is not None

    @property
    def number(self) -> int:
        """Number of the batch in training order, from 0."""
        plan = self.works[0].plan
        if plan is None:
            raise ValueError("this batch is only read; it has no number in training order")
        return plan.number

    @property
    def has_gradients(self) -> bool:
        return any(work.gradients is not None for work in self.works)


def _tensor(array: NDArray[np.float32], device: torch.device) -> Tensor:
    # torch refuses read-only memory; a copy keeps the promise that batches do not change.
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)
