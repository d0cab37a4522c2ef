"""From the keys of a text file to rows of a table, and from bags in file order to bags by feature.

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
def mixed(key: Word) -> np.uint64:
    """A 64-bit hash of a key: the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    x = np.uint64(key)
    x = (x ^ (x >> _S30)) * _MIX1
    x = (x ^ (x >> _S27)) * _MIX2
    return x ^ (x >> _S31)


@kernel()
def scaled_to(hash_: np.uint64, num_rows: int) -> np.int64:
    """The upper 64 bits of hash * num_rows, an even choice in [0, num_rows); num_rows < 2^32."""
    rows = np.uint64(num_rows)
    return np.int64(((hash_ >> _S32) * rows + (((hash_ & _LOW) * rows) >> _S32)) >> _S32)


@kernel()
def hashed_rows(keys: Ids, present: Flags, num_rows: int, missing_row: int, out: Ids) -> None:
    for i in range(len(keys)):
        out[i] = scaled_to(mixed(keys[i]), num_rows) if present[i] else missing_row


@kernel()
def direct_rows(
    keys: Ids, present: Flags, num_rows: int, missing_row: int, unknown_row: int, out: Ids
) -> tuple[int, int]:
    """Keys that are rows themselves -> (first key out of range or -1, how many)."""
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
    """Look keys up in a hash table with open addressing; `table_rows` is -1 where it is empty, never full."""
    last = len(table_keys) - 1
    for i in range(len(keys)):
        if not present[i]:
            out[i] = missing_row
            continue
        place = np.int64(mixed(keys[i])) & last
        while table_rows[place] >= 0 and table_keys[place] != keys[i]:
            place = (place + 1) & last
        out[i] = table_rows[place] if table_rows[place] >= 0 else unknown_row


@kernel()
def insert_keys(keys: Ids, rows: Ids, table_keys: Ids, table_rows: Ids) -> None:
    """Fill the hash table that `fitted_rows` reads; keys are distinct."""
    last = len(table_keys) - 1
    for i in range(len(keys)):
        place = np.int64(mixed(keys[i])) & last
        while table_rows[place] >= 0:
            place = (place + 1) & last
        table_keys[place], table_rows[place] = keys[i], rows[i]


@kernel()
def count_keys(keys: Ids, amounts: Ids | Flags, table_keys: Ids, table_counts: Ids, room: int) -> tuple[int, int]:
    """Add amounts to the counts of keys (0 = empty place) -> (keys done, new keys); stops before `room` is passed."""
    last, new = len(table_keys) - 1, 0
    for i in range(len(keys)):
        if amounts[i] == 0:
            continue
        place = np.int64(mixed(keys[i])) & last
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
    """One bag column of a block, row by row: `keys` (values,), `ends` (R,) -> number of values.

    With `keys` empty only `ends` is filled.
    """
    num_bags = (len(bag_ends) - 1) // max(len(ends), 1)
    total = 0
    for row in range(num_rows):
        first, stop = bag_ends[row * num_bags + slot], bag_ends[row * num_bags + slot + 1]
        if len(keys):
            for i in range(stop - first):  # a slice would be an array made here
                keys[total + i] = bag_keys[first + i]
        total += stop - first
        ends[row] = total
    return total


@kernel()
def finish_dense(dense: NDArray[np.float32], is_log: Flags) -> None:
    """In place, (R, D): missing (NaN) becomes 0, a column with `is_log` log(1 + max(x, 0))."""
    for row in range(len(dense)):
        for column in range(dense.shape[1]):
            value = dense[row, column]
            if np.isnan(value):
                dense[row, column] = 0.0
            elif is_log[column]:
                positive = max(value, np.float32(0.0))
                whole = np.int64(min(positive, np.float32(1023.0)))
                dense[row, column] = _LOGS[whole] if whole == positive else np.log1p(np.float64(positive))
