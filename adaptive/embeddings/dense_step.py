"""The dense part of a step: gradients and losses of the whole batch, on every rank.

With several ranks, all ranks get the same numbers, added in the order of a single process. So all ranks have the same
totals, and update their copies of the dense weights in the same way.

    slices of all blocks' gradients  -- a step's exchange -->  slice r of every block, on rank r
    slice r: (block 0 + block 1) + block 2 ...                 the same order, whichever rank computed which block
    sums                             -- exchange -->           all ranks

This sends as many bytes as a ring all-reduce. Unlike there, the order of additions depends neither on the number of
ranks nor on the library that sends. Where it costs only a few more bytes (none with two ranks), every block's gradients
go whole to all ranks, which all compute the same sums, without the second exchange.

All functions are called from the training thread.
"""

import hashlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.embeddings.distributed import PlannedBlocks, RankSteps
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.channel import NOTHING, Exchanged
from adaptive.embeddings.ranks.transport import Bytes, Kind, as_bytes
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import RanksError

Floats = NDArray[np.float32]
ROUND: Final = 128 << 10  # bytes that a rank sends in about the time of one more exchange


class LocalDenseStep:
    """The dense part of steps in a single process, which uses its gradients as they are."""

    def own_part(self, batch: Batch) -> Batch:
        """Return this rank's samples of a batch."""
        return batch

    def begin(self) -> None:
        """Prepare for the passes of a batch."""

    def take_gradients(self) -> list[float]:
        """Take the gradients of a block after backward; return their sum if they were taken."""
        return []

    def each_block(self) -> Iterator[None]:
        """Set the weights' gradients to those of one block after another, to find bad ones."""
        yield

    def combine(
        self, planned: Planned, losses: Sequence[float], logits: Sequence[Tensor], labels: Floats, weights: Floats
    ) -> tuple[float, Tensor, Floats, Floats]:
        """Return the loss of the whole batch, and logits, labels and weights of all its samples in order.

        Afterwards dense gradients are sums over all blocks, and the owners have the gradients of their rows for
        `embeddings.step()`. Everything is sent in one exchange. `losses` and `logits`, each (n,) or (n, T), are of this
        rank's blocks that have samples, `labels` (n,) or (n, T) and `weights` (n,), or (0,) if all are 1, of all these
        blocks.
        """
        return _sum_in_order(losses), torch.cat(list(logits)) if len(logits) > 1 else logits[0], labels, weights

    def check_alike(self, step: int) -> None:
        """Check that all ranks have the same dense weights; all ranks call it together.

        Raises:
            RanksError: on all ranks, if weights differ.
        """


def dense_step(embeddings: TieredEmbeddingBag, model: nn.Module) -> LocalDenseStep:
    """Return the dense part of the steps for the ranks of these tables."""
    steps = embeddings.runtime.batch_steps
    return RankDenseStep(embeddings.ranks, steps, model) if isinstance(steps, RankSteps) else LocalDenseStep()


class RankDenseStep(LocalDenseStep):
    """The dense part of the steps with several ranks or several blocks."""

    def __init__(self, ranks: Ranks, steps: RankSteps, model: nn.Module) -> None:
        self._ranks, self._steps = ranks, steps
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._size = sum(weight.numel() for weight in self._weights)
        self.blocks: list[Floats] = []  # gradients (weights,) of each block of this rank that has samples

    def own_part(self, batch: Batch) -> Batch:
        return self._ranks.own_part(batch)

    def check_alike(self, step: int) -> None:
        if self._ranks.size == 1:
            return
        digest = hashlib.blake2b(digest_size=8)
        for weight in self._weights:
            digest.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        digests = self._ranks.gather_facts(digest.hexdigest())
        other = next((rank for rank, of_rank in enumerate(digests) if of_rank != digests[0]), None)
        if other is not None:
            raise RanksError(
                f"step {step}: expected the same dense weights on all ranks, got digest {digests[0]} on "
                f"{self._ranks.name_of(0)} and {digests[other]} on {self._ranks.name_of(other)}. All ranks compute the "
                "same update, so something else changed the weights, or the machines round differently. Resume from a "
                "checkpoint before the last record, with the same software and processors on all ranks."
            )

    def begin(self) -> None:
        self.blocks.clear()

    def take_gradients(self) -> list[float]:
        """Keep the gradients in `blocks`, and clear those of the weights."""
        parts = [
            torch.zeros(weight.numel()) if weight.grad is None else weight.grad.detach().reshape(-1).cpu()
            for weight in self._weights
        ]
        self.blocks.append(torch.cat(parts).numpy() if parts else np.zeros(0, np.float32))
        for weight in self._weights:
            weight.grad = None
        return [float(torch.from_numpy(self.blocks[-1]).sum())]

    def each_block(self) -> Iterator[None]:
        for gradients in self.blocks:
            self._set(gradients)
            yield

    def combine(
        self, planned: Planned, losses: Sequence[float], logits: Sequence[Tensor], labels: Floats, weights: Floats
    ) -> tuple[float, Tensor, Floats, Floats]:
        assert isinstance(planned, PlannedBlocks)
        own_logits = [logit.float().cpu().numpy() for logit in logits]
        head = np.array([len(losses), labels.size, weights.size])
        scores = _join_bytes(head, np.array(losses, np.float64), *own_logits, labels, weights)
        dense = [_join_bytes(*slices) for slices in slice_blocks(self._ranks, self.blocks, self._size)]
        rows, rank = self._steps.gradients_for_owners(planned), self._ranks.rank
        exchanged = self._ranks.rows.exchange(
            Kind.STEP,
            planned.number,
            [
                NOTHING if to == rank else _join_bytes(scores, *parts)
                for to, parts in enumerate(zip(dense, rows, strict=True))
            ],
            samples=int(planned.has_gradients),
            counted={
                kind: sum(map(len, parts)) - len(parts[rank])
                for kind, parts in ((Kind.DENSE, dense), (Kind.GRADIENTS, rows))
            },
        )
        size = slice_size(self._ranks, self._size)
        parts = [
            _StepPart.of(scores, dense[rank], rows[rank]) if sender == rank else _StepPart.of_message(message, size)
            for sender, message in enumerate(exchanged.parts)
        ]
        planned.received = Exchanged(exchanged.headers, [part.rows for part in parts])
        total = sum_blocks(self._ranks, [part.dense for part in parts], self._size)
        if total is not None:
            self._set(total)
        loss = _sum_in_order(value for part in parts for value in part.losses.tolist())
        shape = (-1, *labels.shape[1:])
        all_logits = np.concatenate([part.logits for part in parts]).reshape(shape)
        all_labels = np.concatenate([part.labels for part in parts]).reshape(shape)
        return loss, torch.from_numpy(all_logits), all_labels, np.concatenate([part.weights for part in parts])

    def _set(self, gradients: Floats) -> None:
        whole, place = torch.from_numpy(gradients), 0
        for weight in self._weights:
            piece = whole[place : place + weight.numel()].view(weight.shape)
            weight.grad = piece.to(weight.device, weight.dtype)
            place += weight.numel()


class _StepPart(NamedTuple):
    """Message of one rank to another in a step: scores, and dense and row gradients.

    head     (3,) int64       blocks with samples; labels; weights
    losses   (blocks,) float64
    logits   (labels,) float32, and as many labels
    weights  (weights,) float32
    dense    (blocks, slice) float32
    rows     the rest, from `RankSteps.gradients_for_owners`
    """

    losses: NDArray[np.float64]
    logits: Floats
    labels: Floats
    weights: Floats
    dense: Bytes
    rows: Bytes

    @classmethod
    def of(cls, scores: Bytes, dense: Bytes, rows: Bytes) -> "_StepPart":
        _, losses, *floats = np.split(scores, np.cumsum(_sizes(scores))[:-1])
        logits, own_labels, weights = (part.view(np.float32) for part in floats)
        return cls(losses.view(np.float64), logits, own_labels, weights, dense, rows)

    @classmethod
    def of_message(cls, message: Bytes, slice_size: int) -> "_StepPart":
        end, blocks = sum(_sizes(message)), int(message[:8].view(np.int64)[0])
        return cls.of(message[:end], *np.split(message[end:], [4 * blocks * slice_size]))


def _sizes(message: Bytes) -> list[int]:
    """Bytes of head, losses, logits, labels and weights at the begin of a message."""
    blocks, labels, weights = message[:24].view(np.int64).tolist()
    return [24, 8 * blocks, 4 * labels, 4 * labels, 4 * weights]


def _sum_in_order(losses: Iterable[float]) -> float:
    return reduce(operator.add, losses, 0.0)  # the built-in `sum` compensates rounding errors, so its result differs


def _join_bytes(*arrays: NDArray[Any]) -> Bytes:
    """Return the bytes of all arrays, concatenated; without a copy if there is only one."""
    parts = list(map(as_bytes, arrays))
    return parts[0] if len(parts) == 1 else np.concatenate([NOTHING, *parts])


def is_sent_whole(ranks: int, blocks: int, size: int) -> bool:
    """True if gradients (size,) of blocks are sent whole, for few more bytes than slices."""
    whole, sliced = blocks * (ranks - 1), (blocks + ranks) * (ranks - 1) / ranks
    return 4 * size * (whole - sliced) <= ROUND * ranks


def slice_size(ranks: Ranks, size: int) -> int:
    """Return how many of a block's gradients (size,) this rank adds."""
    return (
        size if is_sent_whole(ranks.size, ranks.blocks, size) else int(np.diff(_slice_bounds(ranks, size))[ranks.rank])
    )


def slice_blocks(ranks: Ranks, blocks: Sequence[Floats], size: int) -> list[list[Floats]]:
    """Return, for each rank, its slices of the gradients (size,) of this rank's blocks."""
    if is_sent_whole(ranks.size, ranks.blocks, size):
        return [list(blocks)] * ranks.size
    return [[block[first:last] for block in blocks] for first, last in pairwise(_slice_bounds(ranks, size))]


def sum_blocks(ranks: Ranks, slices: Iterable[Bytes], size: int) -> Floats | None:
    """Return the sum (size,) over all blocks of all ranks, in order; None without gradients.

    `slices`: from each rank, in order, those that `slice_blocks` returned there for this rank.
    """
    total: Floats | None = None
    for part in slices:
        for block in part.view(np.float32).reshape(-1, max(1, slice_size(ranks, size))):
            # One block after the other: `np.sum` over an axis may add in pairs.
            total = block.copy() if total is None else np.add(total, block, out=total)
    if is_sent_whole(ranks.size, ranks.blocks, size):
        return total
    everywhere = np.zeros(0, np.float32) if total is None else total
    sums = ranks.rows.exchange(Kind.SUMS, parts=[everywhere.view(np.uint8)] * ranks.size).parts
    joined: Floats = np.concatenate([part.view(np.float32) for part in sums])
    return joined if len(joined) == size else None


def _slice_bounds(ranks: Ranks, size: int) -> list[int]:
    """Return the begin of each rank's slice, and the end of the last one."""
    return [rank * size // ranks.size for rank in range(ranks.size + 1)]
