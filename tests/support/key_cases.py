"""Tables with keys, and batches whose keys come and go."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from adaptive.batch import Batch
from adaptive.config import TableConfig
from adaptive.counters import Counter
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from support.helpers import Trainee

EXTREMES = [-(2**63), 2**63 - 1, 0, -1, 1]
KEY_COUNTERS = [Counter.ADMITTED_KEYS, Counter.EXPIRED_KEYS, Counter.EVICTED_KEYS, Counter.UNADMITTED_LOOKUPS]
Rows = dict[str, dict[int | None, tuple[bytes, bytes]]]
"""Table -> key -> bytes of weights and state; None is the row of keys without a row."""


def key_table(name: str = "item", **settings: Any) -> TableConfig:
    return TableConfig.model_validate(
        {"name": name, "num_embeddings": 8, "embedding_dim": 3, "keys": "int64"} | settings
    )


def drawn_batches(tables: Sequence[TableConfig], seed: int, count: int = 24) -> list[Batch]:
    """Batches of 1 to 9 samples with keys that come and go; the time of a batch is about 10 times its number."""
    random = np.random.default_rng(seed)
    known = np.concatenate([random.integers(-(2**63), 2**63 - 1, 60), EXTREMES])
    batches = []
    for number in range(count):
        samples, live = int(random.integers(1, 10)), random.permutation(known)[:14]
        features = {}
        for table in tables:
            for name in table.feature_names:
                sizes = random.integers(0, 4, samples)
                values = random.choice(np.concatenate([live, known[number : number + 5]]), sizes.sum())
                features[name] = (values, np.concatenate([[0], np.cumsum(sizes)]))
        times = 10 * number + random.integers(-15, 16, samples)
        labels = random.integers(0, 2, samples).astype(np.float32)
        dense = random.normal(size=samples)
        batches.append(Batch.of(features, dense=dense, labels=labels, extras={"timestamp": np.maximum(times, 0)}))
    return batches


def hot_batches(count: int) -> Iterator[Batch]:
    """Two samples of keys that come back in most batches, half of them until batch 140 only, and one of a new key."""
    random = np.random.default_rng(6)
    for number in range(count):
        users, items = (random.permutation(6 if number < 140 else 3)[:2].tolist() for _ in range(2))
        dense, labels = random.normal(size=3), random.integers(0, 2, 3).astype(np.float32)
        yield Batch.of(user=[*users, 100 + number], item=[*items, 100 + number // 3], dense=dense, labels=labels)


def rows_by_key(embeddings: TieredEmbeddingBag) -> Rows:
    """All rows with keys, and those of keys without one."""
    rows: Rows = {}
    for tiered in embeddings.runtime.pipeline.tiered_groups:
        assert tiered.keys is not None
        for table in tiered.keys.tables:
            numbers = np.concatenate([[table.start], table.live_rows()])
            weights, state = embeddings.runtime.pipeline.values(tiered, numbers)
            keys: list[int | None] = [None, *tiered.keys.row_keys[numbers[1:]].tolist()]
            values = [(w.tobytes(), s.tobytes()) for w, s in zip(weights, state, strict=True)]
            rows[table.config.name] = dict(zip(keys, values, strict=True))
    return rows


def train_more_on(embeddings: TieredEmbeddingBag, trainee: Trainee, batches: Sequence[Batch], depth: int) -> None:
    for planned in embeddings.look_ahead(batches, depth=depth):
        trainee.learn(embeddings(planned), planned.batch)
        embeddings.step()
