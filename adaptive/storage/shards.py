"""Rows of a checkpoint in shards: each rank writes a file of its own for each array of the rows that it owns.

Rows of several ranks are dealt out by their buckets into `PIECES` pieces, of which shard k of W holds a run; its files
hold them piece after piece, in order of rows within each. A process alone writes one shard of one piece. Pieces have
digests of their own: a reader that needs some of them reads and verifies no others, however many shards there are. It
sees one array, in order of rows.

Letters: n entries of all that is read, W shards.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from adaptive.errors import CheckpointError
from adaptive.storage.arrays import Array, ArrayFile, Blocks, Stored, write_watched
from adaptive.storage.durable import Disk
from adaptive.storage.untrusted import JsonObject

PIECES: Final = 64  # a power of two: each is a run of buckets
ALL: Final = range(PIECES)
SMALL_BYTES: Final = 8 << 20  # of an array that is read into memory whatever is asked for

Int64s = NDArray[np.int64]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]


def pieces_of(rank: int, size: int) -> range:
    """The pieces in which a rank's rows lie; it shares the outer ones with its neighbors."""
    return range(rank * PIECES // size, -(-(rank + 1) * PIECES // size))


@dataclass(frozen=True)
class Part:
    """One shard of an array."""

    value: Array | Blocks  # (n, ...) piece after piece, in order of rows within each
    key: str  # name of the array of the rows (n,) themselves, int64, which is its own key
    counts: Sequence[int]  # (PIECES,) entries of each piece; of a process alone (1,)


class PartEntry(BaseModel):
    """A shard of an array in the manifest."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    key: str
    file: Annotated[str, Field(pattern=r"^shard-[0-9]+-[0-9]+\.npy$")]  # a plain name
    size: Count  # bytes of the file
    header_sha256: Sha256  # of the bytes before the values
    dtype: str
    shape: Annotated[tuple[Count, ...], Field(min_length=1, max_length=64)]
    pieces: list[tuple[Count, Annotated[int, Field(ge=1)], Sha256]]  # those with entries: number, entries, digest


def write_parts(folder: Path, number: int, parts: Mapping[str, Part], disk: Disk) -> list[JsonObject]:
    """Write shard `number`; returns what the manifest must say of it, as JSON values.

    Raises:
        OSError: if an operation failed.
    """
    written = [
        {"name": name, **write_part(folder / f"shard-{number}-{place}.npy", part, disk)}
        for place, (name, part) in enumerate(parts.items())
    ]
    disk.sync_directory(folder)
    return written


def write_part(path: Path, part: Part, disk: Disk) -> JsonObject:
    """Write one shard of an array, synced."""
    pieces = [(number, int(count)) for number, count in enumerate(part.counts) if count]
    total = sum(count for _, count in pieces)
    shape = part.value.shape
    assert shape[0] == total, f"{path.name}: {shape[0]} entries in {total} of pieces"
    entry_bytes = math.prod(shape[1:]) * part.value.dtype.itemsize
    digests = _Digests([count * entry_bytes for _, count in pieces])
    facts = write_watched(path, part.value, disk, digests.see)
    listed = [[number, count, digest] for (number, count), digest in zip(pieces, digests.hexdigests(), strict=True)]
    return {"key": part.key, **facts, "header_sha256": digests.header, "pieces": listed}


class _Digests:
    """Digests of consecutive runs of bytes, of given lengths, as they pass, and of the header before them."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._left, self._digests = list(lengths), [hashlib.sha256() for _ in lengths]
        self._place, self.header = 0, ""

    def see(self, chunk: memoryview) -> None:
        if not self.header:
            self.header = hashlib.sha256(chunk).hexdigest()
            return
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
    directory: Path, shards: Sequence[Sequence[PartEntry]], wanted: range, where: Path, *, in_files: bool
) -> Iterator[tuple[str, Array | Stored]]:
    """The arrays of all shards by name, in order of rows, with the entries of the pieces `wanted`, which are verified.

    Args:
        directory: of the checkpoint.
        shards: what the manifest says of each.
        wanted: numbers of pieces.
        where: the manifest, for messages.
        in_files: leave what may be larger than memory in its files. They stay open, one for each shard: all else is
            read now.

    Raises:
        CheckpointError: if anything is missing or differs from the manifest; names the file.
    """
    tables = [{entry.name: entry for entry in shard} for shard in shards]
    _check_alike(shards, tables, where)
    if len(shards) == 1:
        wanted = range(1)
    near = [k for k in range(len(shards)) if set(_pieces_in(k, shards)) & set(wanted)]
    keys: dict[str, tuple[Int64s, list[NDArray[np.int64]]]] = {}
    for name in sorted(tables[0], key=lambda name: tables[0][name].key != name):  # keys first
        opened = [_PartFile(directory, tables[k][name], wanted) for k in near]
        key = tables[0][name].key
        if key == name:
            keys[name] = _order(opened, name)
        order, counts = keys[key]
        if any(one.counts.tolist() != count.tolist() for one, count in zip(opened, counts, strict=True)):
            raise CheckpointError(f"{where}: pieces of {name} hold other numbers of entries than those of {key}")
        merged = Merged(opened, order)
        is_large = len(merged.shape) > 1 and math.prod(merged.shape) * merged.dtype.itemsize > SMALL_BYTES
        yield name, merged if in_files and is_large else merged.read()


def _check_alike(shards: Sequence[Sequence[PartEntry]], tables: Sequence[Mapping[str, PartEntry]], where: Path) -> None:
    """Check that all shards have the same arrays, each with pieces of its own run."""
    files = [entry.file for shard in shards for entry in shard]
    if len(set(files)) < len(files) or any(
        len(table) < len(shard) for table, shard in zip(tables, shards, strict=True)
    ):
        raise CheckpointError(f"{where}: an array or a file of shards stands there twice")
    kinds = [{name: (one.key, one.dtype, one.shape[1:]) for name, one in table.items()} for table in tables]
    if other := [number for number, kind in enumerate(kinds) if kind != kinds[0]]:
        raise CheckpointError(f"{where}: shard {other[0]} holds other arrays than shard 0")
    for number, shard in enumerate(shards):
        for entry in shard:
            _check_entry(entry, kinds[0], _pieces_in(number, shards), where)


def _pieces_in(number: int, shards: Sequence[Any]) -> range:
    """The pieces of a shard."""
    return range(1) if len(shards) == 1 else pieces_of(number, len(shards))


def _check_entry(
    entry: PartEntry, kind: Mapping[str, tuple[str, str, tuple[int, ...]]], own: range, where: Path
) -> None:
    numbers = [number for number, _, _ in entry.pieces]
    if numbers != sorted(set(numbers)) or not set(numbers) <= set(own):
        raise CheckpointError(f"{where}: {entry.file}: expected pieces among {own[0]} to {own[-1]}, found {numbers}")
    if sum(count for _, count, _ in entry.pieces) != entry.shape[0]:
        raise CheckpointError(f"{where}: {entry.file}: pieces of {entry.shape[0]} entries do not add up to these")
    if kind.get(entry.key) != (entry.key, "<i8", ()):
        raise CheckpointError(f"{where}: {entry.file}: {entry.key!r} is needed as an array of rows, and is none")


class _PartFile:
    """The wanted pieces of a shard's file: entries numbered from the first of them on.

    Attributes:
        counts: of the entries of each piece.
    """

    def __init__(self, directory: Path, entry: PartEntry, wanted: range) -> None:
        self.path = directory / entry.file
        self._file = ArrayFile(self.path, entry.dtype, entry.shape, entry.size, entry.header_sha256)
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


def _order(files: Sequence[_PartFile], name: str) -> tuple[Int64s, list[Int64s]]:
    """(n,) where the rows in ascending order stand when the files' entries follow one another; counts of the files'
    pieces."""
    rows = [np.empty(int(file.counts.sum()), np.int64) for file in files]
    for file, own in zip(files, rows, strict=True):
        file.read_into(own, 0)
        falls = np.flatnonzero(np.diff(own) <= 0) + 1
        if not np.isin(falls, np.cumsum(file.counts)).all():
            raise CheckpointError(f"{file.path}: expected {name} in ascending order, found another")
    return np.argsort(np.concatenate([np.zeros(0, np.int64), *rows]), kind="stable"), [file.counts for file in files]


class Merged(Stored):
    """Pieces of several shards as one array, in order of rows.

    Args:
        files: of the shards.
        order: (n,) numbers of entries when those of the files follow one another.
    """

    def __init__(self, files: Sequence[_PartFile], order: Int64s) -> None:
        self.dtype, self.shape = files[0].dtype, (len(order), *files[0].widths)
        self._order = order
        counts = np.concatenate([file.counts for file in files])
        self._bounds = np.concatenate([[0], np.cumsum(counts)])  # of all pieces
        starts = np.cumsum([0, *(int(file.counts.sum()) for file in files)])
        self._reads: list[Callable[[Array, int], None]] = []  # of each piece, its file and where that begins
        for file, start in zip(files, starts, strict=False):
            self._reads += [partial(_read_behind, file, int(start))] * len(file.counts)

    def read(self, first: int = 0, last: int | None = None) -> Array:
        """Of each piece, entries between two rows follow one another: one reading each."""
        places = self._order[first : len(self._order) if last is None else last]
        by_place = np.argsort(places)
        ascending = places[by_place]
        in_file_order = np.empty((len(places), *self.shape[1:]), self.dtype)
        cuts = np.searchsorted(ascending, self._bounds)
        for piece in np.flatnonzero(np.diff(cuts)):
            begin, end = cuts[piece : piece + 2]
            self._reads[piece](in_file_order[begin:end], int(ascending[begin]))
        if len(self._reads) == 1:
            return in_file_order
        result = np.empty_like(in_file_order)
        result[by_place] = in_file_order
        return result


def _read_behind(file: _PartFile, start: int, array: Array, first: int) -> None:
    file.read_into(array, first - start)
