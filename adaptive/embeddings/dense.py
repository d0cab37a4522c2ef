"""What ranks do together in a training step: dense gradients of all blocks, losses and predictions of all samples.

Every rank then has the same numbers, in the order of one process: so each keeps the same totals, and updates its copy
of the dense weights alike.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive.batch import Batch, OwnPart
from adaptive.embeddings.blocks import PlannedBlocks
from adaptive.embeddings.distributed import RankSteps
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.channel import NOTHING, Exchanged
from adaptive.embeddings.ranks.dense import slice_size, slices_of, sum_blocks
from adaptive.embeddings.ranks.transport import Bytes, as_bytes
from adaptive.embeddings.ranks.wire import Kind
from adaptive.errors import RanksError

Floats = NDArray[np.float32]


def own_part(ranks: Ranks, batch: Batch) -> OwnPart:
    """The samples of a global batch that are this rank's."""
    own = ranks.own_blocks
    return OwnPart.of_batch(batch, ranks.block_bounds(batch.num_samples)[own.start : own.stop + 1])


class StepTogether:
    """The dense side of a step on several ranks, or of several blocks."""

    def __init__(self, ranks: Ranks, model: nn.Module) -> None:
        self._ranks = ranks
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._size = sum(weight.numel() for weight in self._weights)
        self.blocks: list[Floats] = []  # (weights,) gradients of each block of this rank that has samples

    def own_parts(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        return (own_part(self._ranks, batch) for batch in batches)

    def check_alike(self, step: int) -> None:
        """Check that all ranks have the same dense weights; all call it together.

        Raises:
            RanksError: on all of them, if they have not.
        """
        digest = hashlib.blake2b(digest_size=8)
        for weight in self._weights:
            digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        found = self._ranks.gather_facts(digest.hexdigest())
        other = next((rank for rank, one in enumerate(found) if one != found[0]), None)
        if other is not None:
            raise RanksError(
                f"dense weights differ after step {step}: those of {self._ranks.name_of(0)} have the digest {found[0]}"
                f", those of {self._ranks.name_of(other)} {found[other]}. Every rank computes the same update, so "
                "something else has changed them, or the machines round differently; all steps since the last record "
                "are in doubt"
            )

    def begin(self) -> None:
        self.blocks.clear()

    def take_gradients(self) -> Tensor:
        """Keep the gradients of the block whose backward pass has run, and clear them; returns their sum ()."""
        parts = [
            torch.zeros(weight.numel()) if weight.grad is None else weight.grad.detach().reshape(-1).cpu()
            for weight in self._weights
        ]
        self.blocks.append(torch.cat(parts).numpy() if parts else np.zeros(0, np.float32))
        for weight in self._weights:
            weight.grad = None
        return torch.from_numpy(self.blocks[-1]).sum()

    def put_back(self, block: int) -> None:
        """Give the weights the gradients of one block again: to see what is wrong with them."""
        self._set(self.blocks[block])

    def agree(
        self,
        steps: RankSteps,
        planned: PlannedBlocks,
        losses: Sequence[float],
        logits: Sequence[Tensor],
        labels: Floats,
    ) -> tuple[float, Tensor, Floats]:
        """The loss of the whole batch, the logits and labels of all its samples in order. Dense gradients are sums over
        all blocks then, and gradients of rows have come to their owners, for `embeddings.step()`: all crosses at once.

        Args:
            steps: of the tables that the batch is of.
            planned: the batch, whose passes have run.
            losses: of this rank's blocks that have samples.
            logits: of these blocks, (n,) or (n, T) together.
            labels: like them.
        """
        mine = [logit.float().cpu().numpy() for logit in logits]
        scores = _joined(np.array([len(losses), labels.size]), np.array(losses, np.float64), *mine, labels)
        dense = [_joined(*slices) for slices in slices_of(self._ranks, self.blocks, self._size)]
        rows, own = steps.gradients_for_owners(planned), self._ranks.rank
        found = self._ranks.rows.exchange(
            Kind.STEP,
            planned.number,
            [
                NOTHING if rank == own else _joined(scores, *parts)
                for rank, parts in enumerate(zip(dense, rows, strict=True))
            ],
            samples=int(planned.has_gradients),
            counted={kind: self._for_others(parts) for kind, parts in ((Kind.DENSE, dense), (Kind.GRADIENTS, rows))},
        )
        size = slice_size(self._ranks, self._size)
        parts = [
            _StepPart.of(scores, dense[own], rows[own]) if rank == own else _StepPart.of_message(message, size)
            for rank, message in enumerate(found.parts)
        ]
        planned.came = Exchanged(found.headers, [part.rows for part in parts])
        total = sum_blocks(self._ranks, [part.dense for part in parts], self._size)
        if total is not None:
            self._set(total)
        loss = 0.0
        for value in (value for part in parts for value in part.losses.tolist()):  # `sum` rounds otherwise
            loss += value
        shape = (-1, *labels.shape[1:])
        all_logits = np.concatenate([part.logits for part in parts]).reshape(shape)
        return loss, torch.from_numpy(all_logits), np.concatenate([part.labels for part in parts]).reshape(shape)

    def _for_others(self, parts: Sequence[Bytes]) -> int:
        """Bytes of the parts for other ranks."""
        return sum(map(len, parts)) - len(parts[self._ranks.rank])

    def _set(self, gradients: Floats) -> None:
        whole, place = torch.from_numpy(gradients), 0
        for weight in self._weights:
            piece = whole[place : place + weight.numel()].view(weight.shape)
            weight.grad = piece.to(weight.device, weight.dtype)
            place += weight.numel()


@dataclass(frozen=True)
class _StepPart:
    """What one rank sends another in a step: its scores, dense gradients, and gradients of rows.

    head     (2,) int64       blocks with samples; labels
    losses   (blocks,) float64
    logits   (labels,) float32, and as many labels
    dense    (blocks, slice) float32
    rows     the rest, as `Exchange.for_owners` gives it
    """

    losses: NDArray[np.float64]
    logits: Floats
    labels: Floats
    dense: Bytes
    rows: Bytes

    @classmethod
    def of(cls, scores: Bytes, dense: Bytes, rows: Bytes) -> "_StepPart":
        blocks, labels = _numbers(scores)
        _, losses, logits, own_labels = np.split(scores, np.cumsum([16, 8 * blocks, 4 * labels]))
        return cls(losses.view(np.float64), logits.view(np.float32), own_labels.view(np.float32), dense, rows)

    @classmethod
    def of_message(cls, message: Bytes, slice_size: int) -> "_StepPart":
        blocks, labels = _numbers(message)
        end = 16 + 8 * blocks + 8 * labels
        return cls.of(message[:end], *np.split(message[end:], [4 * blocks * slice_size]))


def _numbers(message: Bytes) -> tuple[int, int]:
    """Blocks with samples, and labels."""
    blocks, labels = message[:16].view(np.int64).tolist()
    return blocks, labels


def _joined(*arrays: NDArray[Any]) -> Bytes:
    """All bytes; of one array its own."""
    parts = [as_bytes(one) for one in arrays]
    return parts[0] if len(parts) == 1 else np.concatenate([NOTHING, *parts])
