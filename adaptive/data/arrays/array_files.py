"""dlrm's processed Criteo files, such as `kaggleAdDisplayChallenge_processed.npz`: `dlrm:PATH[,PATH...]`.

| key | shape | values |
|---|---|---|
| `X_int` | (samples, dense inputs) | numbers |
| `X_cat` | (samples, features) | whole numbers from 0: rows |
| `y` | (samples,) | 0 or 1 |
| `counts` | (features,) | rows of each feature's table |

Arrays are held in memory. Pickled arrays are refused.

MLPerf's binary Criteo files: records of 40 int32, little-endian: label, 13 dense inputs, 26 ids.

As `numpy_to_binary` of facebookresearch/dlrm writes them (`data_loader_terabyte.py`). Records are mapped into memory.

Files of arrays as data sets: `dlrm:PATH[,PATH...]` and `mlperf:PATH[,PATH...]`.

Dense inputs are log(1 + max(x, 0)), as dlrm scales them when it reads these files, whose negative ones are 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.data.arrays.array_source import ArraySource, Columns, Samples, array_format
from adaptive.data.data_options import DataOptions
from adaptive.data.npz import check_array, fits_float32, load_arrays
from adaptive.data.rows.data_files import DataFile, find_files
from adaptive.data.rows.rejects import RejectLog
from adaptive.data.rows.row_dataset import FeaturePlan, RowDataset, RowPlan, RowRule, limits, open_rows
from adaptive.errors import ConfigError, InputError

KEYS = ("X_int", "X_cat", "y", "counts")


@dataclass(frozen=True)
class Processed:
    """The samples of one file; `counts` (F,) are its tables' rows."""

    name: str
    num_bytes: int
    num_rows: int
    columns: Columns
    counts: NDArray[np.int64]

    def rows(self, first: int, last: int) -> Columns:
        found, part = self.columns, slice(first, last)
        return Columns(found.labels[part], found.dense[part], found.keys[part])


def read_processed(file: DataFile) -> Processed:
    """The arrays of a file.

    Raises:
        InputError: if it cannot be read, or an array is missing or not what it should be; names file and key.
    """
    path = file.path
    dense, keys, labels, counts = load_arrays(path, KEYS, "dlrm's")
    check_array(dense.ndim == 2 and dense.dtype.kind in "iuf", path, "X_int", "numbers (samples, dense inputs)", dense)
    check_array(fits_float32(dense), path, "X_int", "finite float32 numbers", dense, "others among them")
    keys = whole(keys, path, "X_cat", "(samples, features)")
    check_array(keys.ndim == 2 and keys.shape[1] > 0, path, "X_cat", "whole numbers (samples, features)", keys)
    check_array(labels.ndim == 1 and labels.dtype.kind in "biuf", path, "y", "numbers (samples,)", labels)
    for key, array in (("X_int", dense), ("y", labels)):
        check_array(len(array) == len(keys), path, key, f"{len(keys)} samples, as X_cat", array)
    counts = checked_counts(counts, keys.shape[1], path)
    return Processed(str(path), file.size, len(keys), Columns(labels, dense, keys), counts)


def checked_counts(counts: NDArray[Any], num_features: int, path: Path) -> NDArray[np.int64]:
    """The rows of each feature's table."""
    counts = whole(counts, path, "counts", "(features,)")
    check_array(
        counts.shape == (num_features,), path, "counts", f"a number for each of {num_features} features", counts
    )
    check_array(int(counts.min()) >= 1, path, "counts", "a row or more for each feature", counts, f"{counts.min()}")
    return counts


def whole(array: NDArray[Any], path: Path, key: str, shape: str) -> NDArray[np.int64]:
    """Whole numbers as such: dlrm's preparation leaves some of them as floats."""
    needed = f"whole numbers {shape}"
    check_array(array.dtype.kind in "iuf", path, key, needed, array)
    largest = int(array.max()) if array.dtype == np.uint64 and array.size else 0
    check_array(largest < 2**63, path, key, f"{needed} below 2^63", array, f"{largest}")
    with np.errstate(invalid="ignore"):
        found = array.astype(np.int64)
    check_array(array.dtype.kind != "f" or bool((found == array).all()), path, key, needed, array, "others among them")
    return found


NUM_DENSE, NUM_FEATURES = 13, 26
RECORD = np.dtype("<i4")
NUMBERS = 1 + NUM_DENSE + NUM_FEATURES


@dataclass(frozen=True)
class Records:
    """The samples of one file."""

    file: DataFile

    @property
    def name(self) -> str:
        return str(self.file.path)

    @property
    def num_bytes(self) -> int:
        return self.file.size

    @property
    def num_rows(self) -> int:
        return self.file.size // (NUMBERS * RECORD.itemsize)

    def rows(self, first: int, last: int) -> Columns:
        try:
            self.file.require_unchanged(self.file.path.stat())
            where = first * NUMBERS * RECORD.itemsize
            found = np.memmap(self.file.path, RECORD, "r", where, (last - first, NUMBERS))
        except OSError as error:
            raise InputError(f"{self.name}: cannot be read ({error.strerror}); check the path") from error
        return Columns(found[:, 0], found[:, 1 : 1 + NUM_DENSE], found[:, 1 + NUM_DENSE :])


def open_records(file: DataFile) -> Records:
    """A file of records.

    Raises:
        InputError: if it has no whole number of them.
    """
    size = NUMBERS * RECORD.itemsize
    if not file.size or file.size % size:
        raise InputError(
            f"{file.path}: {file.size} bytes are no whole number of records of {size} bytes ({NUMBERS} int32: label, "
            f"{NUM_DENSE} dense inputs, {NUM_FEATURES} ids); it is cut off, or another format"
        )
    return Records(file)


def open_processed(paths: str, options: DataOptions, *, run_dir: Path | None = None) -> RowDataset:
    """The data set of `dlrm:PATH[,PATH...]`; see `adaptive.data.open.open_dataset`. Ids are rows."""
    _check_options("dlrm:", options)
    train, files = _files(paths, options)
    found = [read_processed(file) for file in files]
    shapes = [(one.columns.dense.shape[1], one.columns.keys.shape[1]) for one in found]
    for one, shape in zip(found, shapes, strict=True):
        if shape != shapes[0]:
            raise InputError(
                f"{one.name}: {shape[0]} dense inputs and {shape[1]} features, but {found[0].name}: {shapes[0][0]} and "
                f"{shapes[0][1]}"
            )
    rules = _direct(np.max([one.counts for one in found], axis=0), options.id_range)
    return _open("dlrm", (files, train), found, shapes[0], rules, options, run_dir)


def open_mlperf(paths: str, options: DataOptions, *, run_dir: Path | None = None) -> RowDataset:
    """The data set of `mlperf:PATH[,PATH...]`; see `adaptive.data.open.open_dataset`.

    With `counts_path` ids are rows; otherwise they are hashed or get rows by a vocabulary, as Criteo's categories are.
    """
    _check_options("mlperf:", options)
    train, files = _files(paths, options)
    found = [open_records(file) for file in files]
    if options.counts_path is not None:
        if options.vocabulary:
            raise ConfigError(
                "mlperf: counts_path says that ids are rows, so there is no vocabulary; give one of the two"
            )
        (counts,) = load_arrays(options.counts_path, ("counts",), "dlrm's")
        rules = _direct(checked_counts(counts, NUM_FEATURES, options.counts_path), options.id_range)
    else:
        rule = RowRule("fitted", options.min_count) if options.vocabulary else RowRule("hashed", options.hash_rows)
        rules = [rule] * NUM_FEATURES
    return _open("mlperf", (files, train), found, (NUM_DENSE, NUM_FEATURES), rules, options, run_dir)


def _check_options(what: str, options: DataOptions) -> None:
    if options.schema_path is not None or options.time_split is not None:
        raise ConfigError(f"{what} has no schema and no times; remove schema_path and time_split")


def _files(paths: str, options: DataOptions) -> tuple[int, tuple[DataFile, ...]]:
    """How many files are for training, and all of them, those first."""
    train = find_files(paths)
    return len(train), train + (find_files(options.eval_data) if options.eval_data is not None else ())


def _direct(counts: NDArray[np.int64], id_range: int | None) -> list[RowRule]:
    """Ids are rows, of a table of that many, or of `id_range` if that is less."""
    sizes = counts if id_range is None else np.minimum(counts, id_range)
    return [RowRule("direct", int(size), has_missing=False) for size in sizes]


def _open(
    what: str,
    files: tuple[tuple[DataFile, ...], int],
    found: Sequence[Samples],
    shape: tuple[int, int],
    rules: Sequence[RowRule],
    options: DataOptions,
    run_dir: Path | None,
) -> RowDataset:
    names, (everything, num_train) = tuple(one.name for one in found), files
    log = RejectLog(names, limits(options), run_dir and run_dir / "rejects.jsonl", unit="samples")
    source = ArraySource(everything, tuple(found), (array_format(*shape),) * len(found), log, options.id_range)
    features = tuple(FeaturePlan(f"C{i + 1}", f"C{i + 1}", i, False, rule, "int") for i, rule in enumerate(rules))
    identity: dict[str, object] = {"format": what, "rows": rules[0].kind, "rows_setting": [rule.size for rule in rules]}
    identity["id_range"] = options.id_range
    parts = tuple(range(num_train)), tuple(range(num_train, len(found)))
    plan = RowPlan(features, np.ones(shape[0], np.bool_), None, identity)
    return open_rows((source, *parts), plan, options, run_dir=run_dir)
