"""`Planned`: one batch on its way through the model, and the work on its rows, group by group."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch
from adaptive.embeddings.engine.lane import Lane
from adaptive.embeddings.planning.parts import GroupPart
from adaptive.embeddings.planning.plan import Feedback, GroupPlan, Pooling
from adaptive.embeddings.tiers.device import Send


class GroupBatch:
    """The rows of one group in one batch: pooled forward, updated after backward."""

    def __init__(
        self,
        lane: Lane,
        plan: GroupPlan | None,
        pooling: Pooling | None = None,
        weights: NDArray[np.float32] | Tensor | None = None,
        parts: Sequence[GroupPart] = (),
    ) -> None:
        assert (plan is None) != (pooling is None)
        self.plan = plan
        self.parts = tuple(parts)
        self.gradients: Tensor | None = None
        self._lane, self._group = lane, lane.group
        self._pooling = plan.pooling if plan is not None else pooling
        self._weights = weights  # the rows themselves, for a batch that is only read

    def pool(self) -> Tensor:
        """(V, D) the vectors."""
        assert self._pooling is not None
        return self._lane.device.pool(self._pooling, self._weights)

    def forget(self) -> None:
        """Drop all that was kept of the batch, which will be run again."""
        self.gradients = None

    def add_gradients(self, gradients: Tensor) -> None:
        """Keep the gradients of the vectors (V, D); a second backward pass adds to the first."""
        if self.plan is None:
            return
        gradients = gradients.detach().contiguous()
        self.gradients = gradients if self.gradients is None else self.gradients + gradients

    def scale_gradients(self, factor: float | Tensor) -> None:
        """Multiply the kept gradients by a number, or a tensor () on the device."""
        if self.gradients is not None:
            self.gradients = self.gradients * factor

    def pool_part(self, part: GroupPart) -> Tensor:
        """The vectors of one part, in its order."""
        return self._lane.device.pool(part.pooling)

    def add_part(self, part: GroupPart, gradients: Tensor, *, first: bool) -> None:
        """Put the gradients of a part's vectors where the plan has them; those of a part without any are 0."""
        assert self.plan is not None
        if self.gradients is None:
            self.gradients = gradients.new_zeros((self.plan.pooling.num_vectors, gradients.shape[1]))
        pieces = torch.split(gradients.detach(), [place.stop - place.start for place in part.places])
        for place, piece in zip(part.places, pieces, strict=True):
            if first:
                self.gradients[place] = piece
            else:
                self.gradients[place] += piece

    def update(self) -> Callable[[], Feedback]:
        """Update the rows from the gradients. What it did is known when the result is called, once."""
        assert self.plan is not None
        plan, device = self.plan, self._lane.device
        if self.gradients is None:  # the loss does not depend on this group
            return lambda: Feedback(np.zeros(0, np.int64), np.zeros(0, np.float32))
        rows, norms = [plan.row_updates.rows], [device.update(plan.row_updates, self.gradients)]
        if plan.deferred is not None:
            rows.append(plan.deferred.due_rows)
            norms.append(device.defer(plan.deferred, self.gradients))
        self.gradients = None
        drifts = None if plan.snapshots is None else device.drift(plan.snapshots)

        def feedback() -> Feedback:
            measured = np.concatenate([known() for known in norms])
            return Feedback(np.concatenate(rows), measured, plan.snapshots, None if drifts is None else drifts())

        return feedback

    def split(self, vectors: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Feature -> its part of the vectors."""
        pooled, block, loose = self._blocks(vectors, batch)
        columns = block.unbind(1) if pooled else ()
        return dict(zip(pooled, columns, strict=True)) | loose

    def _blocks(self, vectors: Tensor, batch: Batch) -> tuple[list[str], Tensor, dict[str, Tensor]]:
        """Names of the pooled features and their vectors (B, features, D); those of other features by name."""
        features = self._group.features
        pooled = sorted((f for f in features if f.column >= 0), key=lambda f: f.column)
        loose = [f for f in features if f.column < 0]
        sizes = [batch.num_lookups(f.position) for f in loose]
        first, *parts = torch.split(vectors, [batch.num_samples * len(pooled), *sizes])
        block = first.view(batch.num_samples, len(pooled), vectors.shape[1])
        return [f.name for f in pooled], block, {f.name: part for f, part in zip(loose, parts, strict=True)}

    def bad_gradients(self, batch: Batch) -> list[str]:
        """Features whose gradient is not finite."""
        if self.gradients is None or bool(torch.isfinite(self.gradients.sum())):
            # A sum that overflows is looked at closely; a finite sum has finite terms, or terms that cancel NaN-free.
            return []
        parts = self.split(self.gradients, batch)
        return [name for name, part in parts.items() if not bool(torch.isfinite(part).all())]


class GroupBatchPart(GroupBatch):
    """The rows of one group in one part of a batch: pooled alone, updated with the batch."""

    def __init__(self, whole: GroupBatch, part: GroupPart) -> None:
        super().__init__(whole._lane, whole.plan)
        self._whole, self._part = whole, part
        self._first = True

    def pool(self) -> Tensor:
        return self._whole.pool_part(self._part)

    def add_gradients(self, gradients: Tensor) -> None:
        self._whole.add_part(self._part, gradients, first=self._first)
        self._first = False


class Planned:
    """A batch whose rows are in place, or, while only a part of it is in use, on their way.

    `dense` (B, num_dense) and `labels` (B,) are float32 tensors on the device, `extras` tensors (B, ...) by name, of
    the types that the batch has: a loop may keep them, but not write them. `batch` is the batch as it is trained, its
    features in the tables' order.
    """

    share = 1.0
    """Share of the whole batch's samples: the weight of a mean loss over this part."""
    is_share = False
    """This is only a part of what is trained in one step, or may be: there are other ranks, or blocks."""
    ended = False
    """The loop has asked for the next batch, or the look-ahead is closed: rows of this one may have left the device."""

    def __init__(
        self,
        batch: Batch,
        works: Sequence[GroupBatch],
        send: Send,
        arrived: Callable[[], bool] = lambda: False,
        *,
        whole: bool = True,
    ) -> None:
        """`whole`: dense inputs and labels are wanted; else it is by parts, which have their own."""
        self._batch, self._send = batch, send
        self._arrived = arrived
        self.waited = False  # whether a part had to wait for its rows
        self.works = tuple(works)
        self.num_samples_of_all = batch.num_samples
        if whole:  # now: on the stream that is current here, and no compiled model need trace it
            _ = self.dense, self.labels

    @property
    def batch(self) -> Batch:
        return self._batch

    @cached_property
    def dense(self) -> Tensor:
        """(B, num_dense) float32, on the device."""
        return self._send(self.batch.dense)

    @cached_property
    def labels(self) -> Tensor:
        """(B,) float32, on the device."""
        return self._send(self.batch.labels)

    @cached_property
    def extras(self) -> dict[str, Tensor]:
        """`Batch.extras` on the device."""
        return {name: self._send(array) for name, array in self.batch.extras.items()}

    @property
    def num_samples(self) -> int:
        return self.batch.num_samples

    @property
    def whole(self) -> "Planned":
        """The batch that this is, or is a part of."""
        return self

    @property
    def first(self) -> int:
        """Position of the first sample in the batch that this is, or is a part of."""
        return 0

    def parts(self) -> Iterator["Planned"]:
        """The parts to run through the model one after another before the one `step()`, each when its rows are in
        place. A batch that is not in parts is its own only one, and so is any where no part could start before all rows
        have come (on a GPU): one pass is faster there.

            for part in planned.parts():
                loss = loss_fn(model(part.dense, embeddings.stack(part)), part.labels)  # a mean over samples
                (part.share * loss).backward()

        Then dense gradients are sums of the parts', and rows are updated as without parts, from the same look-ups in
        the same order: bit for bit, if the gradients of the vectors are.
        """
        if not any(work.parts for work in self.works):
            yield self
            return
        for number, (first, last) in enumerate(pairwise(accumulate(self.batch.part_sizes, initial=0))):
            works = [GroupBatchPart(work, work.parts[number]) for work in self.works]
            waits = any(work.parts[number].waits for work in self.works)
            part = PlannedPart(self, works, first, last - first, waits=waits)
            part.wait()
            yield part

    def wait(self) -> None:
        """Return when the rows are in place; raises what fetching them raised."""
        self.waited |= self._arrived()

    @property
    def trainable(self) -> bool:
        return self.works[0].plan is not None

    def belongs_to(self, lanes: Sequence[Lane]) -> bool:
        """True if the tables of these lanes have planned or read the batch."""
        return any(self.works[0]._lane is lane for lane in lanes)

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

    def bad_gradients(self) -> list[str]:
        """Features whose gradient is not finite."""
        return [name for work in self.works for name in work.bad_gradients(self.batch)]


class PlannedPart(Planned):
    """Some samples of a batch, in a row: a part of it, whose arrays are slices of the batch's, or a block of a rank,
    which has its own."""

    def __init__(
        self,
        whole: Planned,
        works: Sequence[GroupBatch],
        first: int,
        num_samples: int,
        *,
        block: Batch | None = None,
        waits: bool = False,
    ) -> None:
        """`first`: position of the first sample in the batch, of all ranks; `waits`: for rows of the batch."""
        self._whole, self._first, self._num_samples, self._waits = whole, first, num_samples, waits
        self._samples = slice(first, first + num_samples)
        self._is_block, self._taken, self._send, self.works = block is not None, block, whole._send, tuple(works)
        self.share = num_samples / whole.num_samples_of_all
        self.num_samples_of_all, self.is_share = whole.num_samples_of_all, True
        if self._is_block:  # now, as in `Planned`
            _ = self.dense, self.labels

    @property
    def batch(self) -> Batch:
        if self._taken is None:
            self._taken = self._whole.batch.take(np.arange(self._samples.start, self._samples.stop))
        return self._taken

    @cached_property
    def dense(self) -> Tensor:
        return self._send(self.batch.dense) if self._is_block else self._whole.dense[self._samples]

    @cached_property
    def labels(self) -> Tensor:
        return self._send(self.batch.labels) if self._is_block else self._whole.labels[self._samples]

    @cached_property
    def extras(self) -> dict[str, Tensor]:
        if self._is_block:
            return {name: self._send(array) for name, array in self.batch.extras.items()}
        return {name: values[self._samples] for name, values in self._whole.extras.items()}

    @property
    def num_samples(self) -> int:
        return self._num_samples

    @property
    def whole(self) -> Planned:
        return self._whole

    @property
    def first(self) -> int:
        return self._first

    def parts(self) -> Iterator[Planned]:
        yield self

    def wait(self) -> None:
        if self._waits:
            self._whole.wait()
