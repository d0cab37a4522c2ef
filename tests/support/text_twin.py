"""The slow, obvious twin of the text reader: the same rows, bad lines and causes, one Python line at a time; and what
the reader itself makes of a file, in the same shape."""

import math
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import pytest

from adaptive.data.data_options import DataOptions
from adaptive.data.kernels import text as kernels
from adaptive.data.rows.data_files import find_files
from adaptive.data.rows.rejects import RejectLog
from adaptive.data.rows.row_source import Block, Column, RowFormat
from adaptive.data.text.text_reader import TextSource

FLOAT32_MAX = float(np.finfo(np.float32).max)


class RejectedError(Exception):
    """A line that is rejected, with its cause."""


@dataclass
class Row:
    """One good line, values by column name; missing ones are None, labels and times under their names."""

    line: int
    values: dict[str, object] = field(default_factory=dict)


def read(data: bytes, form: RowFormat, time_from=-math.inf, time_to=math.inf):
    """-> (rows, [(line, cause)], rows with another time)."""
    rows, rejects, outside = [], [], 0
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if number == 1 and form.header:
            continue
        try:
            row = Row(number, parse(line, form))
        except RejectedError as rejected:
            rejects.append((number, str(rejected)))
            continue
        times = [row.values[c.name] for c in form.columns if c.kind in (kernels.TIME_NUMBER, kernels.TIME_ISO)]
        if times and not time_from <= times[0] < time_to:
            outside += 1
        else:
            rows.append(row)
    return rows, rejects, outside


def parse(line: bytes, form: RowFormat) -> dict[str, object]:
    body = line.removesuffix(b"\r")
    if not body:
        raise RejectedError("empty")
    if len(line) > form.max_line_bytes:
        raise RejectedError("overlong")
    if b"\0" in line:
        raise RejectedError("nul")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise RejectedError("utf8") from None
    fields = split(text, form)
    if len(fields) != len(form.columns):
        raise RejectedError("columns")
    return {column.name: value(text, column, form) for text, column in zip(fields, form.columns, strict=True)}


def split(text: str, form: RowFormat) -> list[str]:
    fields, rest = [], text
    while True:
        last = form.columns[-1]
        if len(fields) == len(form.columns) - 1 and last.inner == form.separator:
            return [*fields, rest]
        if form.quote and rest.startswith(form.quote):
            content, rest = unquote(rest[1:], form)
            fields.append(content)
            if not rest:
                return fields
            rest = rest[1:]
            continue
        content, found, rest = rest.partition(form.separator)
        fields.append(content)
        if not found:
            return fields


def unquote(rest: str, form: RowFormat) -> tuple[str, str]:
    content = ""
    while rest:
        if rest.startswith(form.quote * 2):
            content, rest = content + form.quote, rest[2:]
        elif rest.startswith(form.quote):
            rest = rest[1:]
            if rest and not rest.startswith(form.separator):
                raise RejectedError("quote")
            return content, rest
        else:
            content, rest = content + rest[0], rest[1:]
    raise RejectedError("quote")


def value(text: str, column: Column, form: RowFormat) -> object:
    if column.kind == kernels.SKIP:
        return None
    if column.kind == kernels.KEY_BAG:
        return [key(one, column.item) for one in text.split(column.inner) if one and one not in form.nulls]
    if column.kind in (kernels.LABEL_BINARY, kernels.LABEL_THRESHOLD, kernels.LABEL_SET):
        return label(text, column, form)
    if column.kind in (kernels.TIME_NUMBER, kernels.TIME_ISO):
        return time(text, column)
    if not text or text in form.nulls:
        if column.required:
            raise RejectedError("missing")
        return None
    if column.kind == kernels.DENSE_FLOAT:
        number = decimal(text)
        if number is None or abs(number) > FLOAT32_MAX:
            raise RejectedError("number")
        return number
    if column.kind == kernels.DENSE_INTEGER:
        if not re.fullmatch("-?[0-9]{1,19}", text) or abs(int(text)) >= 2**63:
            raise RejectedError("number")
        return int(text)
    return key(text, column.kind)


def key(text: str, kind: int) -> int:
    if kind == kernels.KEY_HEX:
        if not re.fullmatch("[0-9a-fA-F]{1,16}", text):
            raise RejectedError("hex")
        return signed(int(text, 16))
    if kind == kernels.KEY_INTEGER:
        if not re.fullmatch("-?[0-9]{1,20}", text) or not -(2**63) <= int(text) < 2**64:
            raise RejectedError("number")
        return signed(int(text))
    hash_ = 0xCBF29CE484222325
    for byte in text.encode():
        hash_ = (hash_ ^ byte) * 0x100000001B3 % 2**64
    return signed(hash_)


def signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


def decimal(text: str) -> float | None:
    if not re.fullmatch(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        return None
    return float(text)


def label(text: str, column: Column, form: RowFormat) -> float:
    if column.kind == kernels.LABEL_SET:
        if not text or text in form.nulls:
            raise RejectedError("label")
        return float(text in form.positives)
    number = decimal(text)
    if number is None or (column.kind == kernels.LABEL_BINARY and number not in (0.0, 1.0)):
        raise RejectedError("label")
    return number if column.kind == kernels.LABEL_BINARY else float(number >= form.threshold)


def time(text: str, column: Column) -> float:
    if column.kind == kernels.TIME_NUMBER:
        number = decimal(text)
        if number is None or not math.isfinite(number):
            raise RejectedError("time")
        return number
    zone = r"( ?Z| ?UTC| ?[+-][0-9]{2}(:?[0-5][0-9])?)?"
    shape = rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}([ T][0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}}(\.[0-9]+)?)?{zone})?"
    try:
        if not re.fullmatch(shape, text) or text < "1970":
            raise RejectedError("time")
        fraction = (re.findall(r"\.[0-9]+", text) or [""])[0]  # of any length: datetime takes six digits
        moment = datetime.fromisoformat(re.sub(" ?(UTC|Z)$| (?=[+-])", "", text.replace(fraction, "")))
    except ValueError:
        raise RejectedError("time") from None
    whole = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return whole + float(f"0{fraction}" if fraction else 0)


# --- the reader, and what it is compared with ---


def allow(share=1e-4):
    """Options that allow this share of bad lines."""
    return DataOptions(max_bad_fraction=share)


ALL_BAD = allow(1.0)

PLAIN = RowFormat(  # Criteo's kinds
    (Column("label", kernels.LABEL_BINARY), Column("count", kernels.DENSE_INTEGER), Column("ad", kernels.KEY_HEX)),
    separator="\t",
    max_line_bytes=40,
)


def read_all(path, form, *, chunk_bytes=1 << 16, rows=7, window=(-math.inf, math.inf), log=None):
    """-> (rows, [(line, cause)]) of the reader, for a file."""
    files = find_files(str(path))
    log = log or RejectLog((str(path),), ALL_BAD, None, header_lines=int(form.header))
    caught = []
    count = log.count
    log.count = lambda file, last, bad: (caught.extend((b.line, b.cause) for b in bad), count(file, last, bad))
    block, actual = Block.empty(form, rows), []
    with TextSource(files, files, (form,), log, chunk_bytes).reader([0], window=window) as reader:
        while reader.read(block):
            actual += [row_of(block, form, row) for row in range(block.num_rows)]
            block = block.renewed()
    return actual, caught


def row_of(block, form, row):
    values, columns = {}, block.columns
    num_bags = form.count("bags")
    for column in form.columns:
        slot = form.slot(column.name)
        if column.kind == kernels.SKIP:
            values[column.name] = None
        elif column.kind == kernels.KEY_BAG:
            first, stop = columns.bag_ends[row * num_bags + slot : row * num_bags + slot + 2]
            values[column.name] = columns.bag_keys[first:stop].tolist()
        elif column.kind in (kernels.DENSE_FLOAT, kernels.DENSE_INTEGER):
            number = columns.dense[row, slot]
            values[column.name] = None if np.isnan(number) else float(number)
        elif column.kind in (kernels.KEY_HEX, kernels.KEY_INTEGER, kernels.KEY_TEXT):
            values[column.name] = int(columns.keys[slot, row]) if columns.present[slot, row] else None
        elif column.kind in (kernels.TIME_ISO, kernels.TIME_NUMBER):
            values[column.name] = float(columns.times[row])
        else:
            values[column.name] = float(columns.labels[row])
    return Row(int(columns.lines[row]), values)


def assert_same(actual, expected):
    assert [row.line for row in actual] == [row.line for row in expected]
    for one, other in zip(actual, expected, strict=True):
        for name, value in other.values.items():
            if isinstance(value, float):
                assert one.values[name] == pytest.approx(value, rel=1e-6, abs=1e-44), (one.line, name)
            else:
                assert one.values[name] == (float(np.float32(value)) if name == "count" and value else value)
