"""`TextReader`: text files, plain or gzip, in, blocks of rows out. Python handles chunks, the tokeniser handles lines.

A chunk is read behind what is left of the line before; everything up to the last line feed goes to the tokeniser.
Memory is bounded by a chunk and the longest line allowed, whatever a file holds. Whether a file is compressed follows
from its first bytes, not from its name; errors name file and offset.
"""

import gzip
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from adaptive.data.data_options import DataOptions
from adaptive.data.kernels import text as kernels
from adaptive.data.kernels import text_rows
from adaptive.data.rows.data_files import DataFile, find_parts, open_file
from adaptive.data.rows.rejects import BadLine, RejectLog
from adaptive.data.rows.row_dataset import Opened
from adaptive.data.rows.row_source import Block, Position, Reading, RowFormat, RowReader, RowSource
from adaptive.errors import InputError

CHUNK_BYTES = 1 << 18  # fits the second-level cache together with the rows made from it
_GZIP_MAGIC = b"\x1f\x8b"
_SKIPPED_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"
_NOTHING = _BOM + b"\r\n"
_MAX_FAULTS = 256  # per call of the tokeniser
_KEPT_BYTES = 256  # of a bad line


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
            is_gzip = self._raw.read(2) == _GZIP_MAGIC
            self._raw.seek(0)
            self._gzip = cast(BinaryIO, gzip.GzipFile(fileobj=self._raw, mode="rb")) if is_gzip else None
        except BaseException:
            self._raw.close()
            raise

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
        scratch = memoryview(bytearray(_SKIPPED_BLOCK))
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
    stream, data = ByteStream(file), bytearray()
    view = memoryview(bytearray(min(max_bytes, 1 << 16)))
    try:
        while len(data) < max_bytes and (count := stream.readinto(view)):
            data += bytes(view[:count]) if data else bytes(view[:count]).lstrip(_NOTHING)
            if b"\n" in data[-count:]:
                break
    finally:
        stream.close()
    return bytes(data[:max_bytes]).split(b"\n")[0].rstrip(b"\r")


def open_text_files(
    paths: str, options: DataOptions, run_dir: Path | None, *, format_of: Callable[[DataFile], RowFormat]
) -> Opened:
    """The files of `paths` and of `eval_data`."""
    files, num_train = find_parts(paths, options.eval_data)
    formats = tuple(format_of(file) for file in files)
    log = RejectLog.of(tuple(str(file.path) for file in files), options, run_dir, header_lines=int(formats[0].header))
    return Opened.of(TextSource(files, files, formats, log, options.chunk_bytes), num_train)


@dataclass(frozen=True)
class TextSource(RowSource):
    """Files of text; all have the same output columns."""

    pieces: tuple[DataFile, ...]
    chunk_bytes: int = CHUNK_BYTES

    def open_reader(self, reading: Reading) -> "TextReader":
        return TextReader(self, reading)


class TextReader(RowReader):
    """Reads the rows of some files of a source, one file after another. A position's offset is that of decompressed
    bytes."""

    def __init__(self, source: TextSource, reading: Reading) -> None:
        self._source, self._window, self._keepers = source, reading.window, reading.keepers
        self._start, self._left = reading.start, list(reading.pieces)
        self._spans = np.empty((0, text_rows.SPAN_SIZE), np.int64)
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
                block.reserve_bags(len(block.columns.bag_keys) + 1)
        block.num_rows = int(cursor[kernels.ROW])
        return block.num_rows

    def _keep_texts(self, starts: NDArray[np.int64]) -> None:
        """Give the texts of lines that were just read to the keepers."""
        for number, column in enumerate(self._source.formats[self._file].columns):
            keeper = self._keepers.get(column.name)
            if keeper is None or not len(starts):
                continue
            while (count := text_rows.column_spans(self._data, starts, self._layout, number, self._spans)) < 0:
                self._spans = np.empty((2 * len(self._spans) + len(starts), text_rows.SPAN_SIZE), np.int64)
            keeper.add(self._data, self._spans[:count])

    def _bad_lines(self) -> list[BadLine]:
        columns = self._source.formats[self._file].columns
        return [
            BadLine(
                int(line),
                kernels.CAUSES[cause],
                columns[column].name if column >= 0 else "",
                bytes(self._bytes[start : min(stop, start + _KEPT_BYTES)]).rstrip(b"\r\n"),
            )
            for line, cause, column, start, stop in self._faults[: self._cursor[kernels.NUM_FAULTS]].tolist()
        ]

    def _report(self, bad: list[BadLine]) -> None:
        self._source.log.count(self._file, int(self._cursor[kernels.LINE]) - 1, bad)

    def _next_lines(self) -> bool:
        """Bring whole lines into the buffer, from the next file where this one is used up."""
        while self._stream is not None or self._next_file():
            if self._fill():
                return True
            self._behind += self._source.size([self._file])
            self.close()
        return False

    def _next_file(self) -> bool:
        if not self._left:
            self._source.log.check()
            return False
        self._file = self._left.pop(0)
        start = self._start if self._start.file == self._file else Position(self._file)
        self._stream = ByteStream(self._source.pieces[self._file])
        self._stream.skip_to(start.offset)
        self._layout = self._source.formats[self._file].layout(*self._window)
        self._cursor[kernels.POSITION], self._cursor[kernels.LINE] = 0, start.line
        self._base, self._filled, self._whole, self._added = start.offset, 0, 0, 0
        return True

    def _fill(self) -> bool:
        """Read until there is a whole line; False at the end of the file."""
        self._drop(self._whole)
        max_line_bytes = self._source.formats[self._file].max_line_bytes
        searched = 0  # bytes of the buffer without the end of a line
        while True:
            self._whole = self._bytes.rfind(b"\n", searched, self._filled) + 1
            searched = self._filled
            if self._whole:
                self._pass_over_start()
                return True
            if self._filled > max_line_bytes + len(_BOM):
                self._skip_long_line()
                searched = 0
            elif not self._read_chunk():
                if not self._filled or (not self._base and self._bytes[: self._filled] == _BOM):
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
