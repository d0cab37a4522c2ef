"""Count the lookups of a data set: reads of rows, all-hot inputs, reuse distances.

Letters: B samples, F features, N lookups of a batch, R rows of all tables. Batches are stored feature by feature: the
bag of feature f and sample s has the lookups offsets[f * B + s] to offsets[f * B + s + 1] (exclusive).
"""

import numpy as np

from adaptive.kernels.jit import at, kernel


@kernel()
def number_rows(ids, offsets, num_samples, starts, sizes, rows):
    """Write the global row of each lookup into rows (N,), int32 or int64.

    ids (N,) int64; offsets (F * B + 1,) int64; starts, sizes (F,) int64: first global row, and number of rows, of the
    table of feature f. Returns -1, or the position of the first lookup whose id is outside its table.
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
    """Add one to counts (R,) int64 for each lookup in rows (N,)."""
    for row in rows:
        counts[at(row)] += 1


@kernel()
def count_chosen(rows, offsets, chosen, counts):
    """Do what `count_rows` does for the lookups of the chosen samples only; chosen (B,) bool."""
    num_samples = chosen.size
    for first in range(0, offsets.size - 1, num_samples):
        for sample in range(num_samples):
            if chosen[sample]:
                for p in range(offsets[first + sample], offsets[first + sample + 1]):
                    counts[at(rows[at(p)])] += 1


@kernel()
def all_of_rows(rows, offsets, marks, common):
    """Write the bits that all rows of a sample share to common (B,) uint64.

    A sample without lookups gets all bits. marks (R,) uint64. If bit k means "hot under rule k", the result shows the
    rules under which a sample is hot.
    """
    num_samples = common.size
    common[:] = np.uint64(0xFFFFFFFFFFFFFFFF)
    for first in range(0, offsets.size - 1, num_samples):
        for sample in range(num_samples):
            for p in range(offsets[first + sample], offsets[first + sample + 1]):
                common[at(sample)] &= marks[at(rows[at(p)])]


@kernel()
def visit(rows, offsets, first_sample, last_sample, num_samples, number, latest, gaps):
    """Record batch `number` (from 1); return its number of distinct rows.

    The batch is the samples [first_sample, last_sample). latest (R,) int32: the latest batch that looked up a row, or
    0. gaps (G,) int64: gaps[g] counts rows that were last used g batches earlier; the last entry also counts longer
    gaps, and gaps[0] stays 0. Both are updated in place.
    """
    distinct = 0
    for first in range(0, offsets.size - 1, num_samples):
        for p in range(offsets[first + first_sample], offsets[first + last_sample]):
            row = rows[at(p)]
            previous = latest[at(row)]
            if previous != number:
                distinct += 1
                latest[at(row)] = number
                if previous > 0:
                    gaps[min(number - previous, gaps.size - 1)] += 1
    return distinct
