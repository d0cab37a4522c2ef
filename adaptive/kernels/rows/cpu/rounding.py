"""Keys of stochastic rounding: a hash of seed, table, row and batch.

They are equal for every placement, look-ahead depth and number of ranks or threads, and after a resume: `number` counts
trained batches, not visits of the row, and checkpoints contain it.
"""

import numba
import numpy as np

from adaptive.kernels.jit import kernel
from adaptive.kernels.rows.cpu.initial import GOLDEN, mix


@kernel(parallel=True)
def rounding_keys(rows, table_starts, table_keys, number, keys, num_chunks):
    """keys[u] = the key of group row rows[u] in batch `number`: see `vector.bfloat16`.

    rows (U,) int64; table_starts (T + 1,) int64; table_keys (T,) uint64, the seeds of the tables' initial values;
    keys (U,) uint64. Rows mostly follow those of the same table, so the table is rarely searched.
    """
    batch, num_rows = mix(np.uint64(number) + GOLDEN), rows.size
    for chunk in numba.prange(num_chunks):
        table = 0
        for u in range(chunk * num_rows // num_chunks, (chunk + 1) * num_rows // num_chunks):
            row = rows[u]
            if row < table_starts[table] or row >= table_starts[table + 1]:
                table = np.searchsorted(table_starts, row, side="right") - 1
            of_row = table_keys[table] + np.uint64(row - table_starts[table]) * GOLDEN
            keys[u] = mix(of_row ^ batch) | np.uint64(1)  # 0 would round to nearest
