"""What `TieredEmbeddingBag` does with other ranks: rows come from their owners, gradients go there."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch, OwnPart
from adaptive.embeddings.blocks import AskedWork, PlannedBlocks
from adaptive.embeddings.engine.pipeline import ReadyBatch
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.ranks.transport import Bytes
from adaptive.embeddings.reports import Reports
from adaptive.errors import ConfigError


class Together(Reports):
    """The part that every rank takes in each batch, whatever its loop does."""

    @contextmanager
    def telling_ranks(self) -> Iterator[None]:
        """Around the body of a loop: whatever ends it is told to the other ranks when the look-ahead is closed. Without
        it they only learn that this rank has left its loop."""
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    def _leave(self, failed: BaseException | None) -> None:
        """The look-ahead is over."""
        if self._exchange is not None and not self._pipeline.is_forked:
            error = self._failure if failed is None else failed
            self._pipeline.next_number = self._exchange.leave(error, self._pipeline.next_number)

    def _planned_with_ranks(self, ready: ReadyBatch) -> Planned:
        """The rows that this rank needs of a batch come here, once."""
        assert self._exchange is not None
        lanes, number = self._pipeline.lanes, ready.number
        asked = self._exchange.asked(number)
        served = [lane.device.pool(plan.pooling) for lane, plan in zip(lanes, ready.plans, strict=True)]
        rows = self._exchange.rows.vectors(number, asked, served)
        works = [AskedWork(*one) for one in zip(lanes, ready.plans, asked.groups, rows, strict=True)]
        self._has_no_samples = all(block is None for block in asked.blocks)
        return PlannedBlocks(ready.batch, works, self._pipeline.inputs(ready), asked, self._exchange.ranks.blocks)

    def _finish_with_ranks(self, planned: Planned) -> None:
        """A batch ends that the loop may not have stepped: the others wait for this rank's part all the same."""
        if isinstance(planned, PlannedBlocks) and not planned.given and self._failure is None:
            self._update_with_ranks(planned, with_own=False)

    @torch.no_grad()
    def _update_with_ranks(self, planned: PlannedBlocks, *, with_own: bool) -> None:
        """Exchange gradients, once for each batch, and update the rows that this rank owns."""
        assert self._exchange is not None
        if planned.given:
            raise ConfigError(f"batch {planned.number}: with ranks, step() updates rows once for each batch")
        planned.given = True
        if planned.came is None:
            sums = self._sums(planned) if with_own else None
            found = self._exchange.rows.gradients(planned.number, planned.asked, sums)
        else:
            found = self._exchange.rows.taken_in(planned.asked, planned.came)
        if found is not None:
            own = [work.take_in(one) for work, one in zip(planned.blocks, found, strict=True)]
            self._pipeline.report(planned.number, [work.update() for work in own])

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

    def _refuse_with_ranks(self, what: str) -> None:
        """What looks at the gradients of one rank only."""
        if self.ranks is not None and self.ranks.blocks > 1:
            raise ConfigError(f"{what} would look at this rank's gradients only, and ranks would differ; leave it out")

    def _read_with_ranks(self, batch: Batch) -> Planned:
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
        return PlannedBlocks(batch, works, self._send, asked, self._exchange.ranks.blocks)
