"""What ranks do together in a training step: dense gradients of all blocks, losses and predictions of all samples.

Every rank then has the same numbers, in the order of one process: so each keeps the same totals, and updates its copy
of the dense weights alike.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive.batch import Batch, OwnPart
from adaptive.embedding.blocks import PlannedBlocks
from adaptive.errors import RanksError
from adaptive.ranks import Ranks
from adaptive.ranks.dense import sum_blocks
from adaptive.ranks.wire import Kind

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
        self, planned: PlannedBlocks, losses: Sequence[float], logits: Sequence[Tensor], labels: Floats
    ) -> tuple[float, Tensor, Floats]:
        """The loss of the whole batch, the logits and labels of all its samples in order. Dense gradients are sums over
        all blocks then. Losses and logits are of this rank's blocks that have samples, labels (n,) or (n, T) of all of
        them."""
        found = self._gather(planned, losses, logits, labels)
        there = [block is not None for block in planned.asked.blocks]
        own = iter(self.blocks)
        total = sum_blocks(self._ranks, [next(own) if has else None for has in there], self._size)
        if total is not None:
            self._set(total)
        return found

    def _gather(
        self, planned: PlannedBlocks, losses: Sequence[float], logits: Sequence[Tensor], labels: Floats
    ) -> tuple[float, Tensor, Floats]:
        mine = [logit.float().cpu().numpy() for logit in logits]
        head = np.array([len(losses), labels.size], np.float64)
        parts = [head, np.array(losses, np.float64), *mine, labels]
        message = np.concatenate([np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts])
        found = self._ranks.rows.exchange(Kind.STEP, planned.number, [message] * self._ranks.size)
        loss, all_logits, all_labels = 0.0, [], []
        for part in found.parts:
            blocks, size = np.frombuffer(part[:16].tobytes(), np.float64).astype(int)
            for value in np.frombuffer(part[16 : 16 + 8 * blocks].tobytes(), np.float64):
                loss += float(value)
            rest = np.frombuffer(part[16 + 8 * blocks :].tobytes(), np.float32)
            all_logits.append(rest[:size])
            all_labels.append(rest[size:])
        shape = (-1, *labels.shape[1:])
        found_logits, found_labels = (np.concatenate(parts).reshape(shape) for parts in (all_logits, all_labels))
        return loss, torch.from_numpy(found_logits), found_labels

    def _set(self, gradients: Floats) -> None:
        whole, place = torch.from_numpy(gradients), 0
        for weight in self._weights:
            piece = whole[place : place + weight.numel()].view(weight.shape)
            weight.grad = piece.to(weight.device, weight.dtype, copy=True)
            place += weight.numel()
