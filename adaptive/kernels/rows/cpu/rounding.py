"""Keys of stochastic rounding: a hash of seed, table, row and batch.

They are equal for every placement, look-ahead depth and number of ranks or threads, and after a resume: `number` counts
trained batches, not visits of the row, and checkpoints contain it.
"""

import numpy as np

from adaptive.kernels.jit import kernel
from adaptive.kernels.rows.cpu.initial import GOLDEN, mix, table_at


@kernel(noalias=True)
def rounding_keys(rows, table_starts, table_keys, number, keys):
    """keys[u] = the key of group row rows[u] in batch `number`: see `vector.bfloat16`.

    rows (U,) int64; table_starts (T + 1,) int64; table_keys (T,) uint64, the seeds of the tables' initial values;
    keys (U,) uint64. Rows mostly follow those of the same table; the loop over them has no branch, so it is vectorized.
    On one thread: where planning has the other core, waiting for a second thread takes longer.
    """
    batch, first, num_rows = mix(np.uint64(number) + GOLDEN), np.uint64(0), np.uint64(rows.size)
    while first < num_rows:
        table = table_at(table_starts, rows[first])
        start, stop = table_starts[table], table_starts[table + 1]
        last = first + np.uint64(1)
        while last < num_rows and start <= rows[last] and rows[last] < stop:
            last += np.uint64(1)
        of_table = table_keys[table] - np.uint64(start) * GOLDEN
        for u in range(first, last):
            keys[u] = mix((of_table + np.uint64(rows[u]) * GOLDEN) ^ batch) | np.uint64(1)  # 0 would round to nearest
        first = last
