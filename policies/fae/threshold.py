"""FAE's threshold: the smallest share of its table's lookups from which on a row is hot, so that the hot rows fit.

https://arxiv.org/abs/2103.00686 (PVLDB 15(1), 2022), on its statistical optimizer. How many rows of a large table a
threshold makes hot is estimated from 35 random chunks of 1024 rows each.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import stats

_CHUNKS, _CHUNK_ROWS, _CONFIDENCE = 35, 1024, 0.999  # of the paper
_HALVINGS = 40  # of the interval that holds the threshold's logarithm


def find_threshold(
    rows: NDArray[np.int64],
    counts: NDArray[np.int64],
    budget: int,
    starts: NDArray[np.int64],
    random: np.random.Generator,
) -> tuple[float, NDArray[np.bool_]]:
    """The smallest threshold whose hot rows are estimated to fit, and which of the counted rows (n,) are hot.

    Args:
        rows, counts: (n,) the counted rows of all tables, in order, and their lookups.
        budget: rows that fit.
        starts: (tables + 1,) first row of each table, and the number of rows.
        random: draws the chunks.
    """
    tables = np.searchsorted(starts, rows, "right") - 1
    shares = counts / np.bincount(tables, counts, minlength=len(starts) - 1)[tables]
    chunks = [_chunks(rows, shares, int(first), int(last), random) for first, last in pairwise(starts)]
    sizes = np.diff(starts)

    def fits(threshold: float) -> bool:
        return sum(map(_estimate, chunks, sizes, [threshold] * len(sizes))) <= budget

    least = float(shares.min(initial=1.0))  # a row that was never seen is not hot, whatever the budget
    threshold = least if fits(least) else _smallest(fits, least)
    return threshold, shares >= threshold


def _smallest(fits: Callable[[float], bool], least: float) -> float:
    """The smallest threshold that fits, above one that does not; by halving on a logarithmic scale."""
    low, high = np.log(least), np.log(2.0)  # no row has twice the lookups of its table, and nothing always fits
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(float(np.exp(middle))) else (middle, high)
    return float(np.exp(high))


def _chunks(
    rows: NDArray[np.int64], shares: NDArray[np.float64], first: int, last: int, random: np.random.Generator
) -> NDArray[np.float64]:
    """Shares (35, 1024) of random rows of the table of rows first ... last - 1, 0 = never counted.

    Of a table that is hardly larger than the chunks together: of all counted rows, (1, n).

    Args:
        rows, shares: the counted rows of all tables, in order, and their shares of their tables' lookups.
    """
    counted = slice(*np.searchsorted(rows, [first, last]))
    if last - first <= 2 * _CHUNKS * _CHUNK_ROWS:
        return shares[None, counted]
    drawn = random.choice(last - first, _CHUNKS * _CHUNK_ROWS, replace=False) + first
    places = np.minimum(np.searchsorted(rows[counted], drawn), max(counted.stop - counted.start - 1, 0))
    if counted.start == counted.stop:
        return np.zeros((_CHUNKS, _CHUNK_ROWS))
    drawn_shares = np.where(rows[counted][places] == drawn, shares[counted][places], 0.0)
    return drawn_shares.reshape(_CHUNKS, _CHUNK_ROWS)


def _estimate(chunks: NDArray[np.float64], size: int, threshold: float) -> float:
    """Rows of a table of `size` rows above the threshold: exact, or from chunks.

    From chunks it is the upper end of the 99.9 % confidence interval of the mean by Student's t, with the correction
    for a finite number of chunks. The paper takes the mean; this way the hot rows most likely fit.
    """
    hot = (chunks >= threshold).sum(axis=1)
    if len(hot) == 1:
        return float(hot[0])
    num_chunks = size / _CHUNK_ROWS
    spread = np.sqrt((num_chunks - len(hot)) / num_chunks * hot.var(ddof=1) / len(hot))
    margin = stats.t.ppf((1 + _CONFIDENCE) / 2, len(hot) - 1) * spread
    return float(num_chunks * (hot.mean() + margin))
