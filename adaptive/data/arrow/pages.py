"""Columns of a Parquet file decoded here, from pages to numbers of dictionary entries, without Arrow arrays between.

For columns of single integers, floats and texts in the encodings that writers use by default (`Chunk.of`); all others
are read by pyarrow. What a page says of itself is checked before it is believed: SECURITY.md.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.data.arrow import types
from adaptive.data.arrow.damage import DamagedError, damage_told
from adaptive.data.arrow.values import ValueReader, Values
from adaptive.kernels.data import parquet as kernels

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]
Codes = NDArray[np.int32]

_PAD = 16  # bytes behind what counts, for kernels that read words
_NUMBERS: dict[str, np.dtype[Any]] = {
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FLOAT": np.dtype("<f4"),
    "DOUBLE": np.dtype("<f8"),
}
_CODED = (kernels.PLAIN_DICTIONARY, kernels.RLE_DICTIONARY)
_DATA = (kernels.DATA_PAGE, kernels.DATA_PAGE_2)
_SNAPPY_RATIO = 64  # a copy of 64 bytes takes at least two
_ALL: Flags = np.empty(0, np.bool_)


class Bytes:
    """Some bytes with room behind them: `data` (uint8) and the same as `words` (uint64); `size` of them count."""

    def __init__(self, size: int) -> None:
        self.words = np.zeros((size + _PAD + 7) // 8, np.uint64)
        self.data, self.size = self.words.view(np.uint8), size


class Stored:
    """Values as they are stored, those of a dictionary or of a page: numbers of a type, or texts."""

    def __init__(self, chunk: "Chunk", body: Bytes, first: int, count: int | None) -> None:
        """`count` values of a dictionary; None: all up to the end of a page."""
        self._numbers: Any = None
        if chunk.number is not None:
            size = (body.size - first) // chunk.number.itemsize
            if count is not None and count > size:
                raise DamagedError("its dictionary is cut off")
            self.count = size if count is None else count
            found = np.require(np.frombuffer(body.data, chunk.number, self.count, first), requirements="A")
            self._numbers = _as_type(found, chunk.kind)
            return
        most = (body.size - first) // 4 if count is None else min(count, (body.size - first) // 4)
        starts, stops = np.empty(most, np.int64), np.empty(most, np.int64)
        self.count = kernels.find_texts(body.data, first, body.size, starts, stops)
        if self.count < 0 or (count is not None and self.count < count):
            raise DamagedError("a text does not end")
        self._texts = body.data, starts[: self.count], stops[: self.count]

    def read(self, reader: ValueReader) -> Values:
        return reader.texts(*self._texts) if self._numbers is None else reader.read(self._numbers)


@dataclass(frozen=True)
class Part:
    """R rows that follow each other in a page.

    Args:
        codes: (values + 1,) which entries of `stored` the values are; behind them a zero.
        present: (R,) which rows have a value, or empty: all.
    """

    count: int
    stored: Stored
    codes: Codes
    present: Flags

    def values(self, known: Values) -> Values:
        """One value for each row, of those that are stored."""
        at = self.codes[:-1] if not len(self.present) else np.full(self.count, -1)
        if len(self.present):
            at[self.present] = self.codes[:-1]
        count = self.stored.count
        keys = np.append(known.keys, 0)[at] if len(known.keys) == count else known.keys
        numbers = np.append(known.numbers, 0.0)[at] if len(known.numbers) == count else known.numbers
        return Values(keys, numbers, np.append(known.state(), np.int8(-1))[at])


@dataclass(frozen=True)
class Chunk:
    """A column of a row group: where its bytes are in the file, and how they are to be read."""

    name: str
    kind: Any  # the Arrow type
    number: np.dtype[Any] | None  # of the values on disk; None: texts
    start: int
    size: int
    num_rows: int
    is_optional: bool
    codec: str
    most: int  # bytes of a page, unpacked

    @classmethod
    def of(cls, name: str, kind: Any, column: Any, found: Any) -> "Chunk | None":
        """A chunk by what the footer says; None: not one of those that are read here.

        Args:
            kind: the Arrow type of the column.
            column: pyarrow's schema of the column.
            found: pyarrow's metadata of the chunk.
        """
        from pyarrow import types as t

        if t.is_dictionary(kind):
            kind = kind.value_type
        number: np.dtype[Any] | None = _NUMBERS.get(found.physical_type)
        if number is not None:
            is_readable = t.is_integer(kind) if number.kind == "i" else t.is_float32(kind) or t.is_float64(kind)
        else:
            is_readable = found.physical_type == "BYTE_ARRAY" and types.is_text(kind)
        if not (is_readable and column.max_repetition_level == 0 and column.max_definition_level <= 1):
            return None
        if found.compression not in _UNPACK or found.file_path:
            return None
        starts = [at for at in (found.dictionary_page_offset, found.data_page_offset) if at]
        start, size, most = min(starts, default=-1), found.total_compressed_size, found.total_uncompressed_size
        if start < 0 or size <= 0 or most <= 0:
            return None
        optional = column.max_definition_level == 1
        return cls(name, kind, number, start, size, found.num_values, optional, found.compression, most)

    def pages(self, data: Bytes, where: str) -> "ColumnReader | None":
        """A reader of the chunk's bytes; None if pages are of a sort that is not read here."""
        stack, pages, count = np.empty(kernels.STACK_SIZE, np.int64), np.empty((64, kernels.PAGE_SIZE), np.int64), 65
        while count > len(pages):
            pages = np.empty((2 * len(pages), kernels.PAGE_SIZE), np.int64)
            count = kernels.find_pages(data.data, self.size, stack, pages)
        known = count > 0 and all(self._is_readable(page, number) for number, page in enumerate(pages[:count].tolist()))
        rows = sum(page[kernels.NUM_VALUES] for page in pages[:count].tolist() if page[kernels.KIND] in _DATA)
        return ColumnReader(self, data, pages[:count], where) if known and rows == self.num_rows else None

    def _is_readable(self, page: list[int], number: int) -> bool:
        size, stored, kind = page[kernels.SIZE], page[kernels.STORED_SIZE], page[kernels.KIND]
        if not 0 <= size <= self.most or page[kernels.NUM_VALUES] < 0:
            return False
        if self.codec == "SNAPPY" and size > _SNAPPY_RATIO * stored:
            return False
        if kind == kernels.DICTIONARY_PAGE:
            return number == 0 and page[kernels.ENCODING] in (kernels.PLAIN, kernels.PLAIN_DICTIONARY)
        if kind not in _DATA or page[kernels.ENCODING] not in (kernels.PLAIN, *_CODED):
            return False
        if kind == kernels.DATA_PAGE_2:
            levels = page[kernels.LEVEL_BYTES]
            return page[kernels.REPEAT_BYTES] == 0 and 0 <= levels <= min(size, stored)
        return not self.is_optional or page[kernels.LEVEL_ENCODING] == kernels.RLE


class ColumnReader:
    """Reads the rows of a chunk, front to back; `where` is it, for messages."""

    def __init__(self, chunk: Chunk, data: Bytes, pages: Ids, where: str) -> None:
        self._where = where
        self._chunk, self._data, self._pages = chunk, data, pages.tolist()
        self._dictionary: Stored | None = None
        self._stored: Stored | None = None
        self._next = 0  # page
        self._left = 0  # rows of the page that are still to come
        self._at = 0  # value of the page that comes next, where it has no dictionary
        self._is_coded = False
        self.row = 0  # that comes next

    def parts(self, count: int) -> Iterator[Part]:
        """The next `count` rows, which there are.

        Raises:
            InputError: if a page is not what its header says.
        """
        while count:
            if not self._left:
                with damage_told(self._where):
                    self._open()
                continue
            size = min(count, self._left)
            with damage_told(self._where):
                part = self._part(size)
            yield part
            self._left, self.row, count = self._left - size, self.row + size, count - size

    def skip_to(self, row: int) -> None:
        """Pass over rows."""
        while self.row < row:
            if not self._left:
                page = self._pages[self._next]
                rows = page[kernels.NUM_VALUES] if page[kernels.KIND] in _DATA else 0
                if not rows or self.row + rows > row:
                    with damage_told(self._where):
                        self._open()
                else:
                    self._next, self.row = self._next + 1, self.row + rows
                continue
            for _ in self.parts(min(self._left, row - self.row)):
                pass

    def _part(self, size: int) -> Part:
        present, num_values = _ALL, size
        if self._has_levels:
            present = np.empty(size, np.bool_)
            num_values = kernels.unpack_flags(self._levels.data, self._levels_stop, self._level_cursor, present)
            if num_values < 0:
                raise DamagedError("its levels end too early")
            present = _ALL if num_values == size else present
        assert self._stored is not None
        codes = np.empty(num_values + 1, np.int32)
        codes[-1] = 0
        if self._is_coded:
            body, known = self._body, self._stored.count
            if not kernels.unpack(body.data, body.words, body.size, self._width, known, self._cursor, codes[:-1]):
                raise DamagedError("a page ends too early, or has an entry that its dictionary has not")
        else:
            if self._at + num_values > self._stored.count:
                raise DamagedError("its values are cut off")
            codes[:-1] = np.arange(self._at, self._at + num_values)
            self._at += num_values
        return Part(size, self._stored, codes, present)

    def _open(self) -> None:
        """Go on to the next page."""
        page = self._pages[self._next]
        self._next += 1
        body, start = self._unpacked(page), 0
        if page[kernels.KIND] == kernels.DICTIONARY_PAGE:
            self._dictionary = Stored(self._chunk, body, 0, page[kernels.NUM_VALUES])
            return
        self._has_levels = self._chunk.is_optional
        if page[kernels.KIND] == kernels.DATA_PAGE_2:
            start = page[kernels.LEVEL_BYTES]
            first = 0
        elif self._has_levels:
            first = 4
            start = first + int.from_bytes(body.data[: min(4, body.size)].tobytes(), "little")
        if self._has_levels:
            if start > body.size:
                raise DamagedError("its levels are cut off")
            self._levels, self._levels_stop, self._level_cursor = body, start, _cursor(first)
        self._begin_values(page, body, start)
        self._left = page[kernels.NUM_VALUES]

    def _begin_values(self, page: list[int], body: Bytes, start: int) -> None:
        self._is_coded = page[kernels.ENCODING] in _CODED
        self._body, self._at = body, 0
        if not self._is_coded:
            self._stored = Stored(self._chunk, body, start, None)
            return
        if self._dictionary is None:
            raise DamagedError("it has no dictionary")
        self._stored = self._dictionary
        self._width = int(body.data[start]) if start < body.size else 0
        if self._width > 32:
            raise DamagedError("numbers of dictionary entries of more than 32 bits")
        self._cursor = _cursor(start + 1)

    def _unpacked(self, page: list[int]) -> Bytes:
        """The page's body, levels of the second version in front."""
        size, stored, start = page[kernels.SIZE], page[kernels.STORED_SIZE], page[kernels.START]
        body = Bytes(size)
        raw = self._data.data[start : start + stored]
        plain = page[kernels.LEVEL_BYTES] if page[kernels.KIND] == kernels.DATA_PAGE_2 else 0
        body.data[:plain] = raw[:plain]
        if not page[kernels.IS_COMPRESSED] or self._chunk.codec == "UNCOMPRESSED":
            if stored != size:
                raise DamagedError("a page has another size than its header says")
            body.data[plain:size] = raw[plain:]
        elif size > plain:
            found = _UNPACK[self._chunk.codec](raw[plain:], size - plain)
            body.data[plain:size] = np.frombuffer(found, np.uint8)
        return body


def read_chunk(chunk: Chunk, read: Callable[[int, int, memoryview], int]) -> Bytes | None:
    """The bytes of a chunk; None if the file ends before it does.

    Args:
        read: (offset, size, where to) -> bytes read.
    """
    found = Bytes(chunk.size)
    done = 0
    while done < chunk.size:
        count = read(chunk.start + done, chunk.size - done, memoryview(found.data)[done : chunk.size])  # type: ignore[arg-type]
        if not count:
            return None
        done += count
    return found


def _cursor(at: int) -> Ids:
    return np.array([at * 8, 0, 0], np.int64)


def _as_type(found: NDArray[Any], kind: Any) -> Any:
    """An Arrow array of numbers as they are on disk; small integers are stored as larger ones."""
    import pyarrow as pa

    return pa.array(found.astype(kind.to_pandas_dtype(), copy=False), kind)


def _snappy(raw: NDArray[np.uint8], size: int) -> Any:
    import pyarrow as pa

    said, at = kernels.varint(raw, 0, len(raw))
    if at < 0 or said != size:  # otherwise pyarrow would leave the rest of its buffer as it was
        raise DamagedError("a page unpacks to another size than its header says")
    return pa.Codec("snappy").decompress(pa.py_buffer(raw), size)


def _zstd(raw: NDArray[np.uint8], size: int) -> Any:
    import pyarrow as pa

    return pa.Codec("zstd").decompress(pa.py_buffer(raw), size)


def _gzip(raw: NDArray[np.uint8], size: int) -> bytes:
    stream = zlib.decompressobj(wbits=47)
    try:
        found = stream.decompress(raw.tobytes(), size)
    except zlib.error as error:
        raise DamagedError(str(error)) from error
    if len(found) != size:
        raise DamagedError("a page unpacks to another size than its header says")
    return found


def _as_it_is(raw: NDArray[np.uint8], size: int) -> Any:
    raise AssertionError("not packed")


_UNPACK: dict[str, Callable[[NDArray[np.uint8], int], Any]] = {
    "UNCOMPRESSED": _as_it_is,
    "SNAPPY": _snappy,
    "ZSTD": _zstd,
    "GZIP": _gzip,
}
