"""`Prepared`: the data set `prepared:PATH`, mapped into memory, and its layout.

Every block is verified by its checksum the first time it is read. So damage is found for data of any size, and later
epochs cost nothing. The folder has:

    prepared.json        manifest: shape of the data, files that the samples came from (`Manifest`)
    train.bin            samples in blocks of up to 65,536, each with all columns one after another
    train.index.npy      a row for each block: its offset, bytes, samples, CRC-32, and lookups of each feature
    evaluation.bin, evaluation.index.npy     the evaluation part, if there is one
    vocabulary/          fitted vocabularies, if there are any
    rejects.jsonl        bad lines, if there were any

Letters: n samples of a block, D dense inputs, F features. Each section of a block begins at a multiple of 64 bytes:
labels float32 (n,); dense float32 (n, D); if origins are known, file uint32 (n,) and line int64 (n,); if keys expire by
time, times float64 (n,); if samples have weights, these float32 (n,); then for each feature its ids, in the smallest
unsigned type that holds the table's last row, or int64 keys. Ids are (n,) if every sample has one lookup. Otherwise
they follow uint32 (n,), the end of each sample's lookups.
"""

import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from adaptive.batch import Batch, Origin, concatenate
from adaptive.config import Config
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset, DataShape, mapping_of
from adaptive.data.rows.data_files import DataFile
from adaptive.data.sampling import in_blocks
from adaptive.errors import CheckpointError, InputError
from adaptive.storage.arrays import read_array
from adaptive.storage.files import checked, read_json

MANIFEST: Final = "prepared.json"
FORMAT: Final = 2
AGAIN: Final = "Prepare the data again: adaptive-train prepare."
ALIGNMENT: Final = 64
MOST_ROWS: Final = 1 << 16
_MOST_VALUES: Final = 1 << 24  # of a block, so that it takes at most 128 MiB

# Columns of an index. They are followed by one for each feature: its number of lookups, or SINGLE.
OFFSET, SIZE, ROWS, CHECKSUM, FIRST_FEATURE = range(5)
SINGLE: Final = -1  # every sample has one lookup
_EXTRAS: Final = {"timestamp": "<f8", "weight": "<f4"}
_AGAIN = f"The file is damaged or of another data set. {AGAIN}"

Index = NDArray[np.int64]


class StoredPart(Config):
    """The samples of a part, and size and digest of its index."""

    samples: int = Field(ge=0)
    bytes: int = Field(ge=0, description="of the file of blocks")
    blocks: int = Field(ge=0)
    index_bytes: int = Field(ge=0)
    index_sha256: str


class Manifest(Config):
    """The content of prepared.json."""

    format: int
    shape: DataShape
    extras: tuple[Literal["timestamp", "weight"], ...] = Field(description="arrays of `Batch.extras`")
    files: tuple[str, ...] | None = Field(description="names of files for the origin of samples; null: not known")
    train: StoredPart
    evaluation: StoredPart | None
    rejects: dict[str, int]
    data: str
    fingerprint: dict[str, object]


def id_type(rows: int) -> np.dtype[Any]:
    """Return the smallest unsigned type that holds the rows [0, rows)."""
    return next(np.dtype(kind) for kind in ("u1", "u2", "u4", "u8") if rows <= 2 ** (8 * np.dtype(kind).itemsize))


def block_samples(values: int) -> int:
    """Return the samples of a block; `values` are dense inputs and lookups of a sample."""
    return max(1024, min(MOST_ROWS, _MOST_VALUES // max(values, 1)))


def load_manifest(folder: Path) -> Manifest:
    """Return the content of prepared.json in a folder.

    Raises:
        InputError: if it is missing, damaged, or of another version.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise InputError(f"{folder}: expected prepared data, got a folder without {MANIFEST}. {AGAIN}")
    content = read_json(path, {"format": FORMAT}, advice=AGAIN, error=InputError)
    return checked(Manifest, content, str(path), error=InputError)


@dataclass(frozen=True)
class Section:
    """An array of a block: its offset in the block, its type and its number of values."""

    start: int
    dtype: np.dtype[Any]
    count: int

    def of(self, block: NDArray[np.uint8]) -> NDArray[Any]:
        """Return a view of the array in a block."""
        return block[self.start : self.start + self.count * self.dtype.itemsize].view(self.dtype)


@dataclass(frozen=True)
class BlockLayout:
    """The positions of a block's arrays; `columns` by name. `ends[f]` is None for one lookup in each sample."""

    columns: dict[str, Section]
    ends: tuple[Section | None, ...]
    ids: tuple[Section, ...]
    size: int

    @classmethod
    def of(cls, manifest: Manifest, samples: int, lookups: NDArray[np.int64]) -> "BlockLayout":
        """Return the layout for these samples. `lookups` (F,): of each feature, or SINGLE."""
        at, shape = 0, manifest.shape

        def section(kind: str | np.dtype[Any], count: int) -> Section:
            nonlocal at
            placed = Section(at, np.dtype(kind), count)
            at = -(-(at + count * placed.dtype.itemsize) // ALIGNMENT) * ALIGNMENT
            return placed

        columns = {"labels": section("<f4", samples), "dense": section("<f4", samples * shape.num_dense)}
        if manifest.files is not None:
            columns |= {"file": section("<u4", samples), "line": section("<i8", samples)}
        columns |= {name: section(_EXTRAS[name], samples) for name in manifest.extras}
        ends, ids = list[Section | None](), []
        for feature, table, count in zip(shape.features, shape.tables, lookups.tolist(), strict=True):
            ends.append(None if count == SINGLE else section("<u4", samples))
            kind = np.dtype("i8") if table in shape.key_rules else id_type(feature.num_embeddings)
            ids.append(section(kind.newbyteorder("<"), samples if count == SINGLE else count))
        return cls(columns, tuple(ends), tuple(ids), at)


def open_prepared(path: str, options: DataOptions, run_dir: Path | None) -> "Prepared":
    """Open the data set `prepared:PATH`."""
    folder = Path(path).expanduser()
    other = None if options.eval_data is None else Path(options.eval_data).expanduser()
    return Prepared(folder, options, evaluation=other)


class Prepared(Dataset):
    """A prepared data set, with the batches of the original one in the same order.

    Args:
        evaluation: folder of other prepared data; all their samples are the evaluation part.

    Raises:
        InputError: if files are missing, truncated or damaged: at once, or when the damaged samples are read. Also if
            the data to evaluate on have other rows.
    """

    def __init__(self, folder: Path, options: DataOptions, *, evaluation: Path | None = None) -> None:
        self._folder, self._manifest = folder, load_manifest(folder)
        for fact in fields(DataShape):
            setattr(self, fact.name, getattr(self._manifest.shape, fact.name))
        self._shuffle_buffer, self._seed = options.shuffle_buffer, options.seed
        self._train = _Part(folder, "train", self._manifest, self._manifest.train)
        other = folder if evaluation is None else evaluation
        manifest = self._manifest if other == folder else load_manifest(other)
        if _rows_of(manifest) != _rows_of(self._manifest):
            raise InputError(
                f"{other}: expected data with the features and rows of {folder}, got others. Prepare both by the same "
                "schema and vocabulary (data.vocabulary_path)."
            )
        names = ("evaluation",) if evaluation is None else ("train", "evaluation")
        parts = [(name, stored) for name in names if (stored := getattr(manifest, name)) is not None]
        self._evaluation = [_Part(other, name, manifest, stored) for name, stored in parts]
        self._eval_folder, self._eval_files = other, [f"{name}.bin" for name, _ in parts]

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        """Return batches of the training part."""
        read = self._train.batches
        return in_blocks(read, batch_size, shuffle_buffer=self._shuffle_buffer, seed=self._seed, epoch=epoch)

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        """Return batches of the evaluation part."""
        return chain.from_iterable(part.batches(batch_size) for part in self._evaluation)

    def num_train_samples(self) -> int:
        return self._manifest.train.samples

    def fingerprint(self) -> dict[str, object]:
        """Return path, size and SHA-256 of every file, and the settings that order samples."""
        paths = [self._folder / MANIFEST, self._folder / "train.bin"]
        if self._eval_folder != self._folder:
            paths.append(self._eval_folder / MANIFEST)
        paths += [path for name in self._eval_files if (path := self._eval_folder / name) not in paths]
        files = [DataFile.of(path, path.stat()).fingerprint() for path in paths]
        shuffle = {"shuffle_buffer": self._shuffle_buffer, "seed": self._seed}
        return {"format": "prepared", "files": files, "mapping": _mapping(self._manifest), **shuffle}

    def rejects(self) -> dict[str, int]:
        """Lines that were bad when the data were prepared, by cause."""
        return self._manifest.rejects


def _mapping(manifest: Manifest) -> dict[str, Any]:
    """Return how values became rows; of formats that do not say, all that identifies the original data."""
    return mapping_of(manifest.fingerprint) or manifest.fingerprint


def _rows_of(manifest: Manifest) -> tuple[object, ...]:
    return replace(manifest.shape, key_rules={}, keep_negatives=1.0), _mapping(manifest)


class _Part:
    """The samples of one part."""

    def __init__(self, folder: Path, name: str, manifest: Manifest, stored: StoredPart) -> None:
        self._path, self._manifest = folder / f"{name}.bin", manifest
        self._index = _load_index(folder / f"{name}.index.npy", stored, len(manifest.shape.features))
        self._starts = np.concatenate([[0], np.cumsum(self._index[:, ROWS])])
        self._data = self._map(stored.bytes)
        self._checked = np.zeros(len(self._index), np.bool_)
        self._latest: tuple[int, BlockLayout] | None = None  # number and layout of a block

    def _map(self, size: int) -> NDArray[np.uint8]:
        try:
            with open(self._path, "rb") as file:
                self._file = DataFile.of(self._path, os.fstat(file.fileno()))
                if self._file.size != size:
                    raise InputError(f"{self._path}: expected {size} bytes, got {self._file.size}. {_AGAIN}")
                return np.asarray(np.memmap(file, np.uint8, "r")) if size else np.empty(0, np.uint8)
        except OSError as error:
            raise InputError(f"{self._path}: expected a regular file, got {error.strerror}. {_AGAIN}") from error

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield batches of `size` samples; the last one may be smaller.

        Raises:
            InputError: if the file was written to since it was opened, since blocks are verified only once.
        """
        with suppress(FileNotFoundError):  # a removed file can still be read while it is mapped
            self._file.require_unchanged(self._path.stat())
        stop = int(self._starts[-1])
        for first in range(0, stop, size):
            yield self._samples(first, min(first + size, stop))

    def _samples(self, first: int, stop: int) -> Batch:
        """Return the samples [first, stop), which may be in several blocks."""
        block, last = (int(at) for at in np.searchsorted(self._starts, [first, stop - 1], side="right") - 1)
        cuts = [first, *self._starts[block + 1 : last + 1].tolist(), stop]
        return concatenate(
            [
                self._of_block(number, cut - int(self._starts[number]), end - int(self._starts[number]))
                for number, cut, end in zip(range(block, last + 1), cuts[:-1], cuts[1:], strict=True)
            ]
        )

    def _of_block(self, number: int, first: int, stop: int) -> Batch:
        entry, files = self._index[number], self._manifest.files
        data = self._data[entry[OFFSET] : entry[OFFSET] + entry[SIZE]]
        if not self._checked[number]:
            if zlib.crc32(data.data) != entry[CHECKSUM]:
                raise InputError(f"{self._path}: expected the checksum of block {number}, got another. {_AGAIN}")
            self._checked[number] = True
        if (latest := self._latest) is None or latest[0] != number:
            latest = number, BlockLayout.of(self._manifest, int(entry[ROWS]), entry[FIRST_FEATURE:])
            self._latest = latest
        _, layout = latest
        columns = {name: section.of(data) for name, section in layout.columns.items()}
        origin = None
        if files is not None:
            file_index, lines = columns["file"][first:stop], columns["line"][first:stop]
            origin = Origin(files, file_index.astype(np.int32), lines.astype(np.int64))
        ids, offsets = _lookups(layout, data, first, stop)
        return Batch(
            dense=columns["dense"].reshape(int(entry[ROWS]), -1)[first:stop].copy(),
            ids=ids,
            offsets=offsets,
            labels=columns["labels"][first:stop].copy(),
            origin=origin,
            extras={name: columns[name][first:stop].copy() for name in self._manifest.extras},
        ).mark_unshared()


def _lookups(
    layout: BlockLayout, data: NDArray[np.uint8], first: int, stop: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ids and offsets of the samples [first, stop) of a block."""
    features, rows = len(layout.ids), stop - first
    if all(section is None for section in layout.ends):
        ids = np.empty((features, rows), np.int64)
        for out, section in zip(ids, layout.ids, strict=True):
            out[:] = section.of(data)[first:stop]
        return ids.reshape(-1), np.arange(ids.size + 1, dtype=np.int64)
    parts, ends, total = list[NDArray[np.int64]](), [np.zeros(1, np.int64)], 0
    for section, end_section in zip(layout.ids, layout.ends, strict=True):
        begin, end, stops = first, stop, np.arange(1, rows + 1, dtype=np.int64)
        if end_section is not None:
            stops = end_section.of(data)[first:stop].astype(np.int64)
            begin = int(end_section.of(data)[first - 1]) if first else 0
            end, stops = int(stops[-1]), stops - begin
        parts.append(section.of(data)[begin:end].astype(np.int64))
        ends.append(stops + total)
        total += end - begin
    return np.concatenate(parts), np.concatenate(ends)


def _load_index(path: Path, stored: StoredPart, features: int) -> Index:
    shape = (stored.blocks, FIRST_FEATURE + features)
    try:
        return read_array(path, "<i8", shape, stored.index_bytes, stored.index_sha256)
    except CheckpointError as error:
        raise InputError(f"{error}. {AGAIN}") from error
