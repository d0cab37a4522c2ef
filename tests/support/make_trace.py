"""Writes `ranks.npy`, from which the golden trace follows: `python tests/support/make_trace.py`.

The trace looks up two tables (6000 and 400 rows) whose popularity follows Zipf's law. Every rank of popularity gets
another row each 100 batches, at a time of its own, so that with every batch one per cent of what is popular changes.
Random numbers are raw bits of PCG64, which numpy promises never to change. Ranks are stored because the powers behind
them may differ between machines; the rest is whole numbers.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RANKS = Path(__file__).parents[1] / "golden/ranks.npy"
NUM_EMBEDDINGS = (6000, 400)
NUM_BATCHES, BATCH_SIZE = 200, 192
_EXPONENTS = (1.05, 0.9)
_PERIOD = 100  # batches until every rank has got another row
_STRIDES = (2017, 143)  # coprime to the tables' sizes: neighbors in rank are not neighbors in memory


def drifting_trace() -> NDArray[np.int64]:
    """(batches, samples, tables) ids."""
    ranks: NDArray[np.int64] = np.load(RANKS, allow_pickle=False).astype(np.int64)  # 0 = the most popular
    changes = (np.arange(NUM_BATCHES)[:, None, None] + ranks * 37 % _PERIOD) // _PERIOD  # rows that a rank has left
    sizes = np.array(NUM_EMBEDDINGS)
    ids: NDArray[np.int64] = (ranks + changes * (sizes // 3)) * np.array(_STRIDES) % sizes
    return ids


def make_ranks(seed: int = 2026) -> NDArray[np.uint16]:
    """(batches, samples, tables)."""
    bits = np.random.PCG64(seed)
    columns = [_zipf(bits, rows, exponent) for rows, exponent in zip(NUM_EMBEDDINGS, _EXPONENTS, strict=True)]
    return np.stack(columns, axis=2).astype(np.uint16)


def _zipf(bits: np.random.PCG64, num_rows: int, exponent: float) -> NDArray[np.int64]:
    popularity = np.cumsum(np.arange(1, num_rows + 1) ** -exponent)
    uniform = (bits.random_raw(NUM_BATCHES * BATCH_SIZE) >> np.uint64(11)) * 2.0**-53
    ranks: NDArray[np.int64] = np.searchsorted(popularity / popularity[-1], uniform).reshape(NUM_BATCHES, BATCH_SIZE)
    return ranks


if __name__ == "__main__":
    np.save(RANKS, make_ranks())
