"""dlrm's processed Criteo files, such as `kaggleAdDisplayChallenge_processed.npz`: `dlrm:PATH[,PATH...]`.

| key | shape | values |
|---|---|---|
| `X_int` | (samples, dense inputs) | numbers |
| `X_cat` | (samples, features) | whole numbers from 0: rows |
| `y` | (samples,) | 0 or 1 |
| `counts` | (features,) | rows of each feature's table |

Arrays are held in memory. Pickled arrays are refused.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.data.arrays.source import Columns
from adaptive.data.npz import check_array, fits_float32, load_arrays
from adaptive.data.text.source import TextFile

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


def read_processed(file: TextFile) -> Processed:
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
