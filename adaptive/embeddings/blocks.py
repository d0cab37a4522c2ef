"""`PlannedBlocks`: a rank's part of a global batch on its way through the model, block by block.

A block is pooled from the rows that owners have sent, and keeps its own gradients; they are summed by row, sent to the
owners, and update rows there as any batch's gradients do.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch
from adaptive.embeddings.engine.pipeline import Lane
from adaptive.embeddings.exchange.batch_exchange import Asked
from adaptive.embeddings.exchange.id_requests import AskedBlock, AskedGroup
from adaptive.embeddings.planned_batch import GroupWork, Planned
from adaptive.embeddings.planning.plan import GroupPlan
from adaptive.embeddings.ranks.channel import Exchanged
from adaptive.errors import ConfigError

Floats = NDArray[np.float32]


class BlockWork(GroupWork):
    """The rows of one group in one block."""

    def __init__(self, lane: Lane, plan: GroupPlan | None, asked: AskedBlock, rows: Tensor) -> None:
        super().__init__(lane, plan, None if plan is not None else asked.pooling(), rows)
        self._asked = asked
        self._pooling = asked.pooling()
        self._group = lane.group.whole

    def sums(
        self, vectors: NDArray[np.int32], num_vectors: int, left_out: NDArray[np.bool_] | None, out: Tensor | None
    ) -> Tensor:
        """(num_vectors, D) the gradients of the block's distinct rows, as `AskedBlock.sums` says, beside those of other
        blocks in `out`."""
        assert self.gradients is not None
        return self._lane.device.pool(self._asked.sums(vectors, num_vectors, left_out), self.gradients, out)

    @property
    def places(self) -> NDArray[np.int64]:
        return self._asked.places


class AskedWork(GroupWork):
    """The rows of one group in all blocks of a rank, and what this rank owns of the batch's rows.

    It has gradients if one of its blocks has.
    """

    def __init__(self, lane: Lane, plan: GroupPlan | None, asked: AskedGroup, rows: Tensor) -> None:
        self.blocks = tuple(None if one is None else BlockWork(lane, plan, one, rows) for one in asked.blocks)
        self._width, self._asked = lane.group.embedding_dim, asked
        self.plan, self.parts, self._lane, self._group = plan, (), lane, lane.group.whole

    @property
    def _there(self) -> list[BlockWork]:
        return [block for block in self.blocks if block is not None]

    @property
    def gradients(self) -> Tensor | None:  # type: ignore[override]
        """All gradients of vectors, of all blocks."""
        found = [block.gradients for block in self._there if block.gradients is not None]
        return torch.cat(found) if len(found) > 1 else next(iter(found), None)

    def pool(self) -> Tensor:
        return self._only.pool()

    def add_gradients(self, gradients: Tensor) -> None:
        self._only.add_gradients(gradients)

    @property
    def _only(self) -> BlockWork:
        if len(self.blocks) != 1 or self.blocks[0] is None:
            there = len(self._there)
            raise ConfigError(f"this rank has {there} blocks of the batch: loop over planned.parts(), one block each")
        return self.blocks[0]

    def forget(self) -> None:
        for block in self._there:
            block.forget()

    def scale_gradients(self, factor: float | Tensor) -> None:
        for block in self._there:
            block.scale_gradients(factor)

    def bad_gradients(self, batch: Batch) -> list[str]:
        raise NotImplementedError  # `PlannedBlocks` asks the blocks

    def sums(self) -> Tensor:
        """(m, D) the gradient of each row that was asked for and is not left out, in the order of requests; 0 for rows
        of a block that no gradient has reached."""
        left_out, device = self._asked.left_out, self._lane.device
        places = np.arange(self._asked.num_rows) if left_out is None else np.cumsum(~left_out) - 1
        size = self._asked.num_rows if left_out is None else int((~left_out).sum())
        known = [block for block in self._there if block.gradients is not None]
        found = device.empty_vectors(size)
        if len(known) < max(1, len(self._there)):
            found = device.send(np.zeros((size, self._width), np.float32))
        for block in known:
            own = None if left_out is None else left_out[block.places]
            found = block.sums(places[block.places].astype(np.int32), size, own, found)
        return found

    def take_in(self, gradients: Tensor | None) -> GroupWork:
        """The owner's work: rows to be updated from the gradients of the requests of all ranks (requests, D)."""
        work = GroupWork(self._lane, self.plan)
        work.gradients = gradients
        return work


class PlannedBlocks(Planned):
    """A rank's part of a batch. With one block it is its own only part; with several, loop over `parts()`."""

    def __init__(
        self,
        batch: Batch,
        works: Sequence[AskedWork],
        send: Callable[[Floats], Tensor],
        asked: Asked,
        num_blocks: int,
    ) -> None:
        super().__init__(batch, works, send, whole=len(asked.blocks) == 1)
        self.asked = asked
        self.blocks = tuple(works)
        self.given = False  # the owners have taken this batch's gradients in
        self.came: Exchanged | None = None  # the gradients for this owner, if they have crossed with other things
        self.num_samples_of_all = asked.samples
        self.is_share = num_blocks > 1

    @property
    def first(self) -> int:
        """In the global batch."""
        return self.asked.first

    def parts(self) -> Iterator[Planned]:
        if len(self.asked.blocks) == 1 and self.asked.blocks[0] is not None:
            yield self
            return
        first = self.first
        for number, block in enumerate(self.asked.blocks):
            if block is not None:
                yield _Block(self, number, block, first)
                first += block.num_samples

    @property
    def has_gradients(self) -> bool:
        return any(block.gradients is not None for work in self.blocks for block in work.blocks if block is not None)

    def bad_gradients(self) -> list[str]:
        return [name for part in self.parts() for work in _works(part) for name in work.bad_gradients(part.batch)]


class _Block(Planned):
    """One block of several."""

    def __init__(self, whole: PlannedBlocks, number: int, batch: Batch, first: int) -> None:
        works = [work.blocks[number] for work in whole.blocks]
        super().__init__(batch, [work for work in works if work is not None], whole._send)
        self._whole, self._first_sample = whole, first
        self.share = batch.num_samples / whole.num_samples_of_all
        self.num_samples_of_all, self.is_share = whole.num_samples_of_all, True

    @property
    def whole(self) -> Planned:
        return self._whole

    @property
    def first(self) -> int:
        return self._first_sample


def _works(part: Planned) -> list[GroupWork]:
    return [work._only if isinstance(work, AskedWork) else work for work in part.works]
