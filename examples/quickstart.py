"""Train a small click model with tables in two tiers on the built-in synthetic stream.

Run: python examples/quickstart.py          (seconds on a laptop)

Prints the loss every 20 batches, then the hit rate, the moved rows and the AUC on held-out samples. The last lines show
that another policy and another device size give the same weights, bit for bit.
"""

import numpy as np
import torch

from adaptive import (
    DLRM,
    Counter,
    DLRMConfig,
    RowwiseAdagrad,
    Synthetic,
    SyntheticConfig,
    TableConfig,
    TierConfig,
    TieredEmbeddingBag,
    evaluate,
)

BATCH_SIZE = 1024


def train(policy: str, device_rows: str) -> tuple[TieredEmbeddingBag, torch.nn.Module, Synthetic]:
    """Train on 80 batches and print the loss."""
    data = Synthetic(SyntheticConfig(rows=200_000, num_train=80 * BATCH_SIZE, num_eval=20_000))
    tables = [TableConfig(name=f.name, num_embeddings=f.num_embeddings, embedding_dim=16) for f in data.features]
    embeddings = TieredEmbeddingBag(
        tables, TierConfig(device_rows=device_rows), policy=policy, optimizer=RowwiseAdagrad(lr=0.05)
    )
    model = DLRM(DLRMConfig(embedding_dim=16), num_dense=data.num_dense, num_features=len(data.features))
    model.to(embeddings.device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)

    # --- the loop: plain torch, plus look_ahead() and embeddings.step() ---
    for planned in embeddings.look_ahead(data.train(BATCH_SIZE), depth=4):
        logits = model(planned.dense, embeddings.stack(planned))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, planned.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        embeddings.step()
        # ---
        if planned.number % 20 == 19:
            print(f"{policy:6} batch {planned.number + 1:3}  loss {loss.item():.4f}")
    return embeddings, model, data


def main() -> None:
    embeddings, model, data = train("lru", "20%")
    counts = embeddings.statistics.take().counts.sum(axis=0)
    print(embeddings.statistics.device_rows_text())
    print(f"hit rate {counts[Counter.LOOKUP_HITS] / counts[Counter.LOOKUPS]:.1%} of lookups")
    print(f"{counts[Counter.FETCHED]:,} rows fetched, {counts[Counter.WRITTEN_BACK]:,} written back")
    print(f"AUC {evaluate(embeddings, model, data.evaluation(8192)).auc:.4f} on held-out samples")

    others, _, _ = train("lfu", "100%")
    equal = all(
        np.array_equal(embeddings.rows.table_weights(t), others.rows.table_weights(t)) for t in others.table_names
    )
    print(f"lru with 20% and lfu with 100% of the rows on the device: tables {'equal' if equal else 'DIFFER'}")


if __name__ == "__main__":
    main()
