"""The golden traces through the planner, and what of them Belady's eviction would hit."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, one_hot_batch
from adaptive.config import TableConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import SGD
from adaptive.policy import Policy
from support.cache_twins import belady_hit_rows
from support.make_trace import NUM_EMBEDDINGS, drifting_trace, still_trace

CALIBRATION_BATCHES = 16
Ids = NDArray[np.int64]  # (batches, samples, tables)


@dataclass(frozen=True)
class Hits:
    """Of a whole trace: distinct rows of batches that were on the device, and look-ups of such rows."""

    rows: int
    lookups: int


@cache
def drifting_ids() -> Ids:
    return drifting_trace()


@cache
def still_ids() -> Ids:
    return still_trace()


def lookups(ids: Ids) -> list[list[int]]:
    """Rows of each batch, table by table; rows of the second table follow those of the first."""
    starts = np.array([0, NUM_EMBEDDINGS[0]])
    return [(batch + starts).T.ravel().tolist() for batch in ids]


def batches(ids: Ids) -> Iterator[Batch]:
    for batch in ids:
        zeros = np.zeros(len(batch), np.float32)
        yield one_hot_batch(zeros[:, None], batch, zeros)


def planned(policy: Policy, ids: Ids, device_rows: str, depth: int) -> Hits:
    """What the planner found on the device."""
    tables = [
        TableConfig(name=f"t{table}", num_embeddings=rows, embedding_dim=1) for table, rows in enumerate(NUM_EMBEDDINGS)
    ]
    tier = TierConfig(device_rows=device_rows, device="cpu")
    with TieredEmbeddingBag(tables, tier, policy=policy, optimizer=SGD()) as embeddings:
        embeddings.calibrate([batch for batch, _ in zip(batches(ids), range(CALIBRATION_BATCHES), strict=False)])
        for batch in embeddings.look_ahead(batches(ids), depth=depth):
            embeddings.stack(batch).sum().backward()  # type: ignore[no-untyped-call]
            embeddings.step()
        counts = embeddings.statistics.take().counts.sum(axis=0)
    assert counts[Counter.UNIQUE_ROWS] == sum(len(set(batch)) for batch in lookups(ids))
    return Hits(int(counts[Counter.ROW_HITS]), int(counts[Counter.LOOKUP_HITS]))


def best(ids: Ids, num_slots: int) -> Hits:
    """What Belady's eviction hits. No eviction has more hits of rows; of look-ups one might."""
    trace = lookups(ids)
    hits = list(belady_hit_rows(trace, num_slots))
    weighted = sum(row in here for batch, here in zip(trace, hits, strict=True) for row in batch)
    return Hits(sum(map(len, hits)), weighted)
