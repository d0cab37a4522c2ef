"""A hash table from rows to places, for vectors that are kept. Rows are entered and never taken out one by one."""

import numpy as np

from adaptive.kernels.jit import kernel
from adaptive.kernels.planning.watched import ONE, home


@kernel()
def enter_rows(rows, keys, values, count, places):
    """Enter rows that are not there yet, and give them the next places.

    rows (n,) int64; keys int64 (-1 = empty) and values int32 are a hash table, a power of two, with room for n more
    rows. Outputs: places (n,) int64. Returns the new number of rows, `count` before.
    """
    mask = np.uint64(keys.size - 1)
    for i in range(rows.size):
        row = rows[i]
        h = home(row, mask)
        while keys[h] != row and keys[h] != -1:
            h = (h + ONE) & mask
        if keys[h] == -1:
            keys[h], values[h] = row, count
            count += 1
        places[i] = values[h]
    return count
