"""FAE's threshold: the smallest share of a table's lookups whose hot rows fit.

https://arxiv.org/abs/2103.00686 (PVLDB 15(1), 2022), its statistical optimizer. The number of hot rows of a large table
is estimated from 35 random chunks of 1024 rows each.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from adaptive.policies.samples import lookup

_CHUNKS, _CHUNK_ROWS, _CONFIDENCE = 35, 1024, 0.999  # of the paper
_HALVINGS = 40  # of the interval that holds the threshold's logarithm


def find_threshold(
    rows: NDArray[np.int64],
    counts: NDArray[np.int64],
    budget: int,
    starts: NDArray[np.int64],
    random: np.random.Generator,
) -> tuple[float, NDArray[np.bool_]]:
    """Find the smallest threshold whose hot rows are estimated to fit.

    Returns it, and (n,) True for the counted rows that are hot.

    Args:
        rows, counts: (n,) the counted rows of all tables, ascending, and their lookups.
        budget: number of rows that fit.
        starts: (tables + 1,) first row of each table, and the number of rows.
        random: draws the chunks.
    """
    tables = np.searchsorted(starts, rows, "right") - 1
    shares = counts / np.bincount(tables, counts, minlength=len(starts) - 1)[tables]
    chunks = [_chunks(rows, shares, int(first), int(last), random) for first, last in pairwise(starts)]
    sizes = np.diff(starts)

    def fits(threshold: float) -> bool:
        return sum(map(_estimate, chunks, sizes, [threshold] * len(sizes))) <= budget

    least = float(shares.min(initial=1.0))  # a row that was never counted is never hot
    threshold = least if fits(least) else _smallest(fits, least)
    return threshold, shares >= threshold


def _smallest(fits: Callable[[float], bool], least: float) -> float:
    """Find the smallest threshold that fits, by bisection on a logarithmic scale."""
    low, high = np.log(least), np.log(2.0)  # above 1 no row is hot, which always fits
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(float(np.exp(middle))) else (middle, high)
    return float(np.exp(high))


def _chunks(
    rows: NDArray[np.int64], shares: NDArray[np.float64], first: int, last: int, random: np.random.Generator
) -> NDArray[np.float64]:
    """(35, 1024) shares of lookups of random rows of a table, 0 = never counted.

    For a table that is hardly larger than all chunks: (1, n) of all counted rows.

    Args:
        rows, shares: the counted rows of all tables, ascending, and their shares of their tables' lookups.
        first, last: rows of the table.
        random: draws the rows.
    """
    counted = slice(*np.searchsorted(rows, [first, last]))
    if last - first <= 2 * _CHUNKS * _CHUNK_ROWS:
        return shares[None, counted]
    drawn = random.choice(last - first, _CHUNKS * _CHUNK_ROWS, replace=False) + first
    return lookup(drawn, rows[counted], shares[counted], 0.0).reshape(_CHUNKS, _CHUNK_ROWS)


def _estimate(chunks: NDArray[np.float64], size: int, threshold: float) -> float:
    """Number of rows of a table above the threshold: exact, or estimated from chunks.

    The estimate is the upper end of the 99.9% confidence interval of the mean (Student's t, with the correction for a
    finite population of chunks). The paper takes the mean; this way the hot rows most likely fit.
    """
    hot = (chunks >= threshold).sum(axis=1)
    if len(hot) == 1:
        return float(hot[0])
    num_chunks = size / _CHUNK_ROWS
    spread = np.sqrt((num_chunks - len(hot)) / num_chunks * hot.var(ddof=1) / len(hot))
    margin = stats.t.ppf((1 + _CONFIDENCE) / 2, len(hot) - 1) * spread
    return float(num_chunks * (hot.mean() + margin))
