"""Files of arrays as data sets: `dlrm:PATH[,PATH...]` and `mlperf:PATH[,PATH...]`.

`dlrm` reads processed Criteo files such as `kaggleAdDisplayChallenge_processed.npz`; their arrays are held in memory:

| key | shape | values |
|---|---|---|
| `X_int` | (samples, dense inputs) | numbers |
| `X_cat` | (samples, features) | whole numbers from 0: rows |
| `y` | (samples,) | 0 or 1 |
| `counts` | (features,) | rows of each feature's table |

`mlperf` reads binary Criteo files as `numpy_to_binary` of facebookresearch/dlrm writes them
(`data_loader_terabyte.py`): records of 40 little-endian int32, mapped into memory: label, 13 dense inputs, 26 ids.

Dense inputs become log(1 + max(x, 0)), as dlrm scales them when it reads these files.

`ArraySource` presents samples as rows, so that splits, hashing and vocabularies work as for text. A sample's line is
its number in its file, from 1. Letters: R samples, D dense inputs, F features.
"""

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive.data.data_options import DataOptions
from adaptive.data.kernels import text as kernels
from adaptive.data.rows.data_files import DataFile, find_parts
from adaptive.data.rows.rejects import BadLine, RejectLog
from adaptive.data.rows.row_dataset import FeaturePlan, Opened, RowDataset, RowPlan, RowRule, open_rows
from adaptive.data.rows.row_source import (
    EVERYTHING,
    Block,
    Column,
    Piece,
    Position,
    Reading,
    RowFormat,
    RowReader,
    RowSource,
)
from adaptive.errors import ConfigError, InputError

KEYS = ("X_int", "X_cat", "y", "counts")
NUM_DENSE, NUM_FEATURES = 13, 26
RECORD = np.dtype("<i4")
NUMBERS = 1 + NUM_DENSE + NUM_FEATURES
READ_ROWS = 1 << 14  # samples read from a file at once


class Columns(NamedTuple):
    """Some samples: labels (R,), dense (R, D), keys (R, F), with the dtypes of the file."""

    labels: NDArray[Any]
    dense: NDArray[Any]
    keys: NDArray[Any]

    def take(self, samples: slice | NDArray[np.bool_]) -> "Columns":
        return Columns(self.labels[samples], self.dense[samples], self.keys[samples])


class Samples(Piece, Protocol):
    """The samples of one file."""

    @property
    def num_rows(self) -> int: ...

    @property
    def num_dense(self) -> int: ...

    def rows(self, first: int, last: int) -> Columns:
        """Return the samples [first, last); raise InputError if the file has changed."""


@dataclass(frozen=True)
class ArraySource(RowSource):
    """Files of arrays. Ids are taken modulo `modulo`, unless it is None."""

    READ_ROWS: ClassVar[int] = READ_ROWS
    pieces: tuple[Samples, ...]
    modulo: int | None = None

    def open_reader(self, reading: Reading) -> "ArrayReader":
        assert reading.window == EVERYTHING, "arrays have no times"
        return ArrayReader(self, reading)


class ArrayReader(RowReader):
    """Reads samples; see `RowReader`. Offsets of positions are numbers of samples."""

    def __init__(self, source: ArraySource, reading: Reading) -> None:
        self._source, self._left = source, list(reading.pieces)
        self._piece, self._at = reading.start.file, reading.start.offset
        self._behind = 0  # bytes on disk of the finished files

    def close(self) -> None:
        self._left = []

    def position(self) -> Position:
        return Position(self._piece, self._at, self._at + 1)

    def bytes_read(self) -> int:
        if not self._left or self._piece != self._left[0]:
            return self._behind
        samples = self._source.pieces[self._piece]
        return self._behind + samples.num_bytes * self._at // max(samples.num_rows, 1)

    def read(self, block: Block) -> int:
        row, room = 0, len(block.file_index)
        while row < room and self._left:
            samples = self._source.pieces[self._left[0]]
            if self._piece != self._left[0]:
                self._piece, self._at = self._left[0], 0
            size = min(room - row, samples.num_rows - self._at, READ_ROWS)
            if size:
                row += self._fill(samples.rows(self._at, self._at + size), block, row)
            else:
                self._behind += samples.num_bytes
                self._left.pop(0)
                if not self._left:
                    self._source.log.check()
        block.num_rows = row
        return row

    def _fill(self, samples: Columns, block: Block, first: int) -> int:
        """Write samples with label 0 or 1 to the block from row `first` on; return their number."""
        lines = np.arange(self._at + 1, self._at + len(samples.labels) + 1)
        good = (samples.labels == 0) | (samples.labels == 1)
        bad = []
        for at in np.flatnonzero(~good):
            value = str(samples.labels[at]).encode()
            bad.append(BadLine(int(lines[at]), kernels.CAUSES[kernels.LABEL], "label", value, value))
        if bad:
            lines, samples = lines[good], samples.take(good)
        rows, columns = slice(first, first + len(lines)), block.columns
        columns.labels[rows], columns.dense[rows], columns.lines[rows] = samples.labels, samples.dense, lines
        keys = columns.keys[:, rows]
        keys[...] = samples.keys.T
        if self._source.modulo is not None:
            keys %= self._source.modulo
        columns.present[:, rows] = True
        block.file_index[rows] = self._piece
        self._at += len(good)
        self._source.log.count(self._piece, self._at, bad)
        return len(lines)


def open_dlrm(paths: str, options: DataOptions, run_dir: Path | None) -> RowDataset:
    """Open the data set `dlrm:PATH[,PATH...]`. Ids are rows."""
    files, num_train = find_parts(paths, options.eval_data)
    samples = [read_processed(file) for file in files]
    shapes = [(content.num_dense, content.columns.keys.shape[1]) for content in samples]
    for file, shape in zip(files, shapes, strict=True):
        if shape != shapes[0]:
            raise InputError(
                f"{file.name}: expected {shapes[0][0]} dense inputs and {shapes[0][1]} features, as in "
                f"{files[0].name}, got {shape[0]} and {shape[1]}. Use files of one data set."
            )
    rules = _direct(np.max([content.counts for content in samples], axis=0), options.id_range)
    return _open("dlrm", (files, num_train), samples, rules, options, run_dir)


def open_mlperf(paths: str, options: DataOptions, run_dir: Path | None) -> RowDataset:
    """Open the data set `mlperf:PATH[,PATH...]`.

    With `counts_path` ids are rows. Otherwise they are hashed or mapped by a vocabulary, as Criteo's categories are.
    """
    files, num_train = find_parts(paths, options.eval_data)
    samples = [open_records(file) for file in files]
    if options.counts_path is not None:
        if options.vocabulary:
            raise ConfigError(
                "data mlperf: expected data.counts_path (ids are rows) or data.vocabulary, got both. Remove one."
            )
        (counts,) = load_arrays(options.counts_path, ("counts",), "dlrm")
        rules = _direct(_checked_counts(counts, NUM_FEATURES, options.counts_path), options.id_range)
    else:
        rules = [RowRule.of(options)] * NUM_FEATURES
    return _open("mlperf", (files, num_train), samples, rules, options, run_dir)


def _direct(counts: NDArray[np.int64], id_range: int | None) -> list[RowRule]:
    """Return rules for ids that are rows: `counts` (F,) rows each, at most `id_range`."""
    sizes = counts if id_range is None else np.minimum(counts, id_range)
    return [RowRule("direct", int(size), has_missing=False) for size in sizes]


def _open(
    kind: str,
    files: tuple[tuple[DataFile, ...], int],
    samples: Sequence[Samples],
    rules: Sequence[RowRule],
    options: DataOptions,
    run_dir: Path | None,
) -> RowDataset:
    num_dense = samples[0].num_dense
    dense = (Column(f"I{i + 1}", kernels.DENSE_FLOAT) for i in range(num_dense))
    keys = (Column(f"C{i + 1}", kernels.KEY_INTEGER) for i in range(len(rules)))
    columns = (Column("label", kernels.LABEL_BINARY), *dense, *keys)
    log = RejectLog(tuple(file.name for file in files[0]), options, run_dir, unit="samples")
    source = ArraySource(files[0], tuple(samples), (RowFormat(columns),) * len(samples), log, options.id_range)
    features = tuple(FeaturePlan(f"C{i + 1}", f"C{i + 1}", i, False, rule, "int") for i, rule in enumerate(rules))
    identity = {"format": kind, "rows": rules[0].kind, "rows_setting": [rule.size for rule in rules]}
    plan = RowPlan(features, np.ones(num_dense, np.bool_), None, {**identity, "id_range": options.id_range})
    return open_rows(Opened.of(source, files[1]), plan, options, run_dir=run_dir)


@dataclass(frozen=True)
class Processed:
    """The samples of a file of dlrm; `counts` (F,) are its tables' rows."""

    name: str
    num_bytes: int
    num_rows: int
    columns: Columns
    counts: NDArray[np.int64]

    @property
    def num_dense(self) -> int:
        return int(self.columns.dense.shape[1])

    def rows(self, first: int, last: int) -> Columns:
        return self.columns.take(slice(first, last))


def read_processed(file: DataFile) -> Processed:
    """Load and check the arrays of a file of dlrm.

    Raises:
        InputError: if it cannot be read, or an array is missing or wrong; names file and key.
    """
    path = file.path
    dense, keys, labels, counts = load_arrays(path, KEYS, "dlrm")
    check_array(dense.ndim == 2 and dense.dtype.kind in "iuf", path, "X_int", "numbers (samples, dense inputs)", dense)
    check_array(fits_float32(dense), path, "X_int", "finite float32 numbers", dense, "other numbers")
    keys = _whole(keys, path, "X_cat", "(samples, features)")
    check_array(keys.ndim == 2 and keys.shape[1] > 0, path, "X_cat", "whole numbers (samples, features)", keys)
    check_array(labels.ndim == 1 and labels.dtype.kind in "biuf", path, "y", "numbers (samples,)", labels)
    for key, array in (("X_int", dense), ("y", labels)):
        check_array(len(array) == len(keys), path, key, f"{len(keys)} samples, as in X_cat", array)
    counts = _checked_counts(counts, keys.shape[1], path)
    return Processed(file.name, file.size, len(keys), Columns(labels, dense, keys), counts)


def _checked_counts(counts: NDArray[Any], num_features: int, path: Path) -> NDArray[np.int64]:
    """Return the rows of each feature's table, (F,)."""
    counts = _whole(counts, path, "counts", "(features,)")
    expected = f"a number for each of {num_features} features"
    check_array(counts.shape == (num_features,), path, "counts", expected, counts)
    check_array(int(counts.min()) >= 1, path, "counts", "1 or more for each feature", counts, f"{counts.min()}")
    return counts


def _whole(array: NDArray[Any], path: Path, key: str, shape: str) -> NDArray[np.int64]:
    """Return whole numbers as int64; dlrm's preparation writes some of them as floats."""
    expected = f"whole numbers {shape}"
    check_array(array.dtype.kind in "iuf", path, key, expected, array)
    largest = int(array.max()) if array.dtype == np.uint64 and array.size else 0
    check_array(largest < 2**63, path, key, f"{expected} below 2^63", array, f"{largest}")
    with np.errstate(invalid="ignore"):
        whole = array.astype(np.int64)
    check_array(array.dtype.kind != "f" or bool((whole == array).all()), path, key, expected, array, "fractions")
    return whole


@dataclass(frozen=True)
class Records(DataFile):
    """A file of records of MLPerf."""

    num_dense: ClassVar[int] = NUM_DENSE

    @property
    def num_rows(self) -> int:
        return self.size // (NUMBERS * RECORD.itemsize)

    def rows(self, first: int, last: int) -> Columns:
        try:
            self.require_unchanged(self.path.stat())
            shape = last - first, NUMBERS
            records = np.memmap(self.path, RECORD, "r", first * NUMBERS * RECORD.itemsize, shape)
        except OSError as error:
            raise InputError(f"{self.path}: expected a file, got {error.strerror}. Check the path.") from error
        return Columns(records[:, 0], records[:, 1 : 1 + NUM_DENSE], records[:, 1 + NUM_DENSE :])


def open_records(file: DataFile) -> Records:
    """Return a file of records; raise InputError if its size is not a multiple of theirs."""
    size = NUMBERS * RECORD.itemsize
    if not file.size or file.size % size:
        raise InputError(
            f"{file.path}: expected records of {size} bytes ({NUMBERS} int32: label, {NUM_DENSE} dense inputs, "
            f"{NUM_FEATURES} ids), got {file.size} bytes. The file is truncated, or has another format."
        )
    return Records(file.path, file.size, file.modified)


# --- arrays of .npz files, read without unpickling --------------------------------------------------------------------


def load_arrays(path: Path, wanted: tuple[str, ...], kind: str) -> list[NDArray[Any]]:
    """Return arrays of an `.npz` file, in the order of `wanted`.

    Args:
        kind: program that wrote the file, for messages.

    Raises:
        InputError: if one is missing or cannot be read without unpickling.
    """
    arrays, where = list[NDArray[Any]](), ""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: expected a .npz file of {kind}, got a folder, a pipe or a device. Check the path.")
    try:
        with zipfile.ZipFile(path) as members, np.load(path, allow_pickle=False) as file:
            for key in wanted:
                if f"{key}.npy" not in members.namelist():
                    names = ", ".join(name.removesuffix(".npy") for name in members.namelist())
                    raise InputError(
                        f"{path}: expected arrays {', '.join(wanted)}, got {names}. Check that {kind} wrote the file."
                    )
                where = f"array {key}: "
                arrays.append(file[key])
    except InputError:
        raise
    except (OSError, EOFError, ValueError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"{path}: {where}expected a readable .npz file of {kind}, got an error ({error}). Write the file again."
        ) from error
    return arrays


def fits_float32(array: NDArray[Any]) -> bool:
    """Return True if all numbers are finite as float32."""
    most = np.finfo(np.float32).max
    return not array.size or bool(-most <= array.min() and array.max() <= most)


def check_array(good: bool, path: Path, key: str, expected: str, array: NDArray[Any], got: str = "") -> None:
    """Raise InputError unless `good`; `got` defaults to dtype and shape of the array."""
    if not good:
        got = got or f"{array.dtype} {array.shape}"
        raise InputError(f"{path}: array {key}: expected {expected}, got {got}. Write the file again.")
