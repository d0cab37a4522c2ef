"""Bytes of text files, plain or gzip, with errors that name file and offset.

Which of the two a file is follows from its first bytes, not from its name. Files must not change while they are
used: one that is cut short, grows, is written to or disappears between two passes is an error, since other samples
would be trained without notice.

`TextReader`: text files in, blocks of rows out. Python handles chunks, the tokeniser handles lines.

A chunk is read behind what is left of the line before; everything up to the last line feed goes to the tokeniser.
Memory is bounded by a chunk and the longest line allowed, whatever a file holds.
"""

import gzip
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Self, cast

import numpy as np
from numpy.typing import NDArray

from adaptive.data.kernels import text as kernels
from adaptive.data.kernels import text_rows
from adaptive.data.rows.data_files import DataFile, open_file
from adaptive.data.rows.rejects import BadLine, RejectLog
from adaptive.data.rows.row_source import EVERYTHING, Block, Keepers, Position, RowFormat, RowReader, RowSource
from adaptive.errors import InputError

_GZIP_MAGIC = b"\x1f\x8b"
_CHECKED_BLOCK = 1 << 20
_CHECKED_BLOCKS = 64
_NOTHING = b"\xef\xbb\xbf\r\n"  # byte order mark and ends of lines


class ByteStream:
    """The (decompressed) bytes of one file, front to back.

    Raises:
        InputError: from any method, if the file is gone, has changed, or holds damaged or cut-off gzip data.
    """

    def __init__(self, file: DataFile) -> None:
        self.file = file
        self.offset = 0  # decompressed bytes handed out
        self._raw = open_file(file.path)
        try:
            file.require_unchanged(os.fstat(self._raw.fileno()))
            self._gzip = self._find_gzip()
        except BaseException:
            self._raw.close()
            raise

    def _find_gzip(self) -> BinaryIO | None:
        is_gzip = self._raw.read(2) == _GZIP_MAGIC
        self._raw.seek(0)
        return cast(BinaryIO, gzip.GzipFile(fileobj=self._raw, mode="rb")) if is_gzip else None

    def readinto(self, view: memoryview) -> int:
        """Fill `view` as far as one read does -> number of bytes, 0 at the end only."""
        try:
            count = self._read_gzip(view) if self._gzip is not None else self._read_plain(view)
        except OSError as error:
            raise InputError(f"{self.file.path}: reading failed at offset {self.offset} ({error})") from error
        self.offset += count
        return count

    def _read_plain(self, view: memoryview) -> int:
        left = self.file.size - self.offset
        count = cast(int, self._raw.readinto(view[:left])) if left else 0  # type: ignore[attr-defined]
        if not count and left:
            raise InputError(
                f"{self.file.path}: ends at offset {self.offset}, had {self.file.size} bytes when it was opened; "
                "it was cut short while being read"
            )
        return count

    def _read_gzip(self, view: memoryview) -> int:
        assert self._gzip is not None
        try:
            return cast(int, self._gzip.readinto(view))  # type: ignore[attr-defined]
        except EOFError as error:
            raise InputError(
                f"{self.file.path}: the gzip data stop in the middle, at offset {self._raw.tell()} of the file, after "
                f"{self.offset} decompressed bytes; the file is cut off: fetch it again"
            ) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"{self.file.path}: damaged gzip data before offset {self._raw.tell()} of the file, after "
                f"{self.offset} decompressed bytes ({error}); fetch the file again"
            ) from error

    def skip_to(self, offset: int) -> None:
        """Go to a decompressed offset: at once in a plain file, by reading up to there in a gzip one."""
        assert offset >= self.offset
        if self._gzip is None:
            self._raw.seek(offset)
            self.offset = offset
        scratch = memoryview(bytearray(_CHECKED_BLOCK))
        while self.offset < offset:
            if not self.readinto(scratch[: min(len(scratch), offset - self.offset)]):
                raise InputError(f"{self.file.path}: ends before offset {offset}; it changed since it was counted")

    def bytes_read(self) -> int:
        """Bytes of the file on disk up to where it is read; decompression reads a little ahead."""
        return self._raw.tell()

    def close(self) -> None:
        if self._gzip is not None:
            self._gzip.close()
        self._raw.close()


def first_line(file: DataFile, max_bytes: int) -> bytes:
    """The first line that is not empty, without byte order mark and end of line; cut after `max_bytes`."""
    stream, data, begun = ByteStream(file), bytearray(), False
    try:
        while len(data) < max_bytes:
            view = memoryview(bytearray(min(max_bytes, 1 << 16)))
            count = stream.readinto(view)
            if not count:
                break
            part = bytes(view[:count]) if begun else bytes(data + view[:count]).lstrip(_NOTHING)
            if not begun:
                data.clear()
            begun = begun or bool(part)
            data += part
            if b"\n" in part:
                break
    finally:
        stream.close()
    return bytes(data[:max_bytes]).split(b"\n")[0].rstrip(b"\r")


CHUNK_BYTES = 1 << 18  # fits the second-level cache together with the rows made from it
_BOM = b"\xef\xbb\xbf"
_MAX_FAULTS = 256  # per call of the tokeniser
_KEPT_BYTES = 256  # of a bad line


@dataclass(frozen=True)
class TextSource(RowSource):
    """Files of text, the format of each, and the log of their bad lines. Each file is a piece."""

    files: tuple[DataFile, ...]
    formats: tuple[RowFormat, ...]  # one per file; all have the same output columns
    log: RejectLog
    chunk_bytes: int = CHUNK_BYTES

    def names(self) -> tuple[str, ...]:
        return tuple(str(file.path) for file in self.files)

    def size(self, piece: int) -> int:
        return self.files[piece].size

    def noted_in(self, log: RejectLog) -> Self:
        return replace(self, log=log)

    def reader(
        self,
        pieces: Sequence[int],
        *,
        start: Position | None = None,
        window: tuple[float, float] = EVERYTHING,
        keepers: Keepers | None = None,
    ) -> "TextReader":
        return TextReader(self, pieces, start=start, window=window, keepers=keepers)


class TextReader(RowReader):
    """Reads the rows of some files of a source, one file after another.

    Args:
        files: numbers of the files, ascending.
        start: where to begin, in one of these files; files before it are left out.
        window: rows with a time outside [from, to) are passed over.
        keepers: are given the texts of these columns.
    """

    def __init__(
        self,
        source: TextSource,
        files: Sequence[int],
        *,
        start: Position | None = None,
        window: tuple[float, float] = EVERYTHING,
        keepers: Keepers | None = None,
    ) -> None:
        self._keepers = keepers or {}
        self._spans = np.empty((0, text_rows.SPAN_SIZE), np.int64)
        self._source = source
        self._window = window
        self._start = start or Position(file=files[0] if files else 0)
        self._files = [file for file in files if file >= self._start.file]
        self._file = -1
        self._behind = 0  # bytes on disk of the files that are used up
        self._stream: ByteStream | None = None
        longest = max((form.max_line_bytes for form in source.formats), default=0)
        self._bytes = bytearray(longest + len(_BOM) + source.chunk_bytes + 1)
        self._data = np.frombuffer(self._bytes, np.uint8)
        self._faults = np.empty((_MAX_FAULTS, kernels.FAULT_SIZE), np.int64)
        self._cursor = np.zeros(kernels.CURSOR_SIZE, np.int64)
        self._base = 0  # offset in the file of the buffer's first byte
        self._filled = 0  # bytes in the buffer
        self._whole = 0  # of which belong to whole lines
        self._added = 0  # and how many are not in the file: the line feed that the last line lacked

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def position(self) -> Position:
        if self._file < 0:
            return self._start
        position, line = int(self._cursor[kernels.POSITION]), int(self._cursor[kernels.LINE])
        return Position(self._file, self._base + min(position, self._filled - self._added), line)

    def bytes_read(self) -> int:
        return self._behind + (self._stream.bytes_read() if self._stream is not None else 0)

    def read(self, block: Block) -> int:
        cursor = self._cursor
        cursor[kernels.ROW] = 0
        while cursor[kernels.ROW] < len(block.file_index):
            if cursor[kernels.POSITION] >= self._whole and not self._next_lines():
                break
            first = int(cursor[kernels.ROW])
            cursor[kernels.NUM_FAULTS] = 0
            reason = kernels.tokenise(self._data, self._whole, self._layout, block.columns, self._faults, cursor)
            block.file_index[first : cursor[kernels.ROW]] = self._file
            self._keep_texts(block.columns.starts[first : cursor[kernels.ROW]])
            self._report(self._bad_lines())
            if reason == kernels.BAGS_FULL:
                block.grow_bags()
        block.num_rows = int(cursor[kernels.ROW])
        return block.num_rows

    def _keep_texts(self, starts: NDArray[np.int64]) -> None:
        """Give the texts of lines that were just read to whom they interest."""
        for number, column in enumerate(self._source.formats[self._file].columns):
            keeper = self._keepers.get(column.name)
            if keeper is None or not len(starts):
                continue
            count = -1
            while count < 0:
                count = text_rows.column_spans(self._data, starts, self._layout, number, self._spans)
                if count < 0:
                    self._spans = np.empty((2 * len(self._spans) + len(starts), text_rows.SPAN_SIZE), np.int64)
            keeper.add(self._data, self._spans[:count])

    def _bad_lines(self) -> list[BadLine]:
        columns = self._source.formats[self._file].columns
        return [
            BadLine(
                int(fault[kernels.FAULT_LINE]),
                kernels.CAUSES[fault[kernels.FAULT_CAUSE]],
                columns[fault[kernels.FAULT_COLUMN]].name if fault[kernels.FAULT_COLUMN] >= 0 else "",
                self._start_of(int(fault[kernels.FAULT_START]), int(fault[kernels.FAULT_STOP])),
            )
            for fault in self._faults[: self._cursor[kernels.NUM_FAULTS]]
        ]

    def _start_of(self, start: int, stop: int) -> bytes:
        return bytes(self._bytes[start : min(stop, start + _KEPT_BYTES)]).rstrip(b"\r\n")

    def _report(self, bad: list[BadLine]) -> None:
        self._source.log.count(self._file, int(self._cursor[kernels.LINE]) - 1, bad)

    def _next_lines(self) -> bool:
        """Bring whole lines into the buffer, from the next file where this one is used up."""
        while self._stream is not None or self._next_file():
            if self._fill():
                return True
            self._behind += self._source.size(self._file)
            self.close()
        return False

    def _next_file(self) -> bool:
        following = [file for file in self._files if file > self._file]
        if not following:
            self._source.log.check()
            return False
        self._file = following[0]
        start = self._start if self._start.file == self._file else Position(self._file)
        self._stream = ByteStream(self._source.files[self._file])
        self._stream.skip_to(start.offset)
        self._layout = self._source.formats[self._file].layout(*self._window)
        self._cursor[kernels.POSITION], self._cursor[kernels.LINE] = 0, start.line
        self._base, self._filled, self._whole, self._added = start.offset, 0, 0, 0
        return True

    def _fill(self) -> bool:
        """Read until there is a whole line; False at the end of the file."""
        self._drop(self._whole)
        max_line_bytes = self._source.formats[self._file].max_line_bytes
        looked = 0  # bytes of the buffer without the end of a line
        while True:
            self._whole = self._bytes.rfind(b"\n", looked, self._filled) + 1
            looked = self._filled
            if self._whole:
                self._pass_over_start()
                return True
            if self._filled > max_line_bytes + len(_BOM):
                self._skip_long_line()
                looked = 0
            elif not self._read_chunk():
                if not self._filled or self._is_mark_only():
                    return False
                self._bytes[self._filled : self._filled + 1] = b"\n"  # found next
                self._filled += 1
                self._added = 1

    def _drop(self, count: int) -> None:
        """Forget the first bytes of the buffer."""
        left = self._filled - count
        self._data[:left] = self._data[count : self._filled].copy()
        self._base += count
        self._filled, self._whole = left, 0
        self._cursor[kernels.POSITION] = 0

    def _read_chunk(self) -> int:
        assert self._stream is not None
        with memoryview(self._bytes)[self._filled : self._filled + self._source.chunk_bytes] as view:
            count = self._stream.readinto(view)
        self._filled += count
        return count

    def _skip_long_line(self) -> None:
        """Count the line in the buffer, which has no end yet and is too long, and read on behind it."""
        line = int(self._cursor[kernels.LINE])
        is_header = self._source.formats[self._file].header and line == 1
        bad = [] if is_header else [BadLine(line, "overlong", "", bytes(self._bytes[:_KEPT_BYTES]))]
        end = 0
        while not end:
            self._drop(self._filled)
            if not self._read_chunk():
                break
            end = self._bytes.find(b"\n", 0, self._filled) + 1
        self._drop(end)
        self._cursor[kernels.LINE] += 1
        self._report(bad)

    def _pass_over_start(self) -> None:
        """Leave out what comes before the data of a file: the byte order mark and the header."""
        if self._base or self._cursor[kernels.LINE] > 1:
            return
        if self._source.formats[self._file].header:
            self._cursor[kernels.POSITION] = self._bytes.index(b"\n") + 1
            self._cursor[kernels.LINE] = 2
        elif self._bytes.startswith(_BOM):
            self._cursor[kernels.POSITION] = len(_BOM)

    def _is_mark_only(self) -> bool:
        return not self._base and self._bytes[: self._filled] == _BOM
