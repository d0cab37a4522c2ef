"""`Planned`: one batch in the training thread, the work on its rows, group by group, and vectors as models take them.

Letters: B samples, F features, V vectors of a group, D width. All classes here belong to the training thread; only
`add_gradients` is called by autograd, from its own thread on a GPU.
"""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial, wraps
from itertools import accumulate, pairwise
from typing import Any, Self, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from adaptive.arrays import Rows
from adaptive.batch import Batch
from adaptive.embeddings.engine.pipeline import Pipeline, ReadyBatch
from adaptive.embeddings.engine.tiered_group import TieredGroup
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.lookups import lay_out_bags
from adaptive.embeddings.planning.plan import Feedback, GroupPart, GroupPlan, Pooling
from adaptive.embeddings.tiers.device import DevicePlan, Send
from adaptive.errors import ConfigError


class GroupBatch:
    """The rows of one group in one batch: pooled forward, updated after backward."""

    def __init__(
        self,
        tiered: TieredGroup,
        plan: GroupPlan | None,
        device_plan: DevicePlan | None = None,
        pooling: Pooling | None = None,
        weights: Rows | Tensor | None = None,
        parts: Sequence[GroupPart] = (),
    ) -> None:
        """`device_plan`: what the device has of the plan. `pooling`, `weights`: of a batch that is only read."""
        assert (plan is None) != (pooling is None)
        self.plan, self.device_plan = plan, device_plan
        self.parts = tuple(parts)
        self.gradients: Tensor | None = None
        self.held: Tensor | None = None
        self._tiered, self._group = tiered, tiered.group
        self._pooling = plan.pooling if plan is not None else pooling
        self._weights = weights

    def pool(self, out: Tensor | None = None) -> Tensor:
        """Return the pooled vectors (V, D), in `out` if it is given."""
        assert self._pooling is not None
        pooling = None if self.device_plan is None else self.device_plan.pooling
        return self._tiered.device.pool(self._pooling, pooling, self._weights, out)

    def hold(self, *, requires_grad: bool) -> Tensor:
        """Let zeros (V, D) be the vectors of this batch from now on, and return them; (0, D): not all are pooled."""
        assert self._pooling is not None
        number = self._pooling.num_vectors if all(feature.column >= 0 for feature in self._group.features) else 0
        zeros = self._tiered.device.send(np.zeros((number, self._group.embedding_dim), np.float32))
        self._weights, self.held = None, zeros.requires_grad_(requires_grad)
        return self.held

    def forget(self) -> None:
        """Drop the gradients."""
        self.gradients = None

    def add_gradients(self, gradients: Tensor) -> None:
        """Keep the gradients (V, D) of the vectors; a second backward pass adds to the first."""
        if self.plan is None:
            return
        gradients = gradients.detach().contiguous()
        self.gradients = gradients if self.gradients is None else self.gradients + gradients

    def scale_gradients(self, factor: float | Tensor) -> None:
        """Multiply the kept gradients by a number or by a tensor () on the device."""
        if self.gradients is not None:
            self.gradients = self.gradients * factor

    def update(self, found_inf: Tensor | None = None) -> Callable[[], Feedback]:
        """Update the rows; return a function that waits and describes the update. Call it once."""
        assert self.plan is not None
        plan, device = self.plan, self._tiered.device
        nothing = Feedback(np.zeros(0, np.int64), np.zeros((1, 0), np.float32))
        if self.gradients is None:  # the loss does not depend on this group
            return lambda: nothing
        rows, norms = plan.written_rows, device.update(plan, self.device_plan, self.gradients, found_inf)
        self.gradients = None
        if not plan.norm_lines:
            return lambda: nothing
        applied_visits = np.zeros(0, np.int32) if plan.deferred is None else plan.deferred.applied_visits

        # It waits for several batches and must not keep the plan: the next one gets its memory, still in the caches.
        def feedback() -> Feedback:
            sizes = norms()
            # NaN: the flag was set, so nothing was updated.
            if found_inf is not None and np.isnan(sizes[0]).any():
                return nothing
            return Feedback(rows, sizes, applied_visits)

        return feedback

    def split(self, vectors: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return feature -> its vectors: (B, D) if it is pooled, else (lookups, D)."""
        names, block, parts = self._blocks(vectors, batch)
        return dict(zip(names, [*block.unbind(1), *parts], strict=True))

    def _blocks(self, vectors: Tensor, batch: Batch) -> tuple[list[str], Tensor, list[Tensor]]:
        """Return names of features, the vectors (B, F, D) of those that are pooled, and those of each other one."""
        features = self._group.features
        pooled = sorted((f for f in features if f.column >= 0), key=lambda f: f.column)
        unpooled = [f for f in features if f.column < 0]
        sizes = [batch.num_lookups(f.position) for f in unpooled]
        block, *parts = torch.split(vectors, [batch.num_samples * len(pooled), *sizes])
        block = block.view(batch.num_samples, len(pooled), vectors.shape[1])
        return [f.name for f in (*pooled, *unpooled)], block, parts

    def largest_gradients(self, batch: Batch) -> tuple[list[str], list[Tensor]]:
        """Return the features, and tensors (n,) with the largest absolute value of the gradient of each.

        NaN and infinity stay. Nothing waits.
        """
        gradients = self.gradients if self.held is None else self.held.grad
        if gradients is None:
            return [], []
        names, block, parts = self._blocks(gradients, batch)
        sizes = [_largest(block, (0, 2), block.shape[1]), *(_largest(part, (0, 1), 1) for part in parts)]
        return names, sizes

    def bad_gradients(self, batch: Batch) -> list[str]:
        """Return the features whose gradient is not finite."""
        if self.gradients is None or bool(torch.isfinite(self.gradients.sum())):
            # NaN and infinity make the sum not finite, so a finite sum needs no closer look: one pass in most steps.
            return []
        parts = self.split(self.gradients, batch)
        return [name for name, part in parts.items() if not bool(torch.isfinite(part).all())]


def _largest(values: Tensor, dims: tuple[int, ...], num: int) -> Tensor:
    """Return the largest absolute values (num,) over some dimensions; zeros if there is none, which torch refuses."""
    if not values.numel():
        return values.new_zeros(num)
    largest: Tensor = torch.linalg.vector_norm(values, math.inf, dim=dims)
    return largest.reshape(num)


class GroupBatchPart(GroupBatch):
    """The rows of one group in one part of a batch: pooled alone, updated with the batch."""

    def __init__(self, whole: GroupBatch, part: GroupPart) -> None:
        super().__init__(whole._tiered, whole.plan)
        self._whole, self._part = whole, part
        self._is_first = True

    def pool(self, out: Tensor | None = None) -> Tensor:
        return self._tiered.device.pool(self._part.pooling, out=out)

    def add_gradients(self, gradients: Tensor) -> None:
        """Write gradients to their places in the batch; those of a second pass are added."""
        whole = self._whole
        assert whole.plan is not None
        if whole.gradients is None:  # parts without gradients count as 0
            whole.gradients = gradients.new_zeros((whole.plan.pooling.num_vectors, gradients.shape[1]))
        pieces = torch.split(gradients.detach(), [place.stop - place.start for place in self._part.places])
        for place, piece in zip(self._part.places, pieces, strict=True):
            whole.gradients[place] = piece if self._is_first else whole.gradients[place] + piece
        self._is_first = False


class Planned:
    """A batch whose rows are in place or, while only a part is in use, in flight.

    `dense` (B, num_dense) and `labels` (B,) are float32 tensors on the device. `extras` are tensors (B, ...) by name,
    with the dtypes of the batch. A loop may keep these tensors, but must not write to them. `batch` is the batch as it
    is trained, its features in the tables' order.
    """

    share = 1.0
    """Share of the whole batch's samples: the weight of a mean loss over this part."""
    is_share = False
    """True if other parts contribute to the same step."""
    first = 0
    """Position of the first sample in the whole batch."""
    ended = False
    """True once the loop has requested the next batch or closed the look-ahead: rows may have been evicted."""

    def __init__(
        self,
        batch: Batch,
        works: Sequence[GroupBatch],
        send: Send,
        arrived: Callable[[], bool] = lambda: False,
    ) -> None:
        """`arrived` waits for rows in flight."""
        self._batch, self._send = batch, send
        self._arrived = arrived
        self.waited = False  # True if a part had to wait for its rows
        self.works = tuple(works)
        self.num_samples = self.num_samples_of_all = batch.num_samples
        # Sent now: on the stream that is current here, and a compiled model need not trace it.
        self.dense, self.labels = send(batch.dense), send(batch.labels)

    @property
    def batch(self) -> Batch:
        return self._batch

    @cached_property
    def extras(self) -> dict[str, Tensor]:
        """`Batch.extras` (B, ...) on the device, by name."""
        return {name: self._send(array) for name, array in self.batch.extras.items()}

    @property
    def whole(self) -> "Planned":
        """The whole batch: this one, or the one that this is a part of."""
        return self

    def parts(self) -> Iterator["Planned"]:
        """Yield the parts of the batch, each when its rows are in place.

        A batch without parts yields itself. So does any batch on a GPU, where no part could start before all rows have
        arrived and one pass is faster.

            for part in planned.parts():
                loss = loss_fn(model(part.dense, embeddings.stack(part)), part.labels)  # a mean over samples
                (part.share * loss).backward()

        Dense gradients are then the sums of the parts' gradients. Rows are updated as without parts, from the same
        lookups in the same order: bit for bit, if the gradients of the vectors are the same.
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
        """Wait until the rows are in place; raise the error of fetching them, if any."""
        self.waited |= self._arrived()

    @property
    def trainable(self) -> bool:
        return self.works[0].plan is not None

    def belongs_to(self, tiered_groups: Sequence[TieredGroup]) -> bool:
        """True if the tables of these groups planned or read the batch."""
        return any(self.works[0]._tiered is tiered for tiered in tiered_groups)

    @property
    def number(self) -> int:
        """Number of the batch in training order, from 0."""
        plan = self.works[0].plan
        if plan is None:
            raise ValueError("expected a batch from look_ahead(), got one from read(), which has no number in training")
        return plan.number

    @property
    def has_gradients(self) -> bool:
        return any(work.gradients is not None for work in self.works)

    def bad_gradients(self) -> list[str]:
        """Return the features whose gradient is not finite."""
        return [name for work in self.works for name in work.bad_gradients(self.batch)]


class PlannedPart(Planned):
    """Consecutive samples of a batch: a part of it."""

    def __init__(
        self,
        whole: Planned,
        works: Sequence[GroupBatch],
        first: int,
        num_samples: int,
        *,
        waits: bool = False,
    ) -> None:
        """`first`: of its samples; `waits`: some of its rows are in flight."""
        self._whole, self._waits = whole, waits
        self.first, self.num_samples, self.works = first, num_samples, tuple(works)
        self.share = num_samples / whole.num_samples_of_all
        self.num_samples_of_all, self.is_share = whole.num_samples_of_all, True
        self._samples = slice(first, first + num_samples)
        self.dense, self.labels = whole.dense[self._samples], whole.labels[self._samples]

    @cached_property
    def batch(self) -> Batch:
        return self._whole.batch.take(np.arange(self._samples.start, self._samples.stop))

    @cached_property
    def extras(self) -> dict[str, Tensor]:
        return {name: values[self._samples] for name, values in self._whole.extras.items()}

    @property
    def whole(self) -> Planned:
        return self._whole

    def parts(self) -> Iterator[Planned]:
        yield self

    def wait(self) -> None:
        if self._waits:
            self._whole.wait()


class BatchSteps:
    """Steps of a batch in the training thread.

    Attributes:
        failure: the error that ended the loop, if known.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.failure: BaseException | None = None

    @contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Record the error that ends the body; see `TieredEmbeddingBag.reporting_errors`."""
        try:
            yield
        except BaseException as error:
            self.failure = error
            raise

    def planned(self, ready: ReadyBatch) -> Planned:
        """Return the current batch, whose rows are in place or in flight."""
        tiered_groups, parts = self._pipeline.tiered_groups, ready.parts or [()] * len(ready.plans)
        groups = [
            GroupBatch(tiered, plan, device_plan, parts=of_group)
            for tiered, plan, device_plan, of_group in zip(
                tiered_groups, ready.plans, ready.device_plans, parts, strict=True
            )
        ]
        return Planned(ready.batch, groups, self._pipeline.inputs(ready), partial(self._pipeline.wait_for, ready))

    def read(self, batch: Batch) -> Planned:
        """Return a batch that is only read."""
        pipeline = self._pipeline
        batch = pipeline.check(pipeline.take_over(batch))
        pipeline.refuse_keys_in_flight("read()")
        groups = []
        with pipeline.lock:
            for tiered in pipeline.tiered_groups:
                distinct = tiered.find(batch)
                weights, _ = pipeline.values(tiered, distinct.rows)
                if pipeline.convert_read is not None:
                    weights = pipeline.convert_read(weights)
                places = np.arange(len(distinct.rows), dtype=np.int64)
                pooling = lay_out_bags(tiered.group, batch).pooling(distinct.inverse, places)
                groups.append(GroupBatch(tiered, None, pooling=pooling, weights=weights))
        return Planned(batch, groups, pipeline.tiered_groups[0].device.send)

    def update(self, planned: Planned, found_inf: Tensor | None = None) -> None:
        """Update the rows of a batch from its gradients; `found_inf` as in `DeviceTier.update`."""
        number, works = planned.number, planned.works
        # Recorded, so that a loop that ends here is not taken for one left before step().
        with self.reporting_errors(), self._pipeline.lock.changing(f"rows of batch {number} were updated"):
            self._pipeline.feedback.report(number, [group.update(found_inf) for group in works])
            self._pipeline.updated = number


class LookAhead(Generator[Planned, None, None]):
    """Batches of one pass over the data, planned and fetched ahead.

    `iter` after the last batch begins the next pass, as with a `DataLoader`. Its length is that of `batches`, if they
    have one, so progress bars know their total and frameworks know the last batch. A policy that arranges batches may
    yield fewer.
    """

    def __init__(self, begin: Callable[[], Generator[Planned, None, None]], batches: Iterable[Any]) -> None:
        """`begin`: starts a pass; `batches`: only their length is used here."""
        self._begin, self._batches = begin, batches
        self._pass, self._num_yielded, self._has_ended = begin(), 0, False

    def __len__(self) -> int:
        """Return the number of batches of a pass.

        Raises:
            TypeError: if `batches` has no length.
        """
        return len(self._batches)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True  # as for any generator, also if its length is 0

    def __iter__(self) -> "LookAhead":
        if self._has_ended or self._has_yielded_all():
            self.close()
            self._pass, self._num_yielded, self._has_ended = self._begin(), 0, False
        return self

    def _has_yielded_all(self) -> bool:
        """True after the last batch; callers that know the length stop without StopIteration."""
        try:
            return 0 < len(self) <= self._num_yielded
        except TypeError:
            return False

    def __next__(self) -> Planned:
        return self.send(None)

    def send(self, value: None) -> Planned:
        return self._advance(self._pass.send, value)

    def throw(self, *error: Any) -> Planned:
        return self._advance(self._pass.throw, *error)

    def _advance(self, resume: Callable[..., Planned], *arguments: Any) -> Planned:
        try:
            planned = resume(*arguments)
        except BaseException:  # also StopIteration: a generator that has raised is finished
            self._has_ended = True
            raise
        self._num_yielded += 1
        return planned

    def close(self) -> None:
        """End the pass: the current batch counts as trained, and no later one is."""
        self._has_ended = True
        self._pass.close()


Method = TypeVar("Method", bound=Callable[..., Any])


def _not_compiled(method: Method) -> Method:
    """Exclude a method from `torch.compile`, because threads move rows below it."""
    # The public `torch.compiler.disable` imports the compiler, which takes a second; this one does when it is called.
    excluded = torch._disable_dynamo(method)  # type: ignore[attr-defined]

    @wraps(method)
    def called(*arguments: Any, **named: Any) -> Any:
        return (excluded if torch.compiler.is_compiling() else method)(*arguments, **named)

    return cast(Method, called)


class PooledVectors(nn.Module):
    """Base of modules that pool the rows of planned batches.

    Attributes:
        features: names of all features, table by table.
    """

    features: tuple[str, ...]

    def _use_groups(self, groups: Sequence[Group]) -> None:
        self._groups = tuple(groups)
        of_groups = [feature for group in groups for feature in group.features]
        self.features = tuple(f.name for f in sorted(of_groups, key=lambda feature: feature.position))
        self._unpooled = [feature.name for feature in of_groups if feature.column < 0]

    def _check_planned(self, planned: Planned) -> None:
        """Raise ConfigError unless this module has planned or read the batch."""
        raise NotImplementedError

    def _pool(self, planned: Planned, work: GroupBatch) -> Tensor:
        """Return the pooled vectors (V, D) of one group, with a gradient."""
        raise NotImplementedError

    def close(self) -> None:
        """Release files; see the subclasses."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @_not_compiled
    def forward(self, planned: Planned) -> dict[str, Tensor]:
        """Return feature -> (B, D) pooled vectors, or (lookups, D) for tables with pooling "none"."""
        self._check_planned(planned)
        vectors: dict[str, Tensor] = {}
        for work in planned.works:
            vectors.update(work.split(self._pool(planned, work), planned.batch))
        return {name: vectors[name] for name in self.features}

    @_not_compiled
    def stack(self, planned: Planned) -> Tensor:
        """Return the pooled vectors of all features (B, F, D), for tables of one width.

        Raises:
            ConfigError: if tables differ in width or one is not pooled; call the module instead.
        """
        self._check_planned(planned)
        self._check_pooled("stack")
        groups = self._groups
        if len(widths := sorted({group.embedding_dim for group in groups})) > 1:
            raise ConfigError(
                f"stack(): expected tables of one width, got widths {', '.join(map(str, widths))}. Use "
                "side_by_side(planned) for one wide tensor, or embeddings(planned) for one tensor per feature."
            )
        if len(groups) > 1:  # of one width, with different learning rates
            return torch.stack(list(self(planned).values()), dim=1)
        pooled = self._pool(planned, planned.works[0])
        return pooled.view(planned.num_samples, len(self.features), pooled.shape[1])

    @_not_compiled
    def side_by_side(self, planned: Planned) -> Tensor:
        """Return the pooled vectors of all features, concatenated to (B, sum of widths).

        Raises:
            ConfigError: if a table is not pooled; call the module instead.
        """
        self._check_pooled("side_by_side")
        return torch.cat(list(self(planned).values()), dim=1)

    def _check_pooled(self, method: str) -> None:
        if self._unpooled:
            raise ConfigError(
                f'{method}(): expected pooled features, got {", ".join(self._unpooled)} with pooling="none". Use '
                "embeddings(planned) for one tensor per feature."
            )


class PoolRows(torch.autograd.Function):
    """Pooling that keeps its gradient for `step()`, where torch would make a sparse tensor.

    `receiver.take_gradients(planned, work, gradients)` gets it.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, receiver: Any, planned: Planned, work: GroupBatch) -> Tensor:
        ctx.anchor, ctx.receiver, ctx.planned, ctx.work = anchor, receiver, planned, work
        return work.pool()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        ctx.receiver.take_gradients(ctx.planned, ctx.work, gradients[0])
        return torch.zeros_like(ctx.anchor), None, None, None  # DistributedDataParallel waits for a gradient of each
