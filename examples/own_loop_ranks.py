"""Your own training loop on several ranks, with DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/own_loop_ranks.py

Each rank reads its part of the samples of a made-up click log. Each row has one owner rank. Ranks fetch the rows that
they look up from the owners ahead of training, and send back gradients summed by row.
"""

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from adaptive import Adagrad, Batch, ShardedEmbeddingBag, TableConfig, TierConfig

STEPS, BATCH = 60, 256  # samples of all ranks together


def global_batches() -> list[Batch]:
    """Return batches of skewed ids; users click on every third item."""
    random = np.random.default_rng(0)
    batches = []
    for _ in range(STEPS):
        user, item = random.zipf(1.3, BATCH) % 5_000, random.zipf(1.3, BATCH) % 900
        batches.append(Batch.of(user=user, item=item, labels=(item % 3 == 0).astype(np.float32)))
    return batches


def main() -> None:
    dist.init_process_group("gloo")  # torchrun sets the address
    tables = [
        TableConfig(name="user", num_embeddings=5_000, embedding_dim=16),
        TableConfig(name="item", num_embeddings=900, embedding_dim=16),
    ]
    embeddings = ShardedEmbeddingBag(tables, TierConfig(device_rows="50%"), policy="lfu", optimizer=Adagrad(lr=0.1))
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(2 * 16, 1).to(embeddings.device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    rank, size = dist.get_rank(), dist.get_world_size()
    samples = np.arange(rank, BATCH, size)
    loader = [batch.take(samples) for batch in global_batches()]
    for planned in embeddings.look_ahead(loader, depth=4):
        logits = model(embeddings.stack(planned).flatten(1)).squeeze(1)
        loss = binary_cross_entropy_with_logits(logits, planned.labels)  # a mean over this rank's samples
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        embeddings.step()
        if rank == 0 and planned.number % 20 == 0:
            print(f"batch {planned.number:2}  loss {loss.item():.2f}")

    moved = np.linalg.norm(embeddings.rows.table_weights("item"))  # every rank must call it
    if rank == 0:
        print(f"{size} ranks, norm of the items' rows {moved:.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
