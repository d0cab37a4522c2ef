"""The golden trace, and the planner's hits on it."""

from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, one_hot_batch
from adaptive.config import TableConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import SGD
from adaptive.policy import Policy
from support.make_trace import NUM_EMBEDDINGS, drifting_trace

CALIBRATION_BATCHES = 16
drifting_ids = cache(drifting_trace)


@cache
def trace() -> list[list[int]]:
    """Rows of each batch, table by table; rows of the second table follow those of the first."""
    starts = np.array([0, NUM_EMBEDDINGS[0]])
    return [(batch + starts).T.ravel().tolist() for batch in drifting_ids()]


def batches(ids: NDArray[np.int64]) -> Iterator[Batch]:
    """Batches of ids (batches, samples, tables)."""
    for batch in ids:
        zeros = np.zeros(len(batch), np.float32)
        yield one_hot_batch(zeros[:, None], batch, zeros)


def planned_hits(policy: Policy, device_rows: str, depth: int) -> int:
    """Distinct rows of batches that the planner found on the device."""
    tables = [
        TableConfig(name=f"t{table}", num_embeddings=rows, embedding_dim=1) for table, rows in enumerate(NUM_EMBEDDINGS)
    ]
    tier = TierConfig(device_rows=device_rows, device="cpu")
    with TieredEmbeddingBag(tables, tier, policy=policy, optimizer=SGD()) as embeddings:
        embeddings.calibrate(list(batches(drifting_ids()[:CALIBRATION_BATCHES])))
        for batch in embeddings.look_ahead(batches(drifting_ids()), depth=depth):
            embeddings.stack(batch).sum().backward()  # type: ignore[no-untyped-call]
            embeddings.step()
        counts = embeddings.statistics.take().counts.sum(axis=0)
    assert counts[Counter.UNIQUE_ROWS] == sum(len(set(batch)) for batch in trace())
    return int(counts[Counter.ROW_HITS])
