"""Map the categories of a file to rows of tables, and turn blocks of rows into batches.

In every mapping, real categories have the first rows of a table. They are followed by the row for ids that are out of
vocabulary or out of range, if there is one, and by the row for missing ids.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, Origin
from adaptive.config import KeyRules
from adaptive.data.data_options import DataOptions
from adaptive.data.kernels import text_rows as kernels
from adaptive.data.rows.row_source import Block
from adaptive.data.rows.vocabularies import KeyKind, Vocabulary
from adaptive.errors import InputError, shown_id

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]

MISSING_KEY: Final = 0xCBF29CE484222325 - 2**64  # FNV-1a of no bytes, the key of the empty text


class RowMap(ABC):
    """The mapping from the keys of one feature to rows."""

    @property
    @abstractmethod
    def num_embeddings(self) -> int:
        """Rows of the table, including those for unknown and missing ids."""

    @abstractmethod
    def fill(self, keys: Ids, present: Flags, out: Ids) -> tuple[int, int]:
        """Write rows (N,) to `out`; return (first key out of range or -1, number of such keys)."""


@dataclass(frozen=True)
class Hashed(RowMap):
    """Rows by a 64-bit hash of the key; different categories may share a row."""

    num_rows: int  # without the row for missing ids, < 2^32

    @property
    def num_embeddings(self) -> int:
        return self.num_rows + 1

    def fill(self, keys: Ids, present: Flags, out: Ids) -> tuple[int, int]:
        kernels.hashed_rows(keys, present, self.num_rows, self.num_rows, out)
        return -1, 0


@dataclass(frozen=True)
class Direct(RowMap):
    """Keys that are rows. Keys out of range go to an extra row if `has_unknown`, else fail."""

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


@dataclass(frozen=True)
class Keyed(RowMap):
    """Keys as they are, for a table that gives them rows; a missing id has the key of the empty text."""

    capacity: int

    @property
    def num_embeddings(self) -> int:
        return self.capacity

    def fill(self, keys: Ids, present: Flags, out: Ids) -> tuple[int, int]:
        np.copyto(out, keys)
        out[~present] = MISSING_KEY
        return -1, 0


class Fitted(RowMap):
    """One row for each key of a vocabulary, and one row for all other keys."""

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
class RowRule:
    """The mapping of categories to rows; `size`: rows, for keys at most, or minimum count of a vocabulary."""

    kind: Literal["direct", "hashed", "fitted", "keyed"]
    size: int
    has_missing: bool = True  # direct only: True if there is a row for missing ids
    keys: KeyRules | None = None  # keyed only

    @classmethod
    def of(cls, options: DataOptions) -> "RowRule":
        """Return the rule for categories without a rule in a schema."""
        if options.keys is not None:
            return cls("keyed", options.keys.capacity, keys=options.keys.rules)
        return cls("fitted", options.min_count) if options.vocabulary else cls("hashed", options.hash_rows)


@dataclass(frozen=True)
class FeaturePlan:
    """A feature before its vocabulary is fitted; features of a table have equal rules."""

    name: str
    table: str
    slot: int
    is_bag: bool
    rule: RowRule
    kind: KeyKind = "string"
    max_length: int | None = None  # of a sequence
    padding: int | None = None  # key that is left out of bags


@dataclass(frozen=True)
class RowPlan:
    """The facts about data that a format provides.

    Attributes:
        transforms: (D,) "none", "log" or "standard" of each dense column, including the weight of samples.
        time_cut: see `split_time`.
        identity: facts that identify the data, in addition to files and options.
        has_times: True if rows have times.
        weight: the dense column that is the weight of samples.
    """

    features: tuple[FeaturePlan, ...]
    transforms: tuple[str, ...]
    time_cut: float | None
    identity: Mapping[str, object]
    has_times: bool = False
    weight: int | None = None


class Batcher:
    """Makes batches from blocks; `out_of_range` counts lookups of the row for unknown ids, `truncated` sequences.

    Args:
        files: names for `Origin`.
        maps: table -> its mapping of keys to rows.
        scales: (D, 2) mean and deviation of dense columns, including the weight of samples; 0 and 1: none.
        has_times: pass times on as `Batch.extras["timestamp"]`, in seconds.
    """

    def __init__(
        self,
        files: tuple[str, ...],
        plan: RowPlan,
        maps: Mapping[str, RowMap],
        scales: NDArray[np.float64],
        *,
        has_times: bool,
    ) -> None:
        self._has_times, self._weight = has_times, plan.weight
        self._files, self._features, self._maps = files, plan.features, maps
        inputs = np.arange(len(plan.transforms)) != (-1 if plan.weight is None else plan.weight)
        self._is_log = np.array([transform == "log" for transform in plan.transforms], np.bool_)[inputs]
        self._scales = scales[inputs]
        self._has_bags = any(feature.is_bag for feature in plan.features)
        self.out_of_range: Counter[str] = Counter()
        self.truncated: Counter[str] = Counter()

    def batches(self, block: Block, size: int) -> Iterator[Batch]:
        """Yield batches of `size` rows of a block; the last one may be smaller.

        Batches share the block's labels, dense inputs and origins, so renew the block before reading into it.

        Raises:
            InputError: if an id is out of range and there is no row for unknown ids.
        """
        n, columns = block.num_rows, block.columns
        origin = Origin(self._files, block.file_index[:n], columns.lines[:n])
        extras: dict[str, NDArray[Any]] = {"timestamp": columns.times[:n].copy()} if self._has_times else {}
        labels, dense = columns.labels[:n], columns.dense[:n]
        if self._weight is not None:
            extras["weight"] = _checked_weights(dense[:, self._weight], origin)
            dense = np.delete(dense, self._weight, axis=1)
        kernels.finish_dense(dense, self._is_log, self._scales)
        if self._has_bags:
            ids, offsets = self._bags(block, origin)
            whole = Batch(
                dense=dense, ids=ids, offsets=offsets, labels=labels, origin=origin, extras=extras
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
                labels=labels[part],
                origin=Origin(self._files, block.file_index[part], columns.lines[part]),
                extras={name: values[part] for name, values in extras.items()},
            ).mark_unshared()

    def _bags(self, block: Block, origin: Origin) -> tuple[Ids, Ids]:
        n, columns = block.num_rows, block.columns
        parts, ends, total = [], [np.zeros(1, np.int64)], 0
        for feature in self._features:
            if feature.is_bag:
                keys, part_ends = bag_column(block, feature.slot, feature.padding)
                if feature.max_length is not None:
                    keys, part_ends, count = keep_latest(keys, part_ends, feature.max_length)
                    self.truncated[feature.name] += count
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
        self, feature: FeaturePlan, keys: Ids, present: Flags, out: Ids, ends: Ids | None, origin: Origin
    ) -> None:
        rows = self._maps[feature.table]
        first, count = rows.fill(keys, present, out)
        if count == 0:
            return
        assert isinstance(rows, Direct)
        if rows.has_unknown:
            self.out_of_range[feature.name] += count
            return
        sample = first if ends is None else int(np.searchsorted(ends, first, side="right"))
        raise InputError(
            f"{origin.where(sample)}: expected an id from 0 to {rows.num_rows - 1} for {feature.name}, got "
            f"{shown_id(int(keys[first]))} (sample {sample} of the batch). Correct num_embeddings or the data, or add "
            "--set data.out_of_range=oov to send such ids to an extra row."
        )


def _checked_weights(column: NDArray[np.float32], origin: Origin) -> NDArray[np.float32]:
    """Return a copy of the weights (n,) of samples; NaN means an empty field.

    Raises:
        InputError: for a weight that is missing, negative or not finite.
    """
    if (bad := ~((column >= 0) & np.isfinite(column))).any():
        first = int(bad.argmax())
        got = "an empty field" if np.isnan(column[first]) else f"{column[first]:g}"
        raise InputError(f"{origin.where(first)}: expected a weight of at least 0, got {got}. Correct the data.")
    return column.copy()


def keep_latest(keys: Ids, ends: Ids, most: int) -> tuple[Ids, Ids, int]:
    """Keep the last `most` keys of each row; return them, the new ends (R,), and the number of rows that had more.

    Args:
        keys: (n,) keys of all rows.
        ends: (R,) end of each row's keys.
    """
    sizes = np.diff(ends, prepend=0)
    too_long = sizes > most
    if not too_long.any():
        return keys, ends, 0
    is_kept = np.repeat(ends, sizes) - np.arange(len(keys)) <= most
    return keys[is_kept], np.cumsum(np.minimum(sizes, most)), int(too_long.sum())


def bag_column(block: Block, slot: int, padding: int | None) -> tuple[Ids, Ids]:
    """Return the keys of a bag feature of a block other than `padding`, and the end of each row's bag (R,) in them."""
    columns = block.columns
    ends, keys = np.empty(len(columns.lines), np.int64), np.empty(0, np.int64)
    total = kernels.gather_bags(columns.bag_keys, columns.bag_ends, block.num_rows, slot, keys, ends)
    if total:
        keys = np.empty(total, np.int64)
        kernels.gather_bags(columns.bag_keys, columns.bag_ends, block.num_rows, slot, keys, ends)
    ends = ends[: block.num_rows]
    if padding is None:
        return keys, ends
    is_kept = keys != padding
    return keys[is_kept], np.concatenate([[0], np.cumsum(is_kept)])[ends]
