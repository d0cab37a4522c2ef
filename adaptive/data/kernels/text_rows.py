"""Turn the keys of a text file into rows.

Letters: N keys, R rows of a block, K bag columns.
"""

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels.jit import kernel

Word = np.uint64 | np.int64
Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]

_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_LOGS = np.log1p(np.arange(1024)).astype(np.float32)  # most counts are small; this is four times as fast


@kernel()
def mix(key: Word) -> np.uint64:
    """Return a 64-bit hash of a key: splitmix64's finalizer (Steele et al., OOPSLA 2014)."""
    x = np.uint64(key)
    x = (x ^ (x >> _S30)) * _MIX1
    x = (x ^ (x >> _S27)) * _MIX2
    return x ^ (x >> _S31)


@kernel()
def scale_to(hash_: np.uint64, num_rows: int) -> np.int64:
    """Return the upper 64 bits of hash * num_rows, uniform in [0, num_rows), num_rows < 2^32."""
    rows = np.uint64(num_rows)
    return np.int64(((hash_ >> _S32) * rows + (((hash_ & _LOW) * rows) >> _S32)) >> _S32)


@kernel()
def hashed_rows(keys: Ids, present: Flags, num_rows: int, missing_row: int, out: Ids) -> None:
    """Write the hashed row of each key into out (N,); `missing_row` where no key is present."""
    for i in range(len(keys)):
        out[i] = scale_to(mix(keys[i]), num_rows) if present[i] else missing_row


@kernel()
def direct_rows(
    keys: Ids, present: Flags, num_rows: int, missing_row: int, unknown_row: int, out: Ids
) -> tuple[int, int]:
    """Write keys that are rows; return (first position out of range or -1, their number)."""
    first, count = -1, 0
    for i in range(len(keys)):
        if not present[i]:
            out[i] = missing_row
        elif 0 <= keys[i] < num_rows:
            out[i] = keys[i]
        else:
            out[i] = unknown_row
            first = i if first < 0 else first
            count += 1
    return first, count


@kernel()
def fitted_rows(
    keys: Ids, present: Flags, table_keys: Ids, table_rows: Ids, missing_row: int, unknown_row: int, out: Ids
) -> None:
    """Write the rows of keys from a hash table; `table_rows` is -1 in free cells."""
    last = len(table_keys) - 1
    for i in range(len(keys)):
        if not present[i]:
            out[i] = missing_row
            continue
        place = np.int64(mix(keys[i])) & last
        while table_rows[place] >= 0 and table_keys[place] != keys[i]:
            place = (place + 1) & last
        out[i] = table_rows[place] if table_rows[place] >= 0 else unknown_row


@kernel()
def insert_keys(keys: Ids, rows: Ids, table_keys: Ids, table_rows: Ids) -> None:
    """Fill the hash table that `fitted_rows` reads; keys must be distinct."""
    last = len(table_keys) - 1
    for i in range(len(keys)):
        place = np.int64(mix(keys[i])) & last
        while table_rows[place] >= 0:
            place = (place + 1) & last
        table_keys[place], table_rows[place] = keys[i], rows[i]


@kernel()
def count_keys(keys: Ids, amounts: Ids | Flags, table_keys: Ids, table_counts: Ids, room: int) -> tuple[int, int]:
    """Add amounts to the counts of keys in a hash table, where a count of 0 means a free cell.

    Returns:
        (keys processed, new keys). Stops before there are more than `room` new keys.
    """
    last, new = len(table_keys) - 1, 0
    for i in range(len(keys)):
        if amounts[i] == 0:
            continue
        place = np.int64(mix(keys[i])) & last
        while table_counts[place] and table_keys[place] != keys[i]:
            place = (place + 1) & last
        if not table_counts[place]:
            if new == room:
                return i, new
            table_keys[place] = keys[i]
            new += 1
        table_counts[place] += amounts[i]
    return len(keys), new


@kernel()
def gather_bags(bag_keys: Ids, bag_ends: Ids, num_rows: int, slot: int, keys: Ids, ends: Ids) -> int:
    """Copy one bag column to `keys` (values,) and `ends` (R,); return the number of values.

    If `keys` is empty, only `ends` is written.
    """
    num_bags = (len(bag_ends) - 1) // max(len(ends), 1)
    total = 0
    for row in range(num_rows):
        first, stop = bag_ends[row * num_bags + slot], bag_ends[row * num_bags + slot + 1]
        if len(keys):
            for i in range(stop - first):  # a slice would allocate an array object
                keys[total + i] = bag_keys[first + i]
        total += stop - first
        ends[row] = total
    return total


@kernel()
def finish_dense(dense: NDArray[np.float32], is_log: Flags, scales: NDArray[np.float64]) -> None:
    """Finish dense inputs (R, D) in place: 0 for NaN, log(1 + max(x, 0)) if `is_log`, else (x - mean) / deviation.

    Args:
        scales: (D, 2) mean and deviation; 0 and 1 leave a column as it is.
    """
    for row in range(len(dense)):
        for column in range(dense.shape[1]):
            value = dense[row, column]
            if np.isnan(value):
                dense[row, column] = 0.0
            elif is_log[column]:
                positive = max(value, np.float32(0.0))
                whole = np.int64(min(positive, np.float32(1023.0)))
                dense[row, column] = _LOGS[whole] if whole == positive else np.log1p(np.float64(positive))
            elif scales[column, 0] != 0.0 or scales[column, 1] != 1.0:
                dense[row, column] = (np.float64(value) - scales[column, 0]) / scales[column, 1]
