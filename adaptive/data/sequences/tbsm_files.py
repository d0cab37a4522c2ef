"""What TBSM's preparation leaves, such as `taobao_train_t20.npz`: arrays of sequences with their labels.

| key | shape | values |
|---|---|---|
| `X_cat` | (features, samples, steps) | whole numbers from 0: rows |
| `X_int` | (dense inputs, samples, steps) | finite numbers |
| `y` | (samples,) | 0 or 1, of the last step |

Three features are user, item and category, others c1, c2, ...; each has a table of as many rows as the largest id of
all files needs. Arrays are held in memory. Pickled arrays are refused.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, Origin
from adaptive.data.data_options import DataOptions
from adaptive.data.npz import check_array, fits_float32, load_arrays
from adaptive.data.rows.data_files import find_parts
from adaptive.data.sequences.sequence_dataset import Part, Samples, SequenceDataset, batch_of, held_out
from adaptive.errors import InputError

KEYS = ("X_cat", "X_int", "y")
TAOBAO = ("user", "item", "category")


def open_tbsm(paths: str, options: DataOptions, run_dir: Path | None) -> SequenceDataset:
    """The data set of `tbsm:PATH[,PATH...]`."""
    files, num_train = find_parts(paths, options.eval_data)
    contents = [read_processed(file.path) for file in files]
    for content in contents[1:]:
        if content.shape != contents[0].shape:
            raise InputError(f"{content.path}: {content.shape}, but {contents[0].path}: {contents[0].shape}")
    train, evaluation = held_out(Processed(contents[:num_train]), options)
    if num_train < len(files):
        evaluation = Part.whole(Processed(contents[num_train:]))
    features, _, steps = contents[0].ids.shape
    names = TAOBAO if features == len(TAOBAO) else [f"c{f + 1}" for f in range(features)]
    rows = np.max([content.ids.max(axis=(1, 2)) for content in contents], axis=0) + 1
    return SequenceDataset(
        dict(zip(names, rows.tolist(), strict=True)),
        train,
        evaluation,
        steps=steps,
        num_dense=len(contents[0].dense),
        identity={"files": [file.fingerprint() for file in files], "format": "tbsm", **options.identity()},
        shuffle=(options.shuffle_buffer, options.seed),
    )


@dataclass(frozen=True)
class Content:
    """The arrays of one file, checked."""

    path: Path
    ids: NDArray[Any]  # (F, N, S)
    dense: NDArray[np.float32]  # (D, N, S)
    labels: NDArray[np.float32]  # (N,)

    @property
    def shape(self) -> str:
        """What must be equal in all files, in words."""
        features, _, steps = self.ids.shape
        return f"{features} features and {len(self.dense)} dense inputs at {steps} steps"


def read_processed(path: Path) -> Content:
    """The arrays of a file.

    Raises:
        InputError: if it cannot be read, or an array is missing or not what it should be; names file and key.
    """
    ids, dense, labels = load_arrays(path, KEYS, "TBSM's", "tbsm: needs")
    check_array(
        ids.ndim == 3 and ids.dtype.kind in "iu", path, "X_cat", "whole numbers (features, samples, steps)", ids
    )
    check_array(
        0 not in ids.shape and ids.shape[2] > 1, path, "X_cat", "at least a feature, a sample and two steps", ids
    )
    check_array(int(ids.min()) >= 0, path, "X_cat", "ids from 0", ids, f"{ids.min()}")
    check_array(int(ids.max()) < 2**63, path, "X_cat", "ids below 2^63", ids, f"{ids.max()}")
    check_array(dense.ndim == 3 and dense.dtype.kind in "iuf", path, "X_int", "numbers (inputs, samples, steps)", dense)
    needed = f"{ids.shape[1]} samples at {ids.shape[2]} steps, as X_cat"
    check_array(dense.shape[1:] == ids.shape[1:], path, "X_int", needed, dense)
    check_array(fits_float32(dense), path, "X_int", "finite float32 numbers", dense, "others among them")
    dense = dense.astype(np.float32)
    check_array(labels.ndim == 1 and labels.dtype.kind in "biuf", path, "y", "numbers (samples,)", labels)
    check_array(len(labels) == ids.shape[1], path, "y", f"{ids.shape[1]} samples, as X_cat", labels)
    check_array(bool(np.isin(labels, (0, 1)).all()), path, "y", "labels 0 and 1", labels, "others among them")
    return Content(path, ids, dense, labels.astype(np.float32))


class Processed(Samples):
    """The samples of some files, one file after another; `Origin` has the number of a sample in its file, from 1."""

    def __init__(self, contents: list[Content]) -> None:
        self._ids = np.concatenate([content.ids for content in contents], axis=1)
        self._dense = np.concatenate([content.dense for content in contents], axis=1)
        self._labels = np.concatenate([content.labels for content in contents])
        self._files = tuple(str(content.path) for content in contents)
        self._starts = np.cumsum([0, *(len(content.labels) for content in contents)])
        self.num_samples = len(self._labels)

    def take(self, wanted: NDArray[np.int64]) -> Batch:
        file = np.searchsorted(self._starts, wanted, side="right") - 1
        return batch_of(
            self._ids[:, wanted].transpose(1, 0, 2).astype(np.int64),
            self._dense[:, wanted].transpose(1, 2, 0),
            self._labels[wanted],
            Origin(self._files, file.astype(np.int32), wanted - self._starts[file] + 1),
        )
