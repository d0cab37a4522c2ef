"""Compare the hit rate of a custom policy with that of LRU on drifting lookups.

python examples/custom_policy.py
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, Counter, Policy, RowStats, TableConfig, TierConfig, TieredEmbeddingBag

NUM_ROWS, BATCH_SIZE, NUM_BATCHES = 20_000, 512, 300


# --- the policy: all of it -----------------------------------------------------------------------------------
class Fading(Policy):
    """Score a row by its number of lookups, divided by the time since the latest."""

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        age = rows.step - rows.last_access
        return rows.accesses / (1 + age)


# -------------------------------------------------------------------------------------------------------------


def drifting_batches() -> Iterator[Batch]:
    """Yield Zipf-distributed ids; every 100 batches, popularity moves to other ids."""
    random = np.random.default_rng(0)
    popularity = np.arange(1, NUM_ROWS + 1) ** -1.05
    for number in range(NUM_BATCHES):
        ranks = random.choice(NUM_ROWS, BATCH_SIZE, p=popularity / popularity.sum())
        ids = (ranks + (number + ranks % 100) // 100 * (NUM_ROWS // 3)) % NUM_ROWS
        labels = (ids % 4 == 0).astype(np.float32)
        yield Batch(np.zeros((BATCH_SIZE, 0), np.float32), ids, np.arange(BATCH_SIZE + 1), labels)


def hit_rate(policy: str | type[Policy]) -> float:
    """Train with 5% of the rows on the device; return the share of lookups that hit."""
    table = TableConfig(name="item", num_embeddings=NUM_ROWS, embedding_dim=8)
    with TieredEmbeddingBag([table], TierConfig(device_rows="5%", device="cpu"), policy=policy) as embeddings:
        for planned in embeddings.look_ahead(drifting_batches(), depth=1):
            error = embeddings(planned)["item"].sum(1) - planned.labels
            error.square().mean().backward()
            embeddings.step()
        counts = embeddings.statistics.take().counts.sum(axis=0)
        return float(counts[Counter.LOOKUP_HITS] / counts[Counter.LOOKUPS])


if __name__ == "__main__":
    print(f"LRU     hit rate {hit_rate('lru'):.1%}")
    print(f"Fading  hit rate {hit_rate(Fading):.1%}")
