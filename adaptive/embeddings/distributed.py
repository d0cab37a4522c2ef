"""Steps of a batch in the training thread, for one process and for several ranks.

With ranks, owners send the rows that each block of the batch looks up. Each block keeps its own gradients. They are
summed by row and sent to the owners, where they update rows as the gradients of any batch do.

Letters: D width, U distinct rows of a block, m rows requested by this rank.
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
from adaptive.embeddings.tiers.device_plan import DevicePlan
from adaptive.errors import ConfigError
from adaptive.kernels.vector.bfloat16 import as_float32

Floats = NDArray[np.float32]


class RemoteGroupBlock(GroupBatch):
    """Rows of one group in one block."""

    def __init__(self, lane: Lane, plan: GroupPlan | None, requested: RequestedBlock, rows: Tensor) -> None:
        super().__init__(lane, plan, pooling=None if plan is not None else requested.pooling(), weights=rows)
        self.requested = requested
        self._pooling = requested.pooling()
        self._group = lane.group.undivided

    def sums(
        self, vectors: NDArray[np.int32], num_vectors: int, skipped: NDArray[np.bool_] | None, out: Tensor
    ) -> Tensor:
        """Write the block's gradients by distinct row to `out` (num_vectors, D)."""
        assert self.gradients is not None
        return self._lane.device.pool(self.requested.sums(vectors, num_vectors, skipped), None, self.gradients, out)


class RemoteGroupBatch(GroupBatch):
    """Rows of one group in all blocks of a rank, and the plan of the rows that it owns."""

    def __init__(
        self, lane: Lane, plan: GroupPlan | None, sent: DevicePlan | None, requested: RequestedRows, rows: Tensor
    ) -> None:
        self.sent = sent
        self.blocks = tuple(
            None if block is None else RemoteGroupBlock(lane, plan, block, rows) for block in requested.blocks
        )
        self._with_samples = [block for block in self.blocks if block is not None]
        self._width, self._requested = lane.group.embedding_dim, requested
        self.plan, self.parts, self._lane, self._group = plan, (), lane, lane.group.undivided

    @property
    def gradients(self) -> Tensor | None:  # type: ignore[override]
        """Gradients of the vectors of all blocks; None if no block has any."""
        gradients = [block.gradients for block in self._with_samples if block.gradients is not None]
        return torch.cat(gradients) if len(gradients) > 1 else next(iter(gradients), None)

    def pool(self) -> Tensor:
        return self.only_block.pool()

    def add_gradients(self, gradients: Tensor) -> None:
        self.only_block.add_gradients(gradients)

    @property
    def only_block(self) -> RemoteGroupBlock:
        if len(self.blocks) != 1 or self.blocks[0] is None:
            raise ConfigError(
                f"batch: expected one block on this rank, got {len(self._with_samples)}. Loop over planned.parts(), "
                "which yields one block at a time."
            )
        return self.blocks[0]

    def forget(self) -> None:
        for block in self._with_samples:
            block.forget()

    def scale_gradients(self, factor: float | Tensor) -> None:
        for block in self._with_samples:
            block.scale_gradients(factor)

    def bad_gradients(self, batch: Batch) -> list[str]:
        raise NotImplementedError  # `PlannedBlocks` calls its blocks

    def sums(self) -> Tensor:
        """Return the gradients (m, D) of the requested rows that are not skipped; 0 by default."""
        skipped, device = self._requested.skipped, self._lane.device
        places = np.arange(len(self._requested.rows)) if skipped is None else np.cumsum(~skipped) - 1
        size = len(self._requested.rows) if skipped is None else int((~skipped).sum())
        reached = [block for block in self._with_samples if block.gradients is not None]
        sums = device.empty_vectors(size)
        if len(reached) < max(1, len(self._with_samples)):
            sums = device.send(np.zeros((size, self._width), np.float32))
        for block in reached:
            rows = block.requested.places
            sums = block.sums(places[rows].astype(np.int32), size, None if skipped is None else skipped[rows], sums)
        return sums

    def from_remote(self, gradients: Tensor | None) -> GroupBatch:
        """Return this owner's rows with the gradients (requests, D) of the requests of all ranks."""
        owned = GroupBatch(self._lane, self.plan, self.sent)
        owned.gradients = gradients
        return owned


class PlannedBlocks(Planned):
    """A rank's samples of a batch. With several blocks, loop over `parts()`."""

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
        self.received: Exchanged | None = None  # gradients for this owner, if they came with the dense gradients
        self.num_samples_of_all, self.first = exchanged.samples, exchanged.first
        self.is_share = num_blocks > 1

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
    """Steps of a batch in the training thread of a single process.

    Attributes:
        failure: the error that ended the loop, if known.
        has_no_samples: True if this rank has no samples of the current batch.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.failure: BaseException | None = None
        self.has_no_samples = False

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
        lanes, parts = self._pipeline.lanes, ready.parts or [()] * len(ready.plans)
        groups = [
            GroupBatch(lane, plan, sent, parts=of_lane)
            for lane, plan, sent, of_lane in zip(lanes, ready.plans, ready.sent, parts, strict=True)
        ]
        return Planned(ready.batch, groups, self._pipeline.inputs(ready), partial(self._pipeline.wait_for, ready))

    def read(self, batch: Batch) -> Planned:
        """Return a batch that is only read. All ranks call it together, each with its own samples."""
        pipeline = self._pipeline
        batch = pipeline.check(pipeline.take_over(batch))
        pipeline.refuse_keys_in_flight("read()")
        groups = []
        with pipeline.lock:
            for lane in pipeline.lanes:
                distinct = lane.find(batch)
                weights, _ = pipeline.values(lane, distinct.rows)
                if pipeline.convert_read is not None:
                    weights = pipeline.convert_read(weights)
                places = np.arange(len(distinct.rows), dtype=np.int64)
                pooling = lay_out_bags(lane.group, batch).pooling(distinct.inverse, places)
                groups.append(GroupBatch(lane, None, pooling=pooling, weights=weights))
        return Planned(batch, groups, pipeline.lanes[0].device.send)

    def update(self, planned: Planned) -> None:
        """Update the rows of a batch from its gradients."""
        with self.reporting_errors():  # so that a loop that ends here is not taken for one left before step()
            self._update(planned.number, planned.works)

    def _update(self, number: int, works: Sequence[GroupBatch]) -> None:
        with self._pipeline.lock.changing(f"rows of batch {number} were updated"):
            self._pipeline.feedback.report(number, [group.update() for group in works])
            self._pipeline.updated = number

    def end_batch(self, planned: Planned) -> None:
        """End a batch, which the loop may not have stepped."""

    def refuse(self, feature: str) -> None:
        """Refuse a feature that uses the gradients of one rank only.

        Raises:
            ConfigError: with several ranks or blocks.
        """

    def leave(self, failed: BaseException | None) -> None:
        """End the look-ahead; `failed` is the error that ended it."""


class RankSteps(LocalSteps):
    """Steps of a batch with several ranks or blocks; every rank takes part in each batch."""

    def __init__(self, pipeline: Pipeline, exchange: RankExchange) -> None:
        super().__init__(pipeline)
        self._exchange = exchange

    def planned(self, ready: ReadyBatch) -> Planned:
        """Return the current batch; the rows that this rank requested are exchanged here."""
        lanes, number = self._pipeline.lanes, ready.number
        exchanged = self._exchange.take(number)
        served = [
            lane.device.pool(plan.pooling, None if sent is None else sent.pooling)
            for lane, plan, sent in zip(lanes, ready.plans, ready.sent, strict=True)
        ]
        rows = self._exchange.rows.vectors(number, exchanged, served)
        groups = list(map(RemoteGroupBatch, lanes, ready.plans, ready.sent, exchanged.groups, rows))
        self.has_no_samples = all(block is None for block in exchanged.blocks)
        inputs = self._pipeline.inputs(ready)
        return PlannedBlocks(ready.batch, groups, inputs, exchanged, self._exchange.ranks.blocks)

    def read(self, batch: Batch) -> Planned:
        blocks = batch.blocks() if isinstance(batch, OwnPart) else [batch]
        blocks = [None if block is None else self._pipeline.check(block) for block in blocks]
        self._pipeline.refuse_keys_in_flight("read()")
        lanes = self._pipeline.lanes

        def values(number: int, rows: NDArray[np.int64]) -> Floats:
            with self._pipeline.lock:
                return as_float32(self._pipeline.values(lanes[number], rows)[0])

        exchanged, rows = self._exchange.read(blocks, values)
        groups = [
            RemoteGroupBatch(lane, None, None, requested, lane.device.send(of_group))
            for lane, requested, of_group in zip(lanes, exchanged.groups, rows, strict=True)
        ]
        return PlannedBlocks(batch, groups, lanes[0].device.send, exchanged, self._exchange.ranks.blocks)

    def update(self, planned: Planned) -> None:
        assert isinstance(planned, PlannedBlocks)
        self._exchange_gradients(planned, self._sums)

    def end_batch(self, planned: Planned) -> None:
        """If the loop has sent no gradients, tell the other ranks, which wait for a message."""
        if isinstance(planned, PlannedBlocks) and not planned.gradients_sent and self.failure is None:
            self._exchange_gradients(planned, lambda planned: None)

    @torch.no_grad()
    def _exchange_gradients(self, planned: PlannedBlocks, sums: Callable[[PlannedBlocks], list[Tensor] | None]) -> None:
        """Exchange gradients, once per batch, and update the rows that this rank owns."""
        rows = self._exchange.rows
        if planned.gradients_sent:
            raise ConfigError(
                f"batch {planned.number}: expected one step() per batch with ranks, got another one. Call backward() "
                "for all losses of a batch first, then step() once."
            )
        planned.gradients_sent = True
        if planned.received is None:
            gradients = rows.gradients(planned.number, planned.exchanged, sums(planned))
        else:
            gradients = rows.from_requesters(planned.exchanged, planned.received)
        if gradients is not None:
            owned = [group.from_remote(of_group) for group, of_group in zip(planned.groups, gradients, strict=True)]
            self._update(planned.number, owned)

    def _sums(self, planned: PlannedBlocks) -> list[Tensor]:
        """Return the gradients (m, D) of the rows that this rank requested, for each group."""
        if self._exchange.ranks.gradients == "mean" and self._exchange.ranks.size > 1:
            for group in planned.groups:
                group.scale_gradients(1 / self._exchange.ranks.size)
        return [group.sums() for group in planned.groups]

    @torch.no_grad()
    def gradients_for_owners(self, planned: PlannedBlocks) -> list[Bytes]:
        """Return gradients for each owner. If `planned.received` is set, `update` exchanges none."""
        sums = self._sums(planned) if planned.has_gradients else None
        return self._exchange.rows.for_owners(planned.exchanged, sums)

    def refuse(self, feature: str) -> None:
        if self._exchange.ranks.blocks > 1:
            raise ConfigError(
                f"{feature}: expected a single process and block, got {self._exchange.ranks.size} rank(s) with "
                f"{self._exchange.ranks.blocks} blocks. It would use this rank's gradients only, so ranks would train "
                f"differently: train without {feature}."
            )

    def leave(self, failed: BaseException | None) -> None:
        if not self._pipeline.lock.is_forked:
            error = self.failure if failed is None else failed
            self._pipeline.next_number = self._exchange.leave(error, self._pipeline.next_number)


def batch_steps(pipeline: Pipeline) -> LocalSteps:
    """Return the steps for the exchange of a pipeline."""
    exchange = pipeline.exchange
    return RankSteps(pipeline, exchange) if isinstance(exchange, RankExchange) else LocalSteps(pipeline)
