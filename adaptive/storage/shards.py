"""Rows of a checkpoint in shards: each rank writes the rows that it owns.

It writes one file for each array. Rows of several ranks are divided by their buckets into `PIECES` pieces. Shard k of W
holds a contiguous range of pieces, piece after piece, in order of rows within each piece. A single process writes one
shard of one piece. Each piece has a digest, so a reader reads and verifies only the pieces it needs, for any number of
shards. It sees one array, in order of rows.

Letters: n entries read in total, W shards.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, Strict

from adaptive.storage.arrays import Array, ArrayFile, Blocks, Stored, write_watched
from adaptive.storage.durable import Disk
from adaptive.storage.files import JsonObject

PIECES: Final = 64  # a power of two: each is a run of buckets
ALL: Final = range(PIECES)
SMALL_BYTES: Final = 8 << 20  # arrays up to this size are always read into memory

Int64s = NDArray[np.int64]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
LAX: Final = Strict(False)  # of a tuple, which is a list in JSON


def pieces_of(rank: int, size: int) -> range:
    """Return the pieces that hold a rank's rows; neighbor ranks may share the outer ones."""
    return range(rank * PIECES // size, -(-(rank + 1) * PIECES // size))


@dataclass(frozen=True)
class Part:
    """One shard of an array."""

    value: Array | Blocks  # (n, ...) piece after piece, in order of rows within each
    key: str  # name of the array of row numbers (n,), int64; that array is its own key
    counts: Sequence[int]  # (PIECES,) entries of each piece; (1,) for a single process


class Closed(BaseModel):
    """Base of the manifest's models."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PartEntry(Closed):
    """A shard of an array in the manifest."""

    name: str
    key: str
    file: Annotated[str, Field(pattern=r"^shard-[0-9]+-[0-9]+\.npy$")]  # a plain name
    size: Count  # bytes of the file
    dtype: str
    shape: Annotated[tuple[Count, ...], LAX, Field(min_length=1, max_length=64)]
    pieces: list[Annotated[tuple[Count, Annotated[int, Field(ge=1)], Sha256], LAX]]  # number, entries (> 0), digest


def write_parts(folder: Path, number: int, parts: Mapping[str, Part], disk: Disk) -> list[JsonObject]:
    """Write shard `number` and return its JSON for the manifest; raise OSError if that fails."""
    written = [
        {"name": name, **write_part(folder / f"shard-{number}-{place}.npy", part, disk)}
        for place, (name, part) in enumerate(parts.items())
    ]
    disk.sync_directory(folder)
    return written


def write_part(path: Path, part: Part, disk: Disk) -> JsonObject:
    """Write and sync one shard of an array; return its entry for the manifest."""
    pieces = [(number, int(count)) for number, count in enumerate(part.counts) if count]
    total = sum(count for _, count in pieces)
    shape = part.value.shape
    assert shape[0] == total, f"{path.name}: {shape[0]} entries in {total} of pieces"
    entry_bytes = math.prod(shape[1:]) * part.value.dtype.itemsize
    digests = _Digests([count * entry_bytes for _, count in pieces])
    facts = write_watched(path, part.value, disk, digests.see)
    listed = [[number, count, digest] for (number, count), digest in zip(pieces, digests.hexdigests(), strict=True)]
    return {"key": part.key, **facts, "pieces": listed}


class _Digests:
    """Digests of runs of bytes of given lengths, computed while writing."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._left, self._digests = list(lengths), [hashlib.sha256() for _ in lengths]
        self._place = 0

    def see(self, chunk: memoryview) -> None:
        while len(chunk):
            if not self._left[self._place]:
                self._place += 1
                continue
            taken = min(len(chunk), self._left[self._place])
            self._digests[self._place].update(chunk[:taken])
            self._left[self._place] -= taken
            chunk = chunk[taken:]

    def hexdigests(self) -> list[str]:
        assert not any(self._left)
        return [digest.hexdigest() for digest in self._digests]


def open_shards(
    directory: Path, shards: Sequence[Sequence[PartEntry]], wanted: range, *, in_files: bool
) -> Iterator[tuple[str, Array | Stored]]:
    """Yield names and arrays of all shards, in order of rows, for the pieces `wanted`.

    Args:
        directory: of the checkpoint.
        shards: entries of the manifest for each shard.
        wanted: numbers of pieces.
        in_files: leave arrays that may be larger than memory in their files, which stay open. All others are read.

    Raises:
        CheckpointError: if anything is missing or differs from the manifest; names the file.
    """
    tables = [{entry.name: entry for entry in shard} for shard in shards]
    if len(shards) == 1:
        wanted = range(1)
    near = [k for k in range(len(shards)) if set(_pieces_in(k, shards)) & set(wanted)]
    orders: dict[str, Int64s] = {}
    for name in sorted(tables[0], key=lambda name: tables[0][name].key != name):  # keys first
        opened = [_PartFile(directory, tables[k][name], wanted) for k in near]
        key = tables[0][name].key
        if key == name:
            orders[name] = _order(opened)
        merged = Merged(opened, orders[key])
        is_large = len(merged.shape) > 1 and math.prod(merged.shape) * merged.dtype.itemsize > SMALL_BYTES
        yield name, merged if in_files and is_large else merged.read()


def _pieces_in(number: int, shards: Sequence[Any]) -> range:
    """Return the pieces of a shard."""
    return range(1) if len(shards) == 1 else pieces_of(number, len(shards))


class _PartFile:
    """The wanted pieces of a shard's file, with entries numbered from the first of them on.

    Attributes:
        counts: number of entries of each wanted piece.
    """

    def __init__(self, directory: Path, entry: PartEntry, wanted: range) -> None:
        self._file = ArrayFile(directory / entry.file, entry.dtype, entry.shape, entry.size)
        self.dtype, self.widths = self._file.dtype, entry.shape[1:]
        self._first = sum(count for number, count, _ in entry.pieces if number < wanted.start)
        at, counts = self._first, []
        for number, count, digest in entry.pieces:
            if number in wanted:
                self._file.check(at, at + count, digest)
                counts.append(count)
                at += count
        self.counts = np.array(counts, np.int64)

    def read_into(self, array: Array, first: int) -> None:
        self._file.read_into(array, self._first + first)


def _order(files: Sequence[_PartFile]) -> Int64s:
    """Return (n,) positions of ascending rows in the joined files."""
    rows = [np.empty(int(file.counts.sum()), np.int64) for file in files]
    for file, file_rows in zip(files, rows, strict=True):
        file.read_into(file_rows, 0)
    return np.argsort(np.concatenate([np.zeros(0, np.int64), *rows]), kind="stable")


class Merged(Stored):
    """Pieces of several shards as one array, in order of rows.

    Args:
        files: of the shards.
        order: (n,) for each row, the number of its entry in the concatenated files.
    """

    def __init__(self, files: Sequence[_PartFile], order: Int64s) -> None:
        self.dtype, self.shape = files[0].dtype, (len(order), *files[0].widths)
        self._order = order
        counts = np.concatenate([file.counts for file in files])
        self._bounds = np.concatenate([[0], np.cumsum(counts)])  # of all pieces
        starts = np.cumsum([0, *(int(file.counts.sum()) for file in files)])
        self._files = list[tuple[_PartFile, int]]()  # for each piece, its file and where that begins
        for file, start in zip(files, starts[:-1], strict=True):
            self._files += [(file, int(start))] * len(file.counts)

    def read(self, first: int = 0, last: int | None = None) -> Array:
        """Return the entries [first, last), which are consecutive in each piece: one read each."""
        places = self._order[first : len(self._order) if last is None else last]
        by_place = np.argsort(places)
        ascending = places[by_place]
        in_file_order = np.empty((len(places), *self.shape[1:]), self.dtype)
        cuts = np.searchsorted(ascending, self._bounds)
        for piece in np.flatnonzero(np.diff(cuts)):
            begin, end = cuts[piece : piece + 2]
            file, start = self._files[piece]
            file.read_into(in_file_order[begin:end], int(ascending[begin]) - start)
        if len(self._files) == 1:
            return in_file_order
        result = np.empty_like(in_file_order)
        result[by_place] = in_file_order
        return result
