"""The training thread's side of a batch: on one process `LocalSteps`, on several ranks `RankSteps`.

On ranks, rows come from their owners, block by block of the batch; each block keeps its own gradients, which are summed
by row, sent to the owners, and update rows there as any batch's gradients do.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch, OwnPart
from adaptive.embeddings.engine.lane import Lane
from adaptive.embeddings.engine.pipeline import Pipeline, ReadyBatch
from adaptive.embeddings.exchange.rank_exchange import ExchangedBatch, RankExchange
from adaptive.embeddings.exchange.requests import RequestedBlock, RequestedRows
from adaptive.embeddings.planned_batch import GroupBatch, Planned, PlannedPart
from adaptive.embeddings.planning.lookups import lay_out_bags
from adaptive.embeddings.planning.plan import GroupPlan
from adaptive.embeddings.ranks.channel import Exchanged
from adaptive.embeddings.ranks.transport import Bytes
from adaptive.errors import ConfigError

Floats = NDArray[np.float32]


class RemoteGroupBlock(GroupBatch):
    """The rows of one group in one block."""

    def __init__(self, lane: Lane, plan: GroupPlan | None, requested: RequestedBlock, rows: Tensor) -> None:
        super().__init__(lane, plan, None if plan is not None else requested.pooling(), rows)
        self._requested = requested
        self._pooling = requested.pooling()
        self._group = lane.group.undivided

    def sums(
        self, vectors: NDArray[np.int32], num_vectors: int, skipped: NDArray[np.bool_] | None, out: Tensor
    ) -> Tensor:
        """(num_vectors, D) `out` with the gradients of the block's distinct rows, as `RequestedBlock.sums` says."""
        assert self.gradients is not None
        return self._lane.device.pool(self._requested.sums(vectors, num_vectors, skipped), self.gradients, out)

    @property
    def places(self) -> NDArray[np.int64]:
        return self._requested.places


class RemoteGroupBatch(GroupBatch):
    """The rows of one group in all blocks of a rank, and what this rank owns of the batch's rows.

    It has gradients if one of its blocks has.
    """

    def __init__(self, lane: Lane, plan: GroupPlan | None, requested: RequestedRows, rows: Tensor) -> None:
        self.blocks = tuple(
            None if one is None else RemoteGroupBlock(lane, plan, one, rows) for one in requested.blocks
        )
        self._with_samples = [block for block in self.blocks if block is not None]
        self._width, self._requested = lane.group.embedding_dim, requested
        self.plan, self.parts, self._lane, self._group = plan, (), lane, lane.group.undivided

    @property
    def gradients(self) -> Tensor | None:  # type: ignore[override]
        """All gradients of vectors, of all blocks."""
        gradients = [block.gradients for block in self._with_samples if block.gradients is not None]
        return torch.cat(gradients) if len(gradients) > 1 else next(iter(gradients), None)

    def pool(self) -> Tensor:
        return self.only_block.pool()

    def add_gradients(self, gradients: Tensor) -> None:
        self.only_block.add_gradients(gradients)

    @property
    def only_block(self) -> RemoteGroupBlock:
        if len(self.blocks) != 1 or self.blocks[0] is None:
            count = len(self._with_samples)
            raise ConfigError(f"this rank has {count} blocks of the batch: loop over planned.parts(), one block each")
        return self.blocks[0]

    def forget(self) -> None:
        for block in self._with_samples:
            block.forget()

    def scale_gradients(self, factor: float | Tensor) -> None:
        for block in self._with_samples:
            block.scale_gradients(factor)

    def bad_gradients(self, batch: Batch) -> list[str]:
        raise NotImplementedError  # `PlannedBlocks` asks the blocks

    def sums(self) -> Tensor:
        """(m, D) the gradient of each row that was requested and is not skipped, in the order of requests; 0 for rows
        of a block that no gradient has reached."""
        skipped, device = self._requested.skipped, self._lane.device
        places = np.arange(len(self._requested.rows)) if skipped is None else np.cumsum(~skipped) - 1
        size = len(self._requested.rows) if skipped is None else int((~skipped).sum())
        reached = [block for block in self._with_samples if block.gradients is not None]
        sums = device.empty_vectors(size)
        if len(reached) < max(1, len(self._with_samples)):
            sums = device.send(np.zeros((size, self._width), np.float32))
        for block in reached:
            of_block = None if skipped is None else skipped[block.places]
            sums = block.sums(places[block.places].astype(np.int32), size, of_block, sums)
        return sums

    def from_remote(self, gradients: Tensor | None) -> GroupBatch:
        """The owner's rows, to be updated from the gradients of the requests of all ranks (requests, D)."""
        owned = GroupBatch(self._lane, self.plan)
        owned.gradients = gradients
        return owned


class PlannedBlocks(Planned):
    """A rank's part of a batch. With one block it is its own only part; with several, loop over `parts()`."""

    def __init__(
        self,
        batch: Batch,
        works: Sequence[RemoteGroupBatch],
        send: Callable[[Floats], Tensor],
        exchanged: ExchangedBatch,
        num_blocks: int,
    ) -> None:
        super().__init__(batch, works, send, whole=len(exchanged.blocks) == 1)
        self.exchanged = exchanged
        self.groups = tuple(works)
        self.gradients_sent = False
        self.received: Exchanged | None = None  # the gradients for this owner, if they have crossed with other things
        self.num_samples_of_all = exchanged.samples
        self.is_share = num_blocks > 1

    @property
    def first(self) -> int:
        """In the global batch."""
        return self.exchanged.first

    def parts(self) -> Iterator[Planned]:
        if len(self.exchanged.blocks) == 1 and self.exchanged.blocks[0] is not None:
            yield self
            return
        first = self.first
        for number, block in enumerate(self.exchanged.blocks):
            if block is not None:
                works = [work for group in self.groups if (work := group.blocks[number]) is not None]
                yield PlannedPart(self, works, first, block.num_samples, block=block)
                first += block.num_samples

    @property
    def has_gradients(self) -> bool:
        return any(block.gradients is not None for group in self.groups for block in group.blocks if block is not None)

    def bad_gradients(self) -> list[str]:
        return [
            name
            for group in self.groups
            for block, batch in zip(group.blocks, self.exchanged.blocks, strict=True)
            if block is not None and batch is not None
            for name in block.bad_gradients(batch)
        ]


class LocalSteps:
    """What `TieredEmbeddingBag` does with a batch in the training thread, on a process alone.

    Attributes:
        failure: what ended the loop, as far as known.
        has_no_samples: this rank, of the current batch.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.failure: BaseException | None = None
        self.has_no_samples = False

    @contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Note what ends the body; see `TieredEmbeddingBag.reporting_errors`."""
        try:
            yield
        except BaseException as error:
            self.failure = error
            raise

    def planned(self, ready: ReadyBatch) -> Planned:
        """The batch whose turn it is, its rows in place or on their way."""
        lanes, parts = self._pipeline.lanes, ready.parts or [()] * len(ready.plans)
        groups = [
            GroupBatch(lane, plan, parts=of_lane) for lane, plan, of_lane in zip(lanes, ready.plans, parts, strict=True)
        ]
        return Planned(ready.batch, groups, self._pipeline.inputs(ready), partial(self._pipeline.wait_for, ready))

    def read(self, batch: Batch) -> Planned:
        """A batch that is only read. All ranks call it together, each with its own samples."""
        pipeline = self._pipeline
        batch = pipeline.check(pipeline.take_over(batch))
        groups = []
        with pipeline.lock:
            for lane in pipeline.lanes:
                distinct = lane.reader.find(batch)
                weights, _ = pipeline.values(lane, distinct.rows)
                places = np.arange(len(distinct.rows), dtype=np.int64)
                pooling = lay_out_bags(lane.group, batch).pooling(distinct.inverse, places)
                groups.append(GroupBatch(lane, None, pooling, weights))
        return Planned(batch, groups, pipeline.lanes[0].device.send)

    def update(self, planned: Planned) -> None:
        """Update the rows of a batch from its gradients."""
        with self.reporting_errors():  # a loop that ends here was not left before step()
            self._pipeline.feedback.report(planned.number, [group.update() for group in planned.works])

    def end_batch(self, planned: Planned) -> None:
        """A batch ends, which the loop may not have stepped."""

    def refuse(self, what: str) -> None:
        """Refuse what looks at the gradients of one rank only.

        Raises:
            ConfigError: where there are others.
        """

    def leave(self, failed: BaseException | None) -> None:
        """The look-ahead is over; `failed`: what ended it."""


class RankSteps(LocalSteps):
    """The part that every rank takes in each batch, whatever its loop does."""

    def __init__(self, pipeline: Pipeline, exchange: RankExchange) -> None:
        super().__init__(pipeline)
        self._exchange = exchange

    def planned(self, ready: ReadyBatch) -> Planned:
        """The rows that this rank needs of a batch come here, once."""
        lanes, number = self._pipeline.lanes, ready.number
        exchanged = self._exchange.take(number)
        served = [lane.device.pool(plan.pooling) for lane, plan in zip(lanes, ready.plans, strict=True)]
        rows = self._exchange.rows.vectors(number, exchanged, served)
        groups = [RemoteGroupBatch(*one) for one in zip(lanes, ready.plans, exchanged.groups, rows, strict=True)]
        self.has_no_samples = all(block is None for block in exchanged.blocks)
        inputs = self._pipeline.inputs(ready)
        return PlannedBlocks(ready.batch, groups, inputs, exchanged, self._exchange.ranks.blocks)

    def read(self, batch: Batch) -> Planned:
        blocks = batch.blocks() if isinstance(batch, OwnPart) else [batch]
        blocks = [None if block is None else self._pipeline.check(block) for block in blocks]
        lanes = self._pipeline.lanes

        def values(number: int, rows: NDArray[np.int64]) -> Floats:
            with self._pipeline.lock:
                return self._pipeline.values(lanes[number], rows)[0]

        exchanged, rows = self._exchange.read(blocks, values)
        groups = [
            RemoteGroupBatch(lane, None, requested, lane.device.send(of_group))
            for lane, requested, of_group in zip(lanes, exchanged.groups, rows, strict=True)
        ]
        return PlannedBlocks(batch, groups, lanes[0].device.send, exchanged, self._exchange.ranks.blocks)

    def update(self, planned: Planned) -> None:
        assert isinstance(planned, PlannedBlocks)
        self._exchange_gradients(planned, self._sums)

    def end_batch(self, planned: Planned) -> None:
        """The others wait for this rank's part all the same."""
        if isinstance(planned, PlannedBlocks) and not planned.gradients_sent and self.failure is None:
            self._exchange_gradients(planned, lambda planned: None)

    @torch.no_grad()
    def _exchange_gradients(self, planned: PlannedBlocks, sums: Callable[[PlannedBlocks], list[Tensor] | None]) -> None:
        """Exchange gradients, once for each batch, and update the rows that this rank owns."""
        rows = self._exchange.rows
        if planned.gradients_sent:
            raise ConfigError(f"batch {planned.number}: with ranks, step() updates rows once for each batch")
        planned.gradients_sent = True
        if planned.received is None:
            gradients = rows.gradients(planned.number, planned.exchanged, sums(planned))
        else:
            gradients = rows.from_requesters(planned.exchanged, planned.received)
        if gradients is not None:
            owned = [group.from_remote(one) for group, one in zip(planned.groups, gradients, strict=True)]
            self._pipeline.feedback.report(planned.number, [group.update() for group in owned])

    def _sums(self, planned: PlannedBlocks) -> list[Tensor]:
        """The gradients (m, D) of the rows of each group that this rank requested."""
        if self._exchange.ranks.gradients == "mean" and self._exchange.ranks.size > 1:
            for group in planned.groups:
                group.scale_gradients(1 / self._exchange.ranks.size)
        return [group.sums() for group in planned.groups]

    @torch.no_grad()
    def gradients_for_owners(self, planned: PlannedBlocks) -> list[Bytes]:
        """The gradients of this rank's rows, for each rank, to cross with other things; `planned.received` is what came
        so. Then `update` exchanges nothing any more."""
        sums = self._sums(planned) if planned.has_gradients else None
        return self._exchange.rows.for_owners(planned.exchanged, sums)

    def refuse(self, what: str) -> None:
        if self._exchange.ranks.blocks > 1:
            raise ConfigError(f"{what} would look at this rank's gradients only, and ranks would differ; leave it out")

    def leave(self, failed: BaseException | None) -> None:
        if not self._pipeline.is_forked:
            error = self.failure if failed is None else failed
            self._pipeline.next_number = self._exchange.leave(error, self._pipeline.next_number)


def batch_steps(pipeline: Pipeline) -> LocalSteps:
    """Of a pipeline, by its exchange."""
    exchange = pipeline.exchange
    return RankSteps(pipeline, exchange) if isinstance(exchange, RankExchange) else LocalSteps(pipeline)
