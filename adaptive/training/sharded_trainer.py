"""`ShardedTrainer`: the training loop on several ranks, which all read the same batches.

Each rank trains its share of a batch. One all-reduce of one buffer brings what all need: the sums of the dense
gradients, and logits, labels and weights of all samples, each of which one rank adds to zeros.
"""

import hashlib
import operator
from collections.abc import Iterable
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptive.arrays import Floats
from adaptive.batch import Batch
from adaptive.distributed.sharded_embedding_bag import ShardedEmbeddingBag
from adaptive.embeddings.planned_batch import LookAhead, Planned
from adaptive.errors import RanksError
from adaptive.training.trainer import Passed, Trainer


class ShardedTrainer(Trainer):
    """`Trainer` on several ranks. All call its methods together, with equal arguments."""

    embeddings: ShardedEmbeddingBag

    def __init__(self, embeddings: ShardedEmbeddingBag, *arguments: Any, **named: Any) -> None:
        super().__init__(embeddings, *arguments, **named)
        self._peers = embeddings.peers
        self._weights = [weight for weight in self.model.parameters() if weight.requires_grad]

    def _look_ahead(self, batches: Iterable[Batch], depth: int) -> LookAhead:
        return self.embeddings.look_ahead(batches, depth=depth, divide=True)

    def _write_interval(self) -> None:
        self._check_alike()
        super()._write_interval()

    def _combine(self, planned: Planned, passed: Passed) -> tuple[float, Tensor, Floats, Floats]:
        batch, samples, peers = planned.batch, planned.num_samples_of_all, self._peers
        own = slice(planned.first, planned.first + planned.num_samples)
        columns = torch.zeros((3, samples), device=self.embeddings.device)
        if passed.logits:
            columns[0, own], columns[1, own] = passed.logits[0].float(), planned.labels
            if "weight" in batch.extras:
                columns[2, own] = planned.extras["weight"].float()
        numbers = torch.zeros((2, peers.size), device=self.embeddings.device)
        numbers[0, peers.rank] = reduce(operator.add, passed.losses, 0.0)
        numbers[1, peers.rank] = peers.heard
        dense = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in self._weights]
        flat = torch.cat([part.reshape(-1).float() for part in (*dense, columns, numbers)])
        peers.sum_values(flat, f"dense gradients of step {self.recorder.steps + 1}")
        sizes = [part.numel() for part in (*dense, columns, numbers)]
        *gradients, of_samples, of_ranks = torch.split(flat, sizes)
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = gradient.view(weight.shape).to(weight.dtype)
        losses, heard = of_ranks.view(2, -1).tolist()
        peers.agreed = peers.agreed or int(max(heard))
        logits, labels, weights = of_samples.view(3, -1).cpu()
        has_weights = "weight" in batch.extras
        return sum(losses), logits, labels.numpy(), weights.numpy() if has_weights else np.zeros(0, np.float32)

    def _check_alike(self) -> None:
        """Check that all ranks have the same dense weights.

        Raises:
            RanksError: on all ranks, if weights differ.
        """
        digest, step = hashlib.blake2b(digest_size=8), self.recorder.steps
        for weight in self._weights:
            digest.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        digests = self._peers.rows.gather_facts(digest.hexdigest(), f"weights after step {step}")
        other = next((rank for rank, of_rank in enumerate(digests) if of_rank != digests[0]), None)
        if other is not None:
            raise RanksError(
                f"step {step}: expected the same dense weights on all ranks, got digest {digests[0]} on "
                f"{self._peers.names[0]} and {digests[other]} on {self._peers.names[other]}. All ranks compute "
                "the same update, so something else changed the weights, or the machines round differently. Resume "
                "from a checkpoint before the last record, with the same software and processors on all ranks."
            )
