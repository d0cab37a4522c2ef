"""Which row of its table a category of a file looks up, and how blocks of text rows become batches.

Whatever the mapping, real categories own the first rows of a table, and what is no real category has a row of its
own behind them: out of vocabulary or out of range first, missing last.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, Origin
from adaptive.data.kernels import text_rows as kernels
from adaptive.data.rows.row_source import Block
from adaptive.data.rows.vocabularies import Vocabulary
from adaptive.errors import InputError

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]


class RowMap(ABC):
    """Maps the keys of one feature to rows."""

    @property
    @abstractmethod
    def num_embeddings(self) -> int:
        """Rows the table needs, those for unknown and missing ids included."""

    @abstractmethod
    def fill(self, keys: Ids, present: Flags, out: Ids) -> tuple[int, int]:
        """Write rows to `out` -> (position of the first key out of range or -1, how many there are)."""


@dataclass(frozen=True)
class Hashed(RowMap):
    """Rows by a 64-bit hash of the key; different categories may share a row."""

    num_rows: int  # without the one for missing, < 2^32

    @property
    def num_embeddings(self) -> int:
        return self.num_rows + 1

    def fill(self, keys: Ids, present: Flags, out: Ids) -> tuple[int, int]:
        kernels.hashed_rows(keys, present, self.num_rows, self.num_rows, out)
        return -1, 0


@dataclass(frozen=True)
class Direct(RowMap):
    """Keys are rows. Those out of range have a row of their own if `has_unknown`, else they are an error."""

    num_rows: int
    has_unknown: bool = False
    has_missing: bool = True

    @property
    def num_embeddings(self) -> int:
        return self.num_rows + self.has_unknown + self.has_missing

    def fill(self, keys: Ids, present: Flags, out: Ids) -> tuple[int, int]:
        missing_row = self.num_rows + self.has_unknown
        first, count = kernels.direct_rows(keys, present, self.num_rows, missing_row, self.num_rows, out)
        return int(first), int(count)


class Fitted(RowMap):
    """Keys of a vocabulary have a row each, all others one together."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._keys, self._rows = vocabulary.hash_table()
        self._unknown_row = len(vocabulary.keys)

    @property
    def num_embeddings(self) -> int:
        return self._unknown_row + 2

    def fill(self, keys: Ids, present: Flags, out: Ids) -> tuple[int, int]:
        missing_row = self._unknown_row + 1
        kernels.fitted_rows(keys, present, self._keys, self._rows, missing_row, self._unknown_row, out)
        return -1, 0


@dataclass(frozen=True)
class FeatureSource:
    """Where a feature comes from: output column `slot` of the keys or, for `is_bag`, of the bags."""

    name: str
    table: str
    slot: int
    is_bag: bool
    rows: RowMap


@dataclass(frozen=True)
class LabelSource:
    """A further label: its name, its place among the dense columns, and from where on it is 1; None: it is 0 or 1."""

    name: str
    slot: int
    threshold: float | None = None

    def values(self, column: NDArray[np.float32], origin: Origin) -> NDArray[np.float32]:
        """(n,) labels of what stands in the column, NaN where it is empty.

        Raises:
            InputError: for a value that makes no label.
        """
        is_label = ~np.isnan(column) if self.threshold is not None else (column == 0) | (column == 1)
        if not is_label.all():
            first = int(np.argmin(is_label))
            needed = "a number" if self.threshold is not None else "0 or 1"
            got = "nothing" if np.isnan(column[first]) else f"{column[first]:g}"
            raise InputError(f"{origin.where(first)}: label {self.name!r} must be {needed}, found {got}")
        return column.copy() if self.threshold is None else (column >= self.threshold).astype(np.float32)


class Batcher:
    """Makes batches of blocks. `out_of_range` counts look-ups that were sent to the row for unknown ids.

    Args:
        files: names for `Origin`.
        is_log: dense columns that are scaled by log(1 + max(x, 0)), further labels among them.
        labels: the further labels.
    """

    def __init__(
        self,
        files: tuple[str, ...],
        features: tuple[FeatureSource, ...],
        is_log: Flags,
        labels: tuple[LabelSource, ...] = (),
    ) -> None:
        self._labels = labels
        taken = {label.slot for label in labels}
        self._inputs = [slot for slot in range(len(is_log)) if slot not in taken]  # columns that are dense inputs
        self._files = files
        self._features = features
        self._is_log = is_log
        self._has_bags = any(feature.is_bag for feature in features)
        self.out_of_range: Counter[str] = Counter()

    def batches(self, block: Block, size: int) -> Iterator[Batch]:
        """Batches of `size` rows of a block, of which the last one may have fewer. Takes the block's labels, dense and
        origin arrays over: renew the block.

        Raises:
            InputError: if an id is out of range and has no row to go to.
        """
        n, columns = block.num_rows, block.columns
        origin = Origin(self._files, block.file_index[:n], columns.lines[:n])
        extras = {label.name: label.values(columns.dense[:n, label.slot], origin) for label in self._labels}
        dense = columns.dense[:n] if not self._labels else columns.dense[:n].take(self._inputs, axis=1)
        kernels.finish_dense(dense, self._is_log if not self._labels else self._is_log[self._inputs])
        if self._has_bags:
            ids, offsets = self._bags(block, origin)
            whole = Batch(
                dense=dense, ids=ids, offsets=offsets, labels=columns.labels[:n], origin=origin, extras=extras
            ).mark_unshared()
            parts = np.split(np.arange(n), range(size, n, size))
            yield from [whole] if n <= size else (whole.take(part) for part in parts)
            return
        rows = np.empty((len(self._features), n), np.int64)
        for out, feature in zip(rows, self._features, strict=True):
            keys, present = columns.keys[feature.slot, :n], columns.present[feature.slot, :n]
            self._fill(feature, keys, present, out, None, origin)
        for first in range(0, n, size):
            part = slice(first, min(first + size, n))
            ids = rows if n == size else np.ascontiguousarray(rows[:, part])
            yield Batch(
                dense=dense[part],
                ids=ids.reshape(-1),
                offsets=np.arange(ids.size + 1, dtype=np.int64),
                labels=columns.labels[part],
                origin=Origin(self._files, block.file_index[part], columns.lines[part]),
                extras={name: values[part] for name, values in extras.items()},
            ).mark_unshared()

    def _bags(self, block: Block, origin: Origin) -> tuple[Ids, Ids]:
        n, columns = block.num_rows, block.columns
        parts, ends, total = [], [np.zeros(1, np.int64)], 0
        for feature in self._features:
            if feature.is_bag:
                keys, part_ends = bag_column(block, feature.slot)
                present = np.ones(len(keys), np.bool_)
            else:
                keys, present = columns.keys[feature.slot, :n], columns.present[feature.slot, :n]
                part_ends = np.arange(1, n + 1, dtype=np.int64)
            rows = np.empty(len(keys), np.int64)
            self._fill(feature, keys, present, rows, part_ends, origin)
            parts.append(rows)
            ends.append(part_ends + total)
            total += len(rows)
        return np.concatenate(parts), np.concatenate(ends)

    def _fill(
        self, feature: FeatureSource, keys: Ids, present: Flags, out: Ids, ends: Ids | None, origin: Origin
    ) -> None:
        first, count = feature.rows.fill(keys, present, out)
        if count == 0:
            return
        assert isinstance(feature.rows, Direct)
        if feature.rows.has_unknown:
            self.out_of_range[feature.name] += count
            return
        sample = first if ends is None else int(np.searchsorted(ends, first, side="right"))
        raise InputError(
            f"feature {feature.name}: id {keys[first]} of sample {sample} of the batch ({origin.where(sample)}) is not "
            f"in [0, {feature.rows.num_rows}); correct num_embeddings or the data, or give "
            "--set data.out_of_range=oov, which sends such ids to a row of their own"
        )


def bag_column(block: Block, slot: int) -> tuple[Ids, Ids]:
    """One bag feature of a block -> its keys, and where the bag of each row ends, (R,)."""
    columns = block.columns
    ends = np.empty(len(columns.lines), np.int64)
    none = np.empty(0, np.int64)
    total = kernels.gather_bags(columns.bag_keys, columns.bag_ends, block.num_rows, slot, none, ends)
    keys = np.empty(total, np.int64)
    if total:
        kernels.gather_bags(columns.bag_keys, columns.bag_ends, block.num_rows, slot, keys, ends)
    return keys, ends[: block.num_rows]
