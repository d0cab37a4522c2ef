"""Bytes of text files, plain or gzip, with errors that name file and offset.

Which of the two a file is follows from its first bytes, not from its name. Files must not change while they are
used: one that is cut short, grows, is written to or disappears between two passes is an error, since other samples
would be trained without notice.
"""

import glob
import gzip
import hashlib
import os
import stat
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from adaptive.errors import InputError

_GZIP_MAGIC = b"\x1f\x8b"
_CHECKED_BLOCK = 1 << 20
_CHECKED_BLOCKS = 64
_NOTHING = b"\xef\xbb\xbf\r\n"  # byte order mark and ends of lines


@dataclass(frozen=True)
class TextFile:
    """A file as it was found when the data set was opened."""

    path: Path
    size: int  # bytes on disk
    modified: int  # in ns, by its file system's clock

    @classmethod
    def of(cls, path: Path, found: os.stat_result) -> "TextFile":
        return cls(path, found.st_size, found.st_mtime_ns)

    def require_unchanged(self, found: os.stat_result) -> None:
        """Check that this is the file that was found: its size, and when it was written last.

        Raises:
            InputError: if not.
        """
        if found.st_size != self.size:
            raise InputError(
                f"{self.path}: has {found.st_size} bytes, had {self.size} when the data set was opened; "
                "data must not change during a run"
            )
        if found.st_mtime_ns != self.modified:
            raise InputError(
                f"{self.path}: was written to after the data set was opened; data must not change during a run"
            )

    def fingerprint(self) -> dict[str, object]:
        """Name, size and SHA-256 of the bytes on disk: of all of them up to 64 MiB, of 64 blocks of 1 MiB spread
        evenly from the first to the last byte in larger files, so that it takes less than a second for any size. A
        CRC-32 would be the same for all gzip files of one size whose content is stored: each ends with its own.
        """
        whole = self.size <= _CHECKED_BLOCK * _CHECKED_BLOCKS
        blocks = -(-self.size // _CHECKED_BLOCK) if whole else _CHECKED_BLOCKS
        step = _CHECKED_BLOCK if whole else (self.size - _CHECKED_BLOCK) / (_CHECKED_BLOCKS - 1)
        digest = hashlib.sha256()
        with _open(self.path) as file:
            for start in (int(step * block) for block in range(blocks)):
                file.seek(start)
                digest.update(file.read(_CHECKED_BLOCK))
        checked = "all" if whole else f"{_CHECKED_BLOCKS} blocks of 1 MiB"
        return {"path": str(self.path), "bytes": self.size, "sha256": digest.hexdigest(), "sha256_of": checked}


def find_files(spec: str) -> tuple[TextFile, ...]:
    """Files named by `PATH[,PATH...]`; a path with `*`, `?` or `[` is a pattern, its matches are sorted by name.

    Raises:
        InputError: if a file is missing or no folder, or a pattern matches nothing.
    """
    files: list[TextFile] = []
    for part in spec.split(","):
        if not part.strip():
            raise InputError(f"data {spec!r}: a path is empty; give PATH or PATH,PATH or a pattern such as 'day_*.gz'")
        path = Path(part.strip()).expanduser()
        is_pattern = glob.has_magic(part) and not os.path.exists(path)
        paths = [Path(match) for match in sorted(glob.glob(str(path)))] if is_pattern else [path]
        if not paths:
            raise InputError(
                f"data: no file matches {part.strip()!r}; check the folder, and quote patterns in the shell"
            )
        files += [find_file(path) for path in paths]
    return tuple(files)


def find_file(path: Path) -> TextFile:
    """The file of this path, to be read several times. Raises InputError: if it is none, or not a regular one."""
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; name its files, for example '{path}/*'")
    try:
        found = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path} is a pipe or a device; data are read several times: write them to a file first")
    return TextFile.of(path, found)


def _open(path: Path) -> BinaryIO:
    try:
        return open(path, "rb", buffering=0)
    except FileNotFoundError as error:
        raise InputError(
            f"{path}: cannot be opened ({error.strerror}); it was there when the data set was opened"
        ) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check whose it is and who may read it") from error


class ByteStream:
    """The (decompressed) bytes of one file, front to back.

    Raises:
        InputError: from any method, if the file is gone, has changed, or holds damaged or cut-off gzip data.
    """

    def __init__(self, file: TextFile) -> None:
        self.file = file
        self.offset = 0  # decompressed bytes handed out
        self._raw = _open(file.path)
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


def first_line(file: TextFile, max_bytes: int) -> bytes:
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
