"""Convert Arrow buffers to the columns of the text reader: the same values and faults.

Letters: V values, R rows, K bag columns. The state of a value is OK, MISSING_VALUE, or the number of its fault in
`text.CAUSES`.
"""

import numpy as np
from numpy.typing import NDArray

from adaptive.data.kernels.text import (
    DENSE_INTEGER,
    HEX,
    KEY_HEX,
    KEY_INTEGER,
    KEY_TEXT,
    NUL,
    NUMBER,
    OK,
    OVERLONG,
    TIME,
    TIME_ISO,
    UTF8,
    is_among,
)
from adaptive.data.kernels.text_fields import (
    LF,
    Bytes,
    is_utf8,
    parse_decimal,
    parse_hex,
    parse_integer,
    parse_iso_time,
    parse_key,
)
from adaptive.kernels.jit import kernel

MISSING_VALUE = -1

Ids = NDArray[np.int64]
States = NDArray[np.int8]

_START, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_MINUS, _ZERO = np.uint64(45), np.uint64(48)


@kernel()
def parse_texts(
    data: Bytes,
    starts: Ids,
    stops: Ids,
    kind: int,
    longest: int,
    nulls: Ids,
    scratch: Bytes,
    keys: Ids,
    numbers: NDArray[np.float64],
    out: States,
) -> None:
    """Parse V texts as `kind` (see `data.kernels.text`) into `keys` or `numbers`.

    Numbers are parsed in a copy that ends with a line feed, since the parsers of `text_fields` rely on one.

    Args:
        starts, stops: (V,) text v is `data[starts[v] : stops[v]]`; an empty text is missing.
        longest: bytes; longer texts are OVERLONG.
        nulls: keys of texts that mean missing, in addition to the empty text.
        scratch: buffer for that copy, longer than any number.
        out: (V,) states, written.
    """
    for v in range(len(out)):
        start, stop = starts[v], stops[v]
        size = stop - start
        keys[v], numbers[v] = 0, 0.0
        if size == 0:
            out[v] = MISSING_VALUE
        elif size > longest:
            out[v] = OVERLONG
        elif kind == KEY_TEXT:
            keys[v], out[v] = text_key(data, start, stop)
            if is_among(keys[v], nulls):
                out[v] = MISSING_VALUE
        elif size >= len(scratch):
            out[v] = HEX if kind == KEY_HEX else NUMBER
        else:
            for i in range(size):
                scratch[i] = data[start + i]
            scratch[size] = LF
            if kind == KEY_HEX:
                keys[v], end = parse_hex(scratch, 0)
                out[v] = OK if end == size else HEX
            elif kind == KEY_INTEGER:
                keys[v], end = parse_key(scratch, 0)
                out[v] = OK if end == size else NUMBER
            elif kind == DENSE_INTEGER:
                keys[v], end = parse_integer(scratch, 0)
                numbers[v] = keys[v]
                out[v] = OK if end == size else NUMBER
            elif kind == TIME_ISO:
                numbers[v], end = parse_iso_time(scratch, 0)
                out[v] = OK if end == size else TIME
            else:
                numbers[v], end = parse_decimal(scratch, 0)
                out[v] = OK if end == size else NUMBER
            if out[v] != OK and is_among(text_key(data, start, stop)[0], nulls):
                keys[v], numbers[v], out[v] = 0, 0.0, MISSING_VALUE


@kernel()
def text_key(data: Bytes, start: int, stop: int) -> tuple[int, int]:
    """Return (key, state) of a text; the key is the tokenizer's (FNV-1a)."""
    key, seen = _START, 0
    for p in range(start, stop):
        byte = int(data[p])
        if byte == 0:
            return 0, NUL
        key = (key ^ np.uint64(byte)) * _PRIME
        seen |= byte
    if seen >= 128 and not is_utf8(data, start, stop):
        return 0, UTF8
    return int(np.int64(key)), OK


@kernel()
def digit_keys(values: Ids | NDArray[np.uint64], keys: Ids) -> None:
    """Write the keys of decimal digits: those that the same numbers have in a text file.

    Args:
        values: (V,) int64 or uint64.
    """
    for v in range(len(values)):
        key, rest = _START, np.uint64(values[v])
        if values[v] < 0:
            key = (key ^ _MINUS) * _PRIME
            rest = np.uint64(0) - rest
        power = np.uint64(1)
        while rest // power >= np.uint64(10):
            power *= np.uint64(10)
        while power > np.uint64(0):
            digit = (rest // power) % np.uint64(10)
            key = (key ^ (digit + _ZERO)) * _PRIME
            power //= np.uint64(10)
        keys[v] = np.int64(key)


@kernel()
def fill_bags(rows: Ids, ends: Ids, keys: Ids, states: States, first: int, bag_keys: Ids, bag_ends: Ids) -> None:
    """Write the bags of some rows, row by row and column by column, to a block.

    Rows are written from row `first` of the block on.

    Args:
        rows: numbers of the rows to write.
        ends: (K, R + 1) start and end of each column's bags in `keys`, which holds all columns one after another.
        states: of `keys`; missing values are dropped.
        bag_keys: output, long enough for all values.
    """
    num_bags = len(ends)
    at = bag_ends[first * num_bags]
    for i in range(len(rows)):
        for k in range(num_bags):
            for v in range(ends[k, rows[i]], ends[k, rows[i] + 1]):
                if states[v] == OK:
                    bag_keys[at] = keys[v]
                    at += 1
            bag_ends[(first + i) * num_bags + k + 1] = at
