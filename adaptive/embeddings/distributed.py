"""`RankSteps`: what a batch takes of other ranks: rows come from their owners, gradients go there."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch, OwnPart
from adaptive.embeddings.blocks import AskedWork, PlannedBlocks
from adaptive.embeddings.engine.pipeline import Pipeline, ReadyBatch
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.ranks.transport import Bytes
from adaptive.errors import ConfigError


class RankSteps:
    """The part that every rank takes in each batch, whatever its loop does. A process alone uses `failure` only.

    Attributes:
        failure: what ended the loop, to be told to other ranks.
        has_no_samples: this rank, of the current batch.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, self._exchange = pipeline, pipeline.exchange
        self.failure: BaseException | None = None
        self.has_no_samples = False

    @contextmanager
    def telling_ranks(self) -> Iterator[None]:
        """Note what ends the body; see `TieredEmbeddingBag.telling_ranks`."""
        try:
            yield
        except BaseException as error:
            self.failure = error
            raise

    def leave(self, failed: BaseException | None) -> None:
        """The look-ahead is over."""
        if self._exchange is not None and not self._pipeline.is_forked:
            error = self.failure if failed is None else failed
            self._pipeline.next_number = self._exchange.leave(error, self._pipeline.next_number)

    def planned(self, ready: ReadyBatch) -> PlannedBlocks:
        """The rows that this rank needs of a batch come here, once."""
        assert self._exchange is not None
        lanes, number = self._pipeline.lanes, ready.number
        asked = self._exchange.asked(number)
        served = [lane.device.pool(plan.pooling) for lane, plan in zip(lanes, ready.plans, strict=True)]
        rows = self._exchange.rows.vectors(number, asked, served)
        works = [AskedWork(*one) for one in zip(lanes, ready.plans, asked.groups, rows, strict=True)]
        self.has_no_samples = all(block is None for block in asked.blocks)
        return PlannedBlocks(ready.batch, works, self._pipeline.inputs(ready), asked, self._exchange.ranks.blocks)

    def end_batch(self, planned: Planned) -> None:
        """A batch ends that the loop may not have stepped: the others wait for this rank's part all the same."""
        if isinstance(planned, PlannedBlocks) and not planned.given and self.failure is None:
            self.update(planned, with_own=False)

    @torch.no_grad()
    def update(self, planned: PlannedBlocks, *, with_own: bool) -> None:
        """Exchange gradients, once for each batch, and update the rows that this rank owns."""
        assert self._exchange is not None
        if planned.given:
            raise ConfigError(f"batch {planned.number}: with ranks, step() updates rows once for each batch")
        planned.given = True
        if planned.came is None:
            sums = self._sums(planned) if with_own else None
            gradients = self._exchange.rows.gradients(planned.number, planned.asked, sums)
        else:
            gradients = self._exchange.rows.taken_in(planned.asked, planned.came)
        if gradients is not None:
            works = [work.take_in(of_group) for work, of_group in zip(planned.blocks, gradients, strict=True)]
            self._pipeline.report(planned.number, [work.update() for work in works])

    def _sums(self, planned: PlannedBlocks) -> list[Tensor]:
        """The gradients (m, D) of the rows of each group that this rank asked for."""
        assert self._exchange is not None
        if self._exchange.ranks.gradients == "mean" and self._exchange.ranks.size > 1:
            for work in planned.blocks:
                work.scale_gradients(1 / self._exchange.ranks.size)
        return [work.sums() for work in planned.blocks]

    @torch.no_grad()
    def gradients_for_owners(self, planned: PlannedBlocks) -> list[Bytes]:
        """The gradients of this rank's rows, for each rank, to cross beside other things; `planned.came` is what came.
        Then `step()` exchanges nothing any more."""
        assert self._exchange is not None
        return self._exchange.rows.for_owners(planned.asked, self._sums(planned) if planned.has_gradients else None)

    def refuse(self, what: str) -> None:
        """Refuse what looks at the gradients of one rank only."""
        if self._exchange is not None and self._exchange.ranks.blocks > 1:
            raise ConfigError(f"{what} would look at this rank's gradients only, and ranks would differ; leave it out")

    def read(self, batch: Batch) -> Planned:
        """All ranks call it together, each with its own samples."""
        assert self._exchange is not None
        blocks = batch.blocks() if isinstance(batch, OwnPart) else [batch]
        blocks = [None if block is None else self._pipeline.check(block) for block in blocks]
        lanes = self._pipeline.lanes

        def values(number: int, rows: NDArray[np.int64]) -> NDArray[np.float32]:
            with self._pipeline.lock:
                return self._pipeline.values(lanes[number], rows)[0]

        asked, rows = self._exchange.read(blocks, values)
        came = [lane.device.send(one) for lane, one in zip(lanes, rows, strict=True)]
        works = [AskedWork(lane, None, own, one) for lane, own, one in zip(lanes, asked.groups, came, strict=True)]
        return PlannedBlocks(batch, works, lanes[0].device.send, asked, self._exchange.ranks.blocks)
