"""Turn the keys of a text file into rows, distinct texts, and samples of pairs.

Letters: N keys, R rows of a block, K bag columns; V texts, T distinct ones; L lines of P positive pairs with M
negatives each. A pair gives 1 + M samples, of which it is the first.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive.data.kernels.text import INNER, KEY_BAG, KIND, Layout
from adaptive.data.kernels.text_fields import Bytes, hash_text
from adaptive.kernels.jit import kernel

Word = np.uint64 | np.int64
Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]

START, STOP, QUOTE, SPAN_SIZE = range(4)  # of a text: its range of bytes, and the quote that is doubled in it, or -1
ALL, KEPT, HELD_OUT = range(3)  # pairs of users and items

_FIRST, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a
_GOLDEN, _S1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(1)
_TRIES = 32
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


@kernel()
def find_column_spans(data: Bytes, starts: Ids, layout: Layout, wanted: int, spans: Ids) -> int:
    """Write the spans of a column's texts; return their number, or -1 if `spans` is full.

    `spans` is (any, SPAN_SIZE).

    Args:
        starts: start of each line; lines must be free of faults.
    """
    count = 0
    for start in starts:
        p = start
        for column in range(wanted + 1):
            closing = -1
            if data[p] == layout.quote:
                closing = layout.quote
                p += 1
            if column == wanted:
                inner = layout.plan[column, INNER] if layout.plan[column, KIND] == KEY_BAG else -1
                while True:
                    _, stop, _ = hash_text(data, p, layout.separator, inner, closing)
                    if stop > p:
                        if count == len(spans):
                            return -1
                        spans[count, START], spans[count, STOP], spans[count, QUOTE] = p, stop, closing
                        count += 1
                    if data[stop] != inner:
                        break
                    p = stop + 1
            else:
                inner = -1
                _, p, _ = hash_text(data, p, layout.separator, inner, closing)
                p += 2 if closing >= 0 else 1
    return count


@kernel()
def keep_texts(
    data: Bytes, spans: Ids, first: int, places: Ids, keys: Ids, ends: Ids, texts: Bytes, count: int
) -> tuple[int, int]:
    """Append new texts, from span `first` on; return (spans processed, T).

    Stops when an array is full.

    Args:
        places: hash table with open addressing: number of a text, or -1.
        keys, ends: (any,) the key of each text; ends[t + 1] is its end in `texts`.
    """
    last = len(places) - 1
    for v in range(first, len(spans)):
        at, key, quote = ends[count], _FIRST, spans[v, QUOTE]
        if count + 1 >= len(ends) or 2 * count >= last or at + spans[v, STOP] - spans[v, START] > len(texts):
            return v, count
        p = spans[v, START]
        while p < spans[v, STOP]:
            if data[p] == quote:
                p += 1  # a doubled quote means a single one
            texts[at] = data[p]
            key = (key ^ np.uint64(data[p])) * _PRIME
            at += 1
            p += 1
        signed = np.int64(key)
        place = np.int64(mix(signed)) & last
        while places[place] >= 0 and keys[places[place]] != signed:
            place = (place + 1) & last
        if places[place] < 0:
            places[place], keys[count] = count, signed
            count += 1
            ends[count] = at
    return len(spans), count


class Draw(NamedTuple):
    """The choice of pairs, and how to draw their negatives."""

    split_hash: np.uint64
    negative_hash: np.uint64
    held_out_below: int  # the held-out share of the pairs, times 2^63
    wanted: int  # ALL, KEPT or HELD_OUT
    num_items: int
    num_negatives: int


@kernel()
def chain(hash_: np.uint64, value: Word) -> np.uint64:
    """Return the hash of a value that follows the values hashed to `hash_`."""
    return mix(hash_ ^ (mix(value) + _GOLDEN))


@kernel()
def contains(items: Ids, first: int, stop: int, item: np.int64) -> bool:
    """Return True if `item` is in `items[first:stop]`; without a branch, for short lists."""
    is_positive = False
    for i in range(first, stop):
        is_positive |= items[i] == item
    return is_positive


@kernel()
def expand(users: Ids, items: Ids, ends: Ids, draw: Draw, samples: Ids) -> int:
    """Write each wanted pair and its negatives; return the number of samples.

    A negative is drawn uniformly from all items. If it is among the positives of its line, it is drawn again, up to 32
    times. It depends on the hash, the user and the item of its pair only, not on the position of the pair.

    Args:
        users: (L,).
        items: (P,), of all lines.
        ends: (L,) end of each line's items.
        samples: (P * (1 + M), 4) to fill: user, item, label, line (an index into `users`).
    """
    count, first = 0, 0
    for line in range(len(users)):
        for i in range(first, ends[line]):
            held_out = np.int64(chain(chain(draw.split_hash, users[line]), items[i]) >> _S1) < draw.held_out_below
            if draw.wanted == ALL or held_out == (draw.wanted == HELD_OUT):
                write_sample(samples, count, users[line], items[i], 1, line)
                state = chain(chain(draw.negative_hash, users[line]), items[i])
                for k in range(1, 1 + draw.num_negatives):
                    state, item = draw_negative(state, items, first, ends[line], draw.num_items)
                    write_sample(samples, count + k, users[line], item, 0, line)
                count += 1 + draw.num_negatives
        first = ends[line]
    return count


@kernel()
def draw_negative(state: np.uint64, items: Ids, first: int, stop: int, num_items: int) -> tuple[np.uint64, np.int64]:
    """Draw the next item that is not in `items[first:stop]`; return (new state, item)."""
    item = np.int64(0)
    for _ in range(_TRIES):
        state = mix(state + _GOLDEN)
        item = scale_to(state, num_items)
        if not contains(items, first, stop, item):
            break
    return state, item


@kernel()
def write_sample(samples: Ids, at: int, user: np.int64, item: np.int64, label: int, line: int) -> None:
    samples[at, 0], samples[at, 1], samples[at, 2], samples[at, 3] = user, item, label, line
