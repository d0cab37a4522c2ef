"""Initial values of rows: a hash, so that no row is written before its first use."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels.jit import in_parallel, kernel
from adaptive.kernels.vector.row_ops import store_number

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX1 = np.uint64(0xBF58476D1CE4E5B9)
MIX2 = np.uint64(0x94D049BB133111EB)
LEAST_KEY: Final = np.array([np.iinfo(np.int64).min])  # first row of a table whose rows are all int64 numbers
S27, S30, S31, S40 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(40)


@kernel()
def mix(x):
    """A bijection of 64-bit words that scatters well (the finalizer of SplitMix64)."""
    x = (x ^ (x >> S30)) * MIX1
    x = (x ^ (x >> S27)) * MIX2
    return x ^ (x >> S31)


@kernel()
def table_at(starts, row):
    """Return the last table that starts at `row` or before it. `np.searchsorted` takes 10 times as long to compile."""
    low, high = 0, starts.size
    while low < high:
        middle = (low + high) // 2
        if starts[middle] <= row:
            low = middle + 1
        else:
            high = middle
    return low - 1


@kernel()
def initial_rows(to_weights, to_state, to_rows, rows, table_starts, table_keys, table_bounds, first_state):
    """Write the initial values of `rows` (n,) to rows `to_rows` of weights and state.

    Values are uniform in +-table_bounds[t], a function of (table_keys[t], index, column) alone: they do not depend on
    which tables share a width or a machine. A plain loop: integer hashes are not worth vectorizing by hand.
    to_rows, rows (n,) int64; weights (rows, D) float32, or bfloat16: rounded to nearest; state (rows, S) float32.
    """
    for i in range(rows.size):
        table = table_at(table_starts, rows[i])
        key = mix(table_keys[table] + np.uint64(rows[i] - table_starts[table]) * GOLDEN)
        bound = table_bounds[table]
        for d in range(to_weights.shape[1]):
            word = mix(key + np.uint64(d + 1) * GOLDEN)
            unit = np.float32(np.int64(word >> S40)) * np.float32(2.0**-23) - np.float32(1.0)
            store_number(to_weights, to_rows[i], d, bound * unit)
        for s in range(to_state.shape[1]):
            to_state[to_rows[i], s] = first_state


@kernel()
def initial_share(c, bounds, weights, state, of_rows, tables):
    to_rows, rows = of_rows[0][bounds[c] : bounds[c + 1]], of_rows[1][bounds[c] : bounds[c + 1]]
    initial_rows(weights, state, to_rows, rows, *tables)


@kernel()
def initial_shares(bounds, to_weights, to_state, to_rows, rows, *tables):
    """`initial_rows` by several threads; bounds (C + 1,) int64 are those of their shares of the rows."""
    in_parallel(initial_share, bounds.size - 1, bounds, to_weights, to_state, (to_rows, rows), tables)


def initial_rows_by_key(
    weights: NDArray[Any],
    state: NDArray[Any],
    to_rows: NDArray[np.int64],
    rows: NDArray[np.int64],
    keys: NDArray[np.int64],
    table_starts: NDArray[np.int64],
    table_keys: NDArray[np.uint64],
    table_bounds: NDArray[np.float32],
    first_state: np.number[Any],
) -> None:
    """Write the initial values of rows (n,) that have keys (n,) to rows `to_rows` (n,) of weights and state.

    They are those of a table whose rows are all int64 numbers, in order. The first row of a table, for keys without a
    row, is zero.
    """
    tables = np.searchsorted(table_starts, rows, side="right") - 1
    for table in np.unique(tables).tolist():
        places, span = np.flatnonzero(tables == table), slice(table, table + 1)
        of_table = LEAST_KEY, table_keys[span], table_bounds[span]
        initial_rows(weights, state, to_rows[places], keys[places], *of_table, first_state)
    weights[to_rows[rows == table_starts[tables]]] = 0
