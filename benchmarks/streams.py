"""Lookups as in Criteo's Kaggle data: 26 tables of its sizes, ids by a bounded Zipf law.

Letters: B samples, F features.
"""

from collections.abc import Sequence
from math import gcd

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.config import TableConfig
from adaptive.data.synthetic import table_sizes

NUM_DENSE = 13
SCATTER = 2_654_435_761  # a prime: popular ids are not neighbours


def kaggle_tables(rows: int, dim: int) -> tuple[TableConfig, ...]:
    """Return the 26 tables with `rows` rows in all; only the large ones are scaled."""
    sizes = enumerate(table_sizes(rows), start=1)
    return tuple(TableConfig(name=f"C{number}", num_embeddings=size, embedding_dim=dim) for number, size in sizes)


def zipf(rng: np.random.Generator, count: int, size: int, exponent: float) -> NDArray[np.int64]:
    """Draw (count,) ids in [0, size) by Zipf's law.

    The rank-th most popular has a weight of about rank ** -exponent, exponent != 1.

    The continuous law on [1, size + 1) inverted and rounded down; ranks are scattered over the table by a bijection.
    """
    power = 1.0 - exponent
    ranks = (1.0 + rng.random(count) * ((size + 1.0) ** power - 1.0)) ** (1.0 / power)
    return rank_ids(np.minimum(ranks.astype(np.int64) - 1, size - 1), size)


def rank_ids(ranks: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The ids of ranks counted from 0."""
    step = SCATTER % size
    while gcd(step, size) != 1:
        step += 1
    ids: NDArray[np.int64] = (ranks * step + size // 3) % size
    return ids


def make_batches(
    tables: Sequence[TableConfig],
    num_batches: int,
    num_samples: int,
    *,
    mean_hot: int = 1,
    exponent: float = 1.05,
    seed: int = 0,
) -> list[Batch]:
    """Make batches with one feature a table.

    With `mean_hot` > 1 a bag has 1 to 2 * mean_hot - 1 ids, uniformly."""
    rng = np.random.default_rng(seed)
    return [_make_batch(rng, tables, num_samples, mean_hot, exponent) for _ in range(num_batches)]


def _make_batch(
    rng: np.random.Generator, tables: Sequence[TableConfig], num_samples: int, mean_hot: int, exponent: float
) -> Batch:
    num_bags = len(tables) * num_samples
    sizes = np.ones(num_bags, np.int64) if mean_hot == 1 else rng.integers(1, 2 * mean_hot, num_bags)
    offsets = np.zeros(num_bags + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    bounds = offsets[::num_samples]
    counts = np.diff(bounds)
    ids = [zipf(rng, int(n), table.num_embeddings, exponent) for n, table in zip(counts, tables, strict=True)]
    return Batch(
        dense=rng.standard_normal((num_samples, NUM_DENSE), np.float32),
        ids=np.concatenate(ids),
        offsets=offsets,
        labels=(rng.random(num_samples) < 0.25).astype(np.float32),
    ).mark_unshared()  # as batches of our readers are: peers get tensors that are not copied either


def one_each(tables: Sequence[TableConfig], batches: Sequence[Batch], limit: int = 4096) -> NDArray[np.int64]:
    """Return (n, F) rows to compare: looked-up rows of each table, repeated to one length."""
    seen = []
    for feature in range(len(tables)):
        ids = [b.ids[b.offsets[feature * b.num_samples] : b.offsets[(feature + 1) * b.num_samples]] for b in batches]
        seen.append(np.unique(np.concatenate(ids))[:limit])
    longest = max(map(len, seen))
    return np.stack([np.resize(rows, longest) for rows in seen], axis=1)
