"""Writes `trace.npy`, the look-ups on which hit counts are frozen: `python tests/golden/make_trace.py`.

A trace of two tables (6000 and 400 rows) whose popularity follows Zipf's law and drifts: every rank of popularity
gets another row each 100 batches, at a time of its own. Random numbers are raw bits of PCG64, which numpy promises
never to change.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TRACE = Path(__file__).with_name("trace.npy")
NUM_EMBEDDINGS = (6000, 400)
NUM_BATCHES, BATCH_SIZE = 200, 192
_EXPONENTS = (1.05, 0.9)
_PERIOD = 100  # batches until every rank has got another row
_STRIDES = (2017, 143)  # coprime to the tables' sizes: neighbours in rank are not neighbours in memory


def make_trace(seed: int = 2026) -> NDArray[np.uint16]:
    """(batches, samples, tables) ids."""
    bits = np.random.PCG64(seed)
    columns = [
        _ids(bits, rows, exponent, stride)
        for rows, exponent, stride in zip(NUM_EMBEDDINGS, _EXPONENTS, _STRIDES, strict=True)
    ]
    return np.stack(columns, axis=2).astype(np.uint16)


def _ids(bits: np.random.PCG64, num_rows: int, exponent: float, stride: int) -> NDArray[np.int64]:
    popularity = np.cumsum(np.arange(1, num_rows + 1) ** -exponent)
    uniform = (bits.random_raw(NUM_BATCHES * BATCH_SIZE) >> np.uint64(11)) * 2.0**-53
    ranks = np.searchsorted(popularity / popularity[-1], uniform).reshape(NUM_BATCHES, BATCH_SIZE)
    batches = np.arange(NUM_BATCHES)[:, None]
    changes = (batches + ranks * 37 % _PERIOD) // _PERIOD
    return (ranks + changes * (num_rows // 3)) * stride % num_rows


if __name__ == "__main__":
    np.save(TRACE, make_trace())
