"""The tokenizer of all text formats: bytes of whole lines to columns, in one pass.

Letters: R rows a block has room for, D dense inputs, C single-valued categories, K multi-valued ones (bags).

A field parser (`text_fields.py`) returns where it stopped. One comparison with the separator that must follow finds
every fault. Only a faulty line is read a second time, by `classify`, to find out what is wrong with it.
Quoted fields may hold separators and doubled quotes but no line feeds, so that a lost quote costs one line only.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive.data.kernels.text_fields import (
    CR,
    LF,
    Bytes,
    ends_line,
    hash_text,
    is_utf8,
    parse_decimal,
    parse_hex,
    parse_integer,
    parse_iso_time,
    parse_key,
)
from adaptive.kernels.jit import kernel

# Kinds of columns.
SKIP, DENSE_INTEGER, DENSE_FLOAT, KEY_HEX, KEY_INTEGER, KEY_TEXT, KEY_BAG = range(7)
LABEL_BINARY, LABEL_THRESHOLD, LABEL_SET, TIME_NUMBER, TIME_ISO = range(7, 12)

# The entries of a row of `Layout.plan`: the kind of the column, its output column (bags are numbered in file order),
# the kind of a bag's values and the separator between them (-1: none), 1 if a line without a value is bad, and the
# cause to report for an unreadable field.
KIND, SLOT, ITEM, INNER, REQUIRED, CAUSE, PLAN_SIZE = range(7)

# What is wrong with a line, in the order of the checks; OK must be 0.
CAUSES = (
    "",
    "empty",
    "overlong",
    "nul",
    "utf8",
    "quote",
    "columns",
    "label",
    "number",
    "hex",
    "time",
    "missing",
    "float",
)
OK, EMPTY, OVERLONG, NUL, UTF8, QUOTE, COLUMNS, LABEL, NUMBER, HEX, TIME, MISSING, FLOAT = range(len(CAUSES))
_BAGS_FULL = -1

# Why `tokenize` returned.
INPUT_USED, ROWS_FULL, FAULTS_FULL, BAGS_FULL = range(4)

# The entries of its cursor, and of a fault.
POSITION, ROW, LINE, NUM_FAULTS, CURSOR_SIZE = range(5)
FAULT_LINE, FAULT_CAUSE, FAULT_COLUMN, FAULT_START, FAULT_STOP, FAULT_SIZE = range(6)

_ZERO, _ONE = 48, 49
_FLOAT32_MAX = float(np.finfo(np.float32).max)


class Layout(NamedTuple):
    """The layout of a line; see `adaptive.data.rows.row_source`."""

    plan: NDArray[np.int64]  # (columns, PLAN_SIZE)
    positives: NDArray[np.int64]  # keys of the texts that make a label 1
    nulls: NDArray[np.int64]  # keys of texts that mean a missing value, in addition to the empty text
    separator: int
    quote: int  # -1: none
    num_bags: int
    max_line_bytes: int
    threshold: float  # a label is 1 from here on
    time_from: float  # rows with a time outside [time_from, time_to) are skipped
    time_to: float


class Columns(NamedTuple):
    """The arrays to which rows are written."""

    labels: NDArray[np.float32]  # (R,)
    dense: NDArray[np.float32]  # (R, D), NaN = missing
    keys: NDArray[np.int64]  # (C, R)
    present: NDArray[np.bool_]  # (C, R)
    bag_keys: NDArray[np.int64]  # (any,)
    bag_ends: NDArray[np.int64]  # (R * K + 1,), row by row; the first is 0
    times: NDArray[np.float64]  # (R,) seconds, or the number in the file
    lines: NDArray[np.int64]  # (R,)


@kernel()
def is_among(key: int, keys: NDArray[np.int64]) -> bool:
    for other in keys:  # noqa: SIM110 - numba compiles no generator
        if other == key:
            return True
    return False


@kernel()
def find_null_end(data: Bytes, first: int, layout: Layout, inner: int, closing: int) -> int:
    """Return the end of a field, or of a bag's value, that means missing; else -1."""
    key, stop, _ = hash_text(data, first, layout.separator, inner, closing)
    return stop if is_among(key, layout.nulls) else -1


@kernel()
def parse_null_field(
    data: Bytes, first: int, layout: Layout, columns: Columns, row: int, column: int, closing: int
) -> int:
    """Write a field that is not a number as missing, if its text means missing.

    Returns:
        The position of the separator after the field, or -1 if the field is bad.
    """
    kind, slot = layout.plan[column, KIND], layout.plan[column, SLOT]
    if kind not in (KEY_HEX, KEY_INTEGER, DENSE_INTEGER, DENSE_FLOAT):
        return -1
    stop = find_null_end(data, first, layout, -1, closing)
    if stop < 0:
        return -1
    if closing >= 0:
        if data[stop] != closing:
            return -1
        stop += 1
    if not (data[stop] == layout.separator if column < len(layout.plan) - 1 else ends_line(data, stop)):
        return -1
    if kind in (DENSE_INTEGER, DENSE_FLOAT):
        columns.dense[row, slot] = np.nan
    else:
        columns.present[slot, row] = False
    return stop


@kernel()
def parse_label(data: Bytes, first: int, layout: Layout, kind: int, closing: int) -> tuple[float, int, int]:
    """Return (label, or NaN if there is none, stop, all bytes or-ed)."""
    if kind == LABEL_SET:
        key, stop, seen = hash_text(data, first, layout.separator, -1, closing)
        value = 0.0
        for positive in layout.positives:
            if positive == key:
                value = 1.0
        return np.nan if stop == first or is_among(key, layout.nulls) else value, stop, seen
    value, stop = parse_decimal(data, first)
    if stop == first:
        return np.nan, stop, 0
    if kind == LABEL_THRESHOLD:
        return 1.0 if value >= layout.threshold else 0.0, stop, 0
    return value if value == 0.0 or value == 1.0 else np.nan, stop, 0


@kernel()
def parse_bag(
    data: Bytes, first: int, layout: Layout, column: int, closing: int, bag_keys: NDArray[np.int64], end: int
) -> tuple[int, int, int]:
    """Write a bag from `bag_keys[end]` on; return (stop, new end or -1 if full, bytes or-ed)."""
    kind, inner = layout.plan[column, ITEM], layout.plan[column, INNER]
    p, seen = first, 0
    while True:
        if kind == KEY_INTEGER:
            key, stop = parse_key(data, p)
        elif kind == KEY_HEX:
            key, stop = parse_hex(data, p)
        else:
            key, stop, bits = hash_text(data, p, layout.separator, inner, closing)
            seen |= bits
            if is_among(key, layout.nulls):
                p = stop
        if kind != KEY_TEXT and data[stop] not in (inner, layout.separator, LF, closing):
            null = find_null_end(data, p, layout, inner, closing)
            if null >= 0:
                p = stop = null
        if stop > p:
            if end == len(bag_keys):
                return stop, -1, seen
            bag_keys[end] = key
            end += 1
        if data[stop] != inner:
            return stop, end, seen
        p = stop + 1


@kernel()
def parse_rare_field(
    data: Bytes, first: int, layout: Layout, columns: Columns, row: int, column: int
) -> tuple[int, bool, int]:
    """Parse a bag, time or label; return (stop or -1 if bags are full, is good, bytes or-ed)."""
    kind, slot = layout.plan[column, KIND], layout.plan[column, SLOT]
    closing = layout.quote if first > 0 and data[first - 1] == layout.quote else -1
    if kind == KEY_BAG:
        at = row * layout.num_bags + slot
        stop, end, seen = parse_bag(data, first, layout, column, closing, columns.bag_keys, columns.bag_ends[at])
        columns.bag_ends[at + 1] = end
        return stop if end >= 0 else -1, True, seen
    if kind in (TIME_NUMBER, TIME_ISO):
        time, stop = parse_decimal(data, first) if kind == TIME_NUMBER else parse_iso_time(data, first)
        columns.times[row] = time
        return stop, stop > first and np.isfinite(time), 0
    value, stop, seen = parse_label(data, first, layout, kind, closing)
    columns.labels[row] = value
    return stop, not np.isnan(value), seen


@kernel()
def parse_lines(data: Bytes, end: int, layout: Layout, columns: Columns, cursor: NDArray[np.int64]) -> tuple[int, int]:
    """Read rows until input or rows are used up (both OK) or a line is bad.

    Returns (fault, its column). Loops over lines and over fields are in one function, with the most common kinds
    inline: calls that pass on arrays would cost more than the fields themselves.
    """
    plan, separator, quote, last = layout.plan, layout.separator, layout.quote, len(layout.plan) - 1
    keys, present, dense, lines = columns.keys, columns.present, columns.dense, columns.lines
    nulls = layout.nulls
    row, line, start = cursor[ROW], cursor[LINE], cursor[POSITION]
    while start < end and row < len(lines):
        p, seen = start, 0
        for column in range(last + 1):
            kind, slot, good, closing, null = plan[column, KIND], plan[column, SLOT], True, -1, False
            if data[p] == quote:
                closing = quote
                p += 1
            opened = closing
            if kind in (KEY_HEX, KEY_INTEGER):
                keys[slot, row], stop = parse_hex(data, p) if kind == KEY_HEX else parse_key(data, p)
                present[slot, row] = stop > p
            elif kind == DENSE_INTEGER:
                value, stop = parse_integer(data, p)
                dense[row, slot] = value if stop > p else np.nan
            elif kind in (KEY_TEXT, SKIP):
                key, stop, bits = hash_text(data, p, separator, -1, closing)
                seen |= bits
                if kind == KEY_TEXT:
                    keys[slot, row] = key
                    null = is_among(key, nulls)
                    present[slot, row] = stop > p and not null
            elif kind == DENSE_FLOAT:
                number, stop = parse_decimal(data, p)
                good = abs(number) <= _FLOAT32_MAX
                dense[row, slot] = number if stop > p else np.nan
            elif kind == LABEL_BINARY and (data[p] == _ZERO or data[p] == _ONE) and data[p + 1] == separator:
                columns.labels[row] = data[p] - _ZERO
                stop = p + 1
            else:
                stop, good, bits = parse_rare_field(data, p, layout, columns, row, column)
                seen |= bits
            if stop < 0:
                return _BAGS_FULL, column
            missing = stop == p or null
            if closing >= 0 and data[stop] == closing:
                stop += 1
                closing = -1
            ended = data[stop] == separator if column < last else ends_line(data, stop)
            if closing >= 0 or not ended or not good:
                stop = parse_null_field(data, p, layout, columns, row, column, opened)
                if stop < 0:
                    return plan[column, CAUSE], column
                missing = True
            if missing and plan[column, REQUIRED]:
                return MISSING, column
            p = stop + 1
        after = p + 1 if data[p - 1] == CR else p
        if after - start - 1 > layout.max_line_bytes or (seen >= 128 and not is_utf8(data, start, p)):
            return OVERLONG, last  # or UTF8: `classify` decides
        if layout.time_from <= columns.times[row] < layout.time_to:
            lines[row] = line
            row += 1
        start, line = after, line + 1
        cursor[POSITION], cursor[ROW], cursor[LINE] = start, row, line
    return OK, last


@kernel()
def tokenize(
    data: Bytes, end: int, layout: Layout, columns: Columns, faults: NDArray[np.int64], cursor: NDArray[np.int64]
) -> int:
    """Read lines of `data`, up to a line feed at `end`, into rows from `cursor[ROW]` on.

    Reading begins at `cursor[POSITION]`. Advances the cursor, including its LINE (the next one to read). NUM_FAULTS
    counts the faults written to `faults`, (any, FAULT_SIZE). Returns why it stopped: INPUT_USED, ROWS_FULL,
    FAULTS_FULL, or BAGS_FULL (`bag_keys` has no room for the next row).
    """
    while True:
        fault, column = parse_lines(data, end, layout, columns, cursor)
        if fault == _BAGS_FULL:
            return BAGS_FULL
        if fault == OK:
            return INPUT_USED if cursor[POSITION] >= end else ROWS_FULL
        if cursor[NUM_FAULTS] == len(faults):
            return FAULTS_FULL
        cause, after = classify(data, cursor[POSITION], layout, fault)
        faults[cursor[NUM_FAULTS], FAULT_LINE] = cursor[LINE]
        faults[cursor[NUM_FAULTS], FAULT_CAUSE] = cause
        faults[cursor[NUM_FAULTS], FAULT_COLUMN] = column if cause >= LABEL else -1
        faults[cursor[NUM_FAULTS], FAULT_START] = cursor[POSITION]
        faults[cursor[NUM_FAULTS], FAULT_STOP] = after
        cursor[NUM_FAULTS] += 1
        cursor[LINE] += 1
        cursor[POSITION] = after


@kernel()
def classify(data: Bytes, start: int, layout: Layout, fault: int) -> tuple[int, int]:
    """Return (cause, position after the line) of a bad line with this first `fault`."""
    end, has_nul = start, False
    while data[end] != LF:
        has_nul = has_nul or data[end] == 0
        end += 1
    cause = fault
    if ends_line(data, start):
        cause = EMPTY
    elif end - start > layout.max_line_bytes:
        cause = OVERLONG
    elif has_nul:
        cause = NUL
    elif not is_utf8(data, start, end):
        cause = UTF8
    else:
        num_columns = count_columns(data, start, layout)
        if num_columns != len(layout.plan):
            cause = COLUMNS if num_columns > 0 else QUOTE
    return cause, end + 1


@kernel()
def count_columns(data: Bytes, start: int, layout: Layout) -> int:
    """Return the number of fields of a line, or 0 if a quote is not closed or text follows it.

    A last column that is a bag with the file's separator takes the rest of the line.
    """
    p, count, last = start, 0, len(layout.plan) - 1
    while True:
        count += 1
        if data[p] == layout.quote:
            _, p, _ = hash_text(data, p + 1, layout.separator, -1, layout.quote)
            if data[p] != layout.quote or not (data[p + 1] == layout.separator or ends_line(data, p + 1)):
                return 0
            p += 1
        else:
            while data[p] != LF and data[p] != layout.separator:
                p += 1
        if data[p] != layout.separator or (count == last + 1 and layout.plan[last, INNER] == layout.separator):
            return count
        p += 1
