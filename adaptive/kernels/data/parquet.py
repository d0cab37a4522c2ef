"""Pages of Parquet files: their headers, and the two encodings in which nearly all values are stored.

The format is Parquet's (github.com/apache/parquet-format): headers are structs in Thrift's compact protocol; levels and
numbers of dictionary entries are runs, either of one value or of values packed bit by bit; texts stand behind their
lengths. Every kernel takes bytes of a stranger and looks at none outside of what it was given.

`words` (W,) uint64 are the bytes `data` (8 W,) themselves, with 16 bytes or more behind the last that counts.
"""

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels.data.text_fields import Bytes
from adaptive.kernels.jit import kernel

Ids = NDArray[np.int64]
Words = NDArray[np.uint64]

# One page: what its header says, and where in the chunk its body begins.
KIND, SIZE, STORED_SIZE, NUM_VALUES, ENCODING, LEVEL_ENCODING = range(6)
LEVEL_BYTES, REPEAT_BYTES, IS_COMPRESSED, START, PAGE_SIZE = range(6, 11)

DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_2 = range(4)
PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY = 0, 2, 3, 8

# Where a stream of runs stands: its next bit, how many values of the run are left, and which value is repeated (-1: the
# run's values are packed).
BIT, LEFT, VALUE, CURSOR_SIZE = range(4)

STACK_SIZE = 4  # structs within structs in a header, at most
_TRUE, _FALSE, _BYTE, _I16, _I64, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 4, 6, 7, 8, 12
_VALUES_FIELD, _DICTIONARY_FIELD, _VALUES_2_FIELD = 5, 7, 8
_MOST = 1 << 40  # groups of values without bits
_BIT = np.uint8(1)
_ONES = np.array([bin(byte).count("1") for byte in range(256)])
_ONE, _SIX, _63 = np.uint64(1), np.uint64(6), np.uint64(63)


@kernel()
def varint(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """An unsigned number of variable length, below 2^63 -> (number, position after it; -1: none is there)."""
    value, shift = 0, 0
    while at < stop and shift < 63:
        byte = int(data[at])
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
    return 0, -1


@kernel()
def page_header(data: Bytes, at: int, stop: int, stack: Ids, page: Ids) -> int:
    """Read the header at `at` into `page` (PAGE_SIZE,) -> position after it; -1: this is none.

    Args:
        stack: (STACK_SIZE,) scratch, the latest field of each struct that is open.
    """
    page[:] = 0
    page[KIND], page[IS_COMPRESSED] = -1, 1
    depth = 0
    stack[0] = 0
    while at < stop:
        byte = int(data[at])
        at += 1
        if byte == 0:
            depth -= 1
            if depth < 0:
                return at
            continue
        if byte >> 4:
            stack[depth] += byte >> 4
        else:
            field, at = varint(data, at, stop)
            if at < 0:
                return -1
            stack[depth] = (field >> 1) ^ -(field & 1)
        kind, value = byte & 15, 0
        if kind in (_TRUE, _FALSE):
            value = int(kind == _TRUE)
        elif kind == _BYTE:
            at += 1
        elif kind == _DOUBLE:
            at += 8
        elif _I16 <= kind <= _I64 or kind == _BINARY:
            value, at = varint(data, at, stop)
            if at < 0:
                return -1
            if kind == _BINARY:
                if value > stop - at:
                    return -1
                at += value
            else:
                value = (value >> 1) ^ -(value & 1)
        elif kind == _STRUCT:
            depth += 1
            if depth == STACK_SIZE:
                return -1
            stack[depth] = 0
            continue
        else:
            return -1
        entry = header_entry(depth, stack)
        if entry >= 0:
            page[entry] = value
    return -1


@kernel()
def header_entry(depth: int, stack: Ids) -> int:
    """Which entry of a page a field of its header is; -1: none."""
    if depth == 0:
        return KIND + stack[0] - 1 if 1 <= stack[0] <= 3 else -1
    if depth > 1:
        return -1
    parent, field = stack[0], stack[1]
    if parent in (_VALUES_FIELD, _DICTIONARY_FIELD):
        is_entry = 1 <= field <= (3 if parent == _VALUES_FIELD else 2)
        return NUM_VALUES + field - 1 if is_entry else -1
    if parent != _VALUES_2_FIELD:
        return -1
    if field == 1:
        return NUM_VALUES
    if field == 4:
        return ENCODING
    return LEVEL_BYTES + field - 5 if 5 <= field <= 7 else -1


@kernel()
def find_pages(data: Bytes, stop: int, stack: Ids, pages: Ids) -> int:
    """Read the headers of all pages of a chunk, its first `stop` bytes -> their number; -1: it is damaged;
    `len(pages) + 1`: there are more than `pages` (any, PAGE_SIZE) has room for."""
    at, count = 0, 0
    while at < stop:
        if count == len(pages):
            return count + 1
        page = pages[count]
        at = page_header(data, at, stop, stack, page)
        if at < 0 or page[STORED_SIZE] < 0 or page[STORED_SIZE] > stop - at:
            return -1
        page[START] = at
        at += page[STORED_SIZE]
        count += 1
    return count


@kernel(noalias=True)
def unpack(data: Bytes, words: Words, stop: int, width: int, limit: int, cursor: Ids, out: NDArray[np.int32]) -> bool:
    """The next values (n,) of a stream of runs -> whether they are there and all below `limit`.

    Args:
        stop: the stream ends before this byte, and 16 more may be read.
        width: bits of a value, 32 at most.
        cursor: (CURSOR_SIZE,), moves along.
    """
    done, count, mask, bits = 0, len(out), (_ONE << np.uint64(width)) - _ONE, np.uint64(width)
    highest = np.uint64(0)
    while done < count:
        if cursor[LEFT] == 0 and not next_run(data, stop, width, cursor):
            return False
        size, repeated = min(count - done, cursor[LEFT]), cursor[VALUE]
        if repeated >= 0:
            highest = max(highest, np.uint64(repeated))
            out[done : done + size] = repeated
        else:
            bit = np.uint64(cursor[BIT])
            for i in range(size):
                word, shift = bit >> _SIX, bit & _63
                value = (words[word] >> shift | words[word + _ONE] << _ONE << (_63 - shift)) & mask
                out[done + i] = value
                highest = max(highest, value)
                bit += bits
        done += size
        advance(cursor, size, width)
    return count == 0 or bool(highest < np.uint64(limit))


@kernel(noalias=True)
def unpack_flags(data: Bytes, stop: int, cursor: Ids, out: NDArray[np.bool_]) -> int:
    """As `unpack` of a stream of values of one bit -> how many are 1; -1: it ends too early, or has other values."""
    done, count, ones = 0, len(out), 0
    while done < count:
        if cursor[LEFT] == 0 and not next_run(data, stop, 1, cursor):
            return -1
        size, repeated = min(count - done, cursor[LEFT]), cursor[VALUE]
        if repeated > 1:
            return -1
        if repeated >= 0:
            out[done : done + size] = repeated == 1
            ones += size * repeated
        else:
            first, i = cursor[BIT], 0
            while i < size and (first + i) & 7:
                out[done + i] = (data[(first + i) >> 3] >> np.uint8((first + i) & 7)) & _BIT
                ones += out[done + i]
                i += 1
            while i + 8 <= size:
                byte = data[(first + i) >> 3]
                for k in range(8):
                    out[done + i + k] = (byte >> np.uint8(k)) & _BIT
                ones += _ONES[byte]
                i += 8
            while i < size:
                out[done + i] = (data[(first + i) >> 3] >> np.uint8((first + i) & 7)) & _BIT
                ones += out[done + i]
                i += 1
        done += size
        advance(cursor, size, 1)
    return ones


@kernel()
def advance(cursor: Ids, size: int, width: int) -> None:
    """Pass over values of the run, which ends at a whole byte."""
    if cursor[VALUE] < 0:
        cursor[BIT] += size * width
    cursor[LEFT] -= size
    if cursor[LEFT] == 0:
        cursor[BIT] = (cursor[BIT] + 7) // 8 * 8


@kernel()
def next_run(data: Bytes, stop: int, width: int, cursor: Ids) -> bool:
    """Read the start of the next run -> whether there is one."""
    header, at = varint(data, cursor[BIT] >> 3, stop)
    if at < 0 or header < 2:
        return False
    if header & 1:
        # the last group of a page may be cut off behind its last value
        groups, room = header >> 1, (stop - at) * 8
        if width == 0:
            cursor[LEFT] = min(groups, _MOST) * 8
        else:
            cursor[LEFT] = groups * 8 if groups <= room // (8 * width) else room // width
        cursor[VALUE] = -1
    else:
        size = (width + 7) // 8
        if size > stop - at:
            return False
        value = 0
        for i in range(size):
            value |= int(data[at + i]) << (8 * i)
        at += size
        cursor[LEFT], cursor[VALUE] = header >> 1, value
    cursor[BIT] = at * 8
    return bool(cursor[LEFT] > 0)


@kernel()
def find_texts(data: Bytes, first: int, stop: int, starts: Ids, stops: Ids) -> int:
    """Texts behind their lengths (four bytes, lowest first): text i is `data[starts[i] : stops[i]]` -> their number.

    Reads up to `stop`, or until `starts` (any,) is full; -1 if one does not end there.
    """
    at, count = first, 0
    while at < stop and count < len(starts):
        if stop - at < 4:
            return -1
        size = 0
        for i in range(4):
            size |= int(data[at + i]) << (8 * i)
        at += 4
        if size > stop - at:
            return -1
        starts[count] = at
        at += size
        stops[count] = at
        count += 1
    return count


@kernel(noalias=True)
def spread_keys(
    known: Ids, codes: NDArray[np.int32], present: NDArray[np.bool_], keys: Ids, there: NDArray[np.bool_]
) -> None:
    """The keys (R,) of rows, and which of them have one.

    Args:
        codes: (values + 1,) numbers of entries of `known`, of the rows that have a value; behind them a zero.
        present: (R,), or empty: all have one.
    """
    if len(present) == 0:
        for row in range(len(keys)):
            keys[row] = known[codes[row]]
            there[row] = True
        return
    at = 0
    for row in range(len(keys)):
        key = known[codes[at]]  # looked up in any case: a branch would be guessed wrong
        keys[row] = key if present[row] else 0
        there[row] = present[row]
        at += present[row]


@kernel(noalias=True)
def spread_dense(
    known: NDArray[np.float32], codes: NDArray[np.int32], present: NDArray[np.bool_], out: NDArray[np.float32]
) -> None:
    """As `spread_keys`: dense inputs (R,), NaN where nothing is there."""
    if len(present) == 0:
        for row in range(len(out)):
            out[row] = known[codes[row]]
        return
    at = 0
    for row in range(len(out)):
        value = known[codes[at]]
        out[row] = value if present[row] else np.float32(np.nan)
        at += present[row]
