"""Counting what a data set looks up: how often each row comes, which inputs find all their rows hot, how soon a row
comes again.

Letters: B samples, F features, N look-ups of a batch, R rows of all tables. Batches are feature by feature: the bag of
feature f and sample s has the look-ups offsets[f * B + s] ... offsets[f * B + s + 1].
"""

import numpy as np

from adaptive.kernels.jit import at, kernel


@kernel()
def number_rows(ids, offsets, num_samples, starts, sizes, rows):
    """rows (N,) int32 or int64: the number, through all tables, of the row of each look-up.

    ids (N,) int64; offsets (F * B + 1,) int64; starts, sizes (F,) int64: first row, and number of rows, of the table
    that feature f looks up. Returns -1, or the first look-up whose id is no row of its table.
    """
    for feature in range(starts.size):
        start, size = starts[feature], sizes[feature]
        for p in range(offsets[feature * num_samples], offsets[(feature + 1) * num_samples]):
            if ids[p] < 0 or ids[p] >= size:
                return p
            rows[at(p)] = start + ids[p]
    return -1


@kernel()
def count_rows(rows, counts):
    """Add one to counts (R,) int64 for each of the look-ups rows (N,)."""
    for row in rows:
        counts[at(row)] += 1


@kernel()
def count_chosen(rows, offsets, chosen, counts):
    """`count_rows` for the look-ups of the chosen inputs only; chosen (B,) bool."""
    num_samples = chosen.size
    for first in range(0, offsets.size - 1, num_samples):
        for sample in range(num_samples):
            if chosen[sample]:
                for p in range(offsets[first + sample], offsets[first + sample + 1]):
                    counts[at(rows[at(p)])] += 1


@kernel()
def all_of_rows(rows, offsets, marks, common):
    """common (B,) uint64: the bits that the marks of all rows of an input have in common; all bits without a look-up.

    marks (R,) uint64. With bit k for "is hot under rule k", it tells the rules under which an input is hot.
    """
    num_samples = common.size
    common[:] = np.uint64(0xFFFFFFFFFFFFFFFF)
    for first in range(0, offsets.size - 1, num_samples):
        for sample in range(num_samples):
            for p in range(offsets[first + sample], offsets[first + sample + 1]):
                common[at(sample)] &= marks[at(rows[at(p)])]


@kernel()
def visit(rows, offsets, first_sample, last_sample, num_samples, number, latest, gaps):
    """Batch `number` (from 1) is the samples first_sample ... last_sample - 1; returns its distinct rows.

    latest (R,) int32: the latest batch that looked a row up, 0: none so far. gaps (G,) int64: gaps[g] counts distinct
    rows of batches that come again after g batches, those after G - 1 or more in the last; gaps[0] stays 0.
    """
    distinct = 0
    for first in range(0, offsets.size - 1, num_samples):
        for p in range(offsets[first + first_sample], offsets[first + last_sample]):
            row = rows[at(p)]
            before = latest[at(row)]
            if before != number:
                distinct += 1
                latest[at(row)] = number
                if before > 0:
                    gaps[min(number - before, gaps.size - 1)] += 1
    return distinct
