"""`TextReader`: read plain or gzip text files into blocks of rows.

Python handles chunks, the tokenizer handles lines. A chunk is appended to the unfinished line of the previous chunk;
everything up to the last line feed goes to the tokenizer. Memory is bounded by a chunk and the longest line allowed. A
file counts as compressed because of its first bytes, not because of its name. Errors name file and offset.
"""

import csv
import gzip
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from adaptive.data.data_options import DataOptions
from adaptive.data.kernels import text as kernels
from adaptive.data.rows.data_files import DataFile, find_parts, open_file
from adaptive.data.rows.rejects import BadLine, RejectLog
from adaptive.data.rows.row_dataset import Opened
from adaptive.data.rows.row_source import Block, PieceReader, Position, RowFormat, RowSource
from adaptive.errors import ConfigError, InputError

CHUNK_BYTES = 1 << 18  # fits the second-level cache together with the rows made from it
_GZIP_MAGIC = b"\x1f\x8b"
_BINARY = {
    b"PAR1": ("Parquet", "Read it as --data parquet:PATH."),
    b"ARROW1": (
        "an Arrow file",
        "Write it as Parquet, or open the table in Python: adaptive.data.arrow.frames.from_frame.",
    ),
    b"\x28\xb5\x2f\xfd": ("zstd", "Decompress it with unzstd."),
    b"\xfd7zXZ": ("xz", "Decompress it with unxz."),
    b"BZh91A": ("bzip2", "Decompress it with bunzip2."),
    b"PK\x03\x04": ("a zip archive or an Excel file", "Unzip it, or save the sheet as CSV."),
}  # first bytes
_SKIPPED_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"
_NOTHING = _BOM + b"\r\n"
_MAX_FAULTS = 256  # per call of the tokenizer
_KEPT_BYTES = 256  # of a bad line, for messages


class ByteStream:
    """The (decompressed) bytes of a file, from front to back.

    Raises:
        InputError: from any method, if the file is gone, has changed, or holds damaged or truncated gzip data.
    """

    def __init__(self, file: DataFile) -> None:
        self.file = file
        self.offset = 0  # decompressed bytes handed out
        self._raw = open_file(file.path)
        try:
            file.require_unchanged(os.fstat(self._raw.fileno()))
            begin = self._raw.read(6)
            is_gzip = begin[:2] == _GZIP_MAGIC
            for magic, (format_name, advice) in _BINARY.items():
                if begin.startswith(magic):
                    raise InputError(f"{file.path}: expected text, plain or gzip, got {format_name}. {advice}")
            self._raw.seek(0)
            self._stream = cast(BinaryIO, gzip.GzipFile(fileobj=self._raw, mode="rb")) if is_gzip else self._raw
        except BaseException:
            self._raw.close()
            raise

    def readinto(self, view: memoryview) -> int:
        """Read once into `view`; return the number of bytes, which is 0 only at the end."""
        if self._stream is self._raw:
            view = view[: self.file.size - self.offset]  # as when the data set was opened
        try:
            count = cast(int, self._stream.readinto(view))  # type: ignore[attr-defined]
        except EOFError as error:
            raise InputError(
                f"{self.file.path}: expected more gzip data, got the end of the file at offset {self._raw.tell()}, "
                f"after {self.offset} decompressed bytes. The file is truncated: fetch it again."
            ) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"{self.file.path}: expected gzip data, got damaged bytes before offset {self._raw.tell()}, after "
                f"{self.offset} decompressed bytes ({error}). Fetch the file again."
            ) from error
        except OSError as error:
            raise InputError(
                f"{self.file.path}: expected readable data at offset {self.offset}, got {error}. Check the disk."
            ) from error
        if self._stream is self._raw and len(view) and not count:
            raise InputError(
                f"{self.file.path}: expected {self.file.size} bytes, as when the data set was opened, got "
                f"{self.offset}. The file was truncated during the run: restore it and start again."
            )
        self.offset += count
        return count

    def skip_to(self, offset: int) -> None:
        """Go to a decompressed offset: by a seek in a plain file, by reading in a gzip file."""
        assert offset >= self.offset
        if self._stream is self._raw:
            self._raw.seek(offset)
            self.offset = offset
        scratch = memoryview(bytearray(_SKIPPED_BLOCK))
        while self.offset < offset:
            if not self.readinto(scratch[: min(len(scratch), offset - self.offset)]):
                raise InputError(
                    f"{self.file.path}: expected more than {offset} bytes, got fewer. The file changed: start again."
                )

    def bytes_read(self) -> int:
        """Return the position in the file on disk; decompression reads a little ahead."""
        return self._raw.tell()

    def close(self) -> None:
        self._stream.close()
        self._raw.close()


def first_line(file: DataFile, max_bytes: int) -> bytes:
    """Return the first non-empty line without byte order mark and line end, up to a size."""
    return first_lines(file, max_bytes)[0]


def first_lines(file: DataFile, max_bytes: int) -> list[bytes]:
    """Return the lines in the first 64 KiB, or up to the end of the first line; the last one may be cut off."""
    stream, data = ByteStream(file), bytearray()
    view = memoryview(bytearray(min(max_bytes, 1 << 16)))
    try:
        while len(data) < max_bytes and (count := stream.readinto(view)):
            data += bytes(view[:count]) if data else bytes(view[:count]).lstrip(_NOTHING)
            if b"\n" in data[-count:]:
                break
    finally:
        stream.close()
    return [line.rstrip(b"\r") for line in bytes(data[:max_bytes]).split(b"\n")]


def open_text_files(
    paths: str, options: DataOptions, run_dir: Path | None, *, format_of: Callable[[DataFile], RowFormat]
) -> Opened:
    """Open the files of `paths` and `data.eval_data`; `format_of` returns their formats."""
    files, num_train = find_parts(paths, options.eval_data)
    formats = tuple(format_of(file) for file in files)
    log = RejectLog(tuple(str(file.path) for file in files), options, run_dir, header_lines=int(formats[0].header))
    return Opened.of(TextSource(files, files, formats, log, CHUNK_BYTES), num_train)


@dataclass(frozen=True)
class TextSource(RowSource):
    """Text files with the same output columns."""

    pieces: tuple[DataFile, ...]
    chunk_bytes: int = CHUNK_BYTES

    def raw_rows(self, piece: int, columns: Sequence[str]) -> Iterator[Sequence[Any]]:
        form, file = self.formats[piece], self.pieces[piece]
        names = [column.name for column in form.columns]
        if missing := [name for name in columns if name not in names]:
            raise ConfigError(f"{file.path}: expected columns of the file, got {', '.join(missing)} (--with)")
        places = [names.index(name) for name in columns]
        quoting: dict[str, Any] = {"quotechar": form.quote} if form.quote else {"quoting": csv.QUOTE_NONE}
        with open_file(file.path) as raw:
            is_gzip = raw.read(2) == _GZIP_MAGIC
        with cast(BinaryIO, gzip.open(file.path) if is_gzip else open(file.path, "rb")) as lines:
            for line in lines:
                text = line.removeprefix(_BOM).decode(errors="replace").rstrip("\r\n")
                fields = next(csv.reader([text], delimiter=form.separator, **quoting), [])
                yield [fields[place] if place < len(fields) else "" for place in places]

    def open_piece(self, start: Position, window: tuple[float, float]) -> "TextReader":
        return TextReader(self, start, window)


class TextReader(PieceReader):
    """Reads the rows of a text file. Offsets count decompressed bytes."""

    def __init__(self, source: TextSource, start: Position, window: tuple[float, float]) -> None:
        self._file, self._form, self._log = start.file, source.formats[start.file], source.log
        self._chunk_bytes, self._layout = source.chunk_bytes, self._form.layout(*window)
        self._bytes = bytearray(self._form.max_line_bytes + len(_BOM) + source.chunk_bytes + 1)
        self._data = np.frombuffer(self._bytes, np.uint8)
        self._faults = np.empty((_MAX_FAULTS, kernels.FAULT_SIZE), np.int64)
        self._cursor = np.zeros(kernels.CURSOR_SIZE, np.int64)
        self._cursor[kernels.LINE] = start.line
        self._base = start.offset  # in the file, of the buffer's first byte
        self._filled = 0  # bytes in the buffer
        self._whole = 0  # of them, bytes of whole lines
        self._added = 0  # of them, bytes that are not in the file: the missing line feed of the last line
        self._stream = ByteStream(source.pieces[start.file])
        self._stream.skip_to(start.offset)

    def close(self) -> None:
        self._stream.close()

    def position(self) -> Position:
        position, line = int(self._cursor[kernels.POSITION]), int(self._cursor[kernels.LINE])
        return Position(self._file, self._base + min(position, self._filled - self._added), line)

    def bytes_read(self) -> int:
        return self._stream.bytes_read()

    def read(self, block: Block, row: int) -> int:
        cursor = self._cursor
        cursor[kernels.ROW] = row
        while cursor[kernels.ROW] < len(block.file_index):
            if cursor[kernels.POSITION] >= self._whole and not self._fill():
                break
            cursor[kernels.NUM_FAULTS] = 0
            reason = kernels.tokenize(self._data, self._whole, self._layout, block.columns, self._faults, cursor)
            self._report(self._bad_lines())
            if reason == kernels.BAGS_FULL:
                block.reserve_bags(len(block.columns.bag_keys) + 1)
        return int(cursor[kernels.ROW])

    def _bad_lines(self) -> list[BadLine]:
        form, bad = self._form, []
        for line, cause, column, start, stop in self._faults[: self._cursor[kernels.NUM_FAULTS]].tolist():
            text = bytes(self._bytes[start : min(stop, start + _KEPT_BYTES)]).rstrip(b"\r\n")
            name, value, num_columns = "", None, None
            fields = split_fields(text.decode("utf-8", "surrogateescape"), form.separator, form.quote)
            if column >= 0:
                name = form.columns[column].name
                rest = fields[column:] if column == len(form.columns) - 1 else fields[column : column + 1]
                value = form.separator.join(rest).encode("utf-8", "surrogateescape") if rest else None
            elif cause == kernels.COLUMNS and stop - start <= _KEPT_BYTES:
                num_columns = len(form.columns), len(fields)
            bad.append(BadLine(line, kernels.CAUSES[cause], name, text, value, num_columns))
        return bad

    def _report(self, bad: list[BadLine]) -> None:
        self._log.count(self._file, int(self._cursor[kernels.LINE]) - 1, bad)

    def _fill(self) -> bool:
        """Read until there is a whole line; return False at the end of the file."""
        self._drop(self._whole)
        searched = 0  # bytes of the buffer known to hold no line end
        while True:
            self._whole = self._bytes.rfind(b"\n", searched, self._filled) + 1
            searched = self._filled
            if self._whole:
                self._pass_over_start()
                return True
            if self._filled > self._form.max_line_bytes + len(_BOM):
                self._skip_long_line()
                searched = 0
            elif not self._read_chunk():
                if not self._filled or (not self._base and self._bytes[: self._filled] == _BOM):
                    return False
                self._bytes[self._filled : self._filled + 1] = b"\n"  # found in the next round
                self._filled += 1
                self._added = 1

    def _drop(self, count: int) -> None:
        """Remove the first bytes of the buffer."""
        left = self._filled - count
        self._data[:left] = self._data[count : self._filled].copy()
        self._base += count
        self._filled, self._whole = left, 0
        self._cursor[kernels.POSITION] = 0

    def _read_chunk(self) -> int:
        with memoryview(self._bytes)[self._filled : self._filled + self._chunk_bytes] as view:
            count = self._stream.readinto(view)
        self._filled += count
        return count

    def _skip_long_line(self) -> None:
        """Reject the line in the buffer, which is too long, and read to its end."""
        line = int(self._cursor[kernels.LINE])
        is_header = self._form.header and line == 1
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
        """Skip the byte order mark and the header at the start of a file."""
        if self._base or self._cursor[kernels.LINE] > 1:
            return
        if self._form.header:
            self._cursor[kernels.POSITION] = self._bytes.index(b"\n") + 1
            self._cursor[kernels.LINE] = 2
        elif self._bytes.startswith(_BOM):
            self._cursor[kernels.POSITION] = len(_BOM)


def split_fields(line: str, separator: str, quote: str) -> list[str]:
    """Split a line into its fields, for headers and messages."""
    if not quote or quote not in line:
        return line.split(separator)
    return next(csv.reader([line.replace("\r", " ")], delimiter=separator, quotechar=quote), [])  # csv refuses CR
