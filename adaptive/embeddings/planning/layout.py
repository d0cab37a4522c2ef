"""`Group`: tables of one width, dtype, learning rate and optimizer, and the numbering of their rows.

Tables are ordered by these (in order of first appearance) and numbered in that order; global rows are
numbered through all tables in the same order. Kernels use *group rows*, counted from the group's first row.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive.config import TableConfig
from adaptive.errors import ConfigError
from adaptive.kernels.planning import books
from adaptive.kernels.vector.bfloat16 import BFLOAT16

TableIndex = tuple[NDArray[np.int64], NDArray[np.int32], int]  # see `kernels.planning.books.table_of`


@dataclass(frozen=True)
class FeatureSlot:
    """One feature of a group."""

    name: str
    position: int  # among the features of a batch
    table: int  # of the group
    column: int  # of the pooled output, -1: not pooled
    mean: bool  # pooled by mean


class Share(Protocol):
    """Rows that are one of `number` shares of larger tables, with the initial values that they have there.

    Each row is one of `number` consecutive rows of the larger table.
    """

    @property
    def number(self) -> int:
        """Number of shares."""

    def places(self, rows: NDArray[np.int64], table_keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """(n,) which of its `number` consecutive rows each row (n,) of tables with keys (n,) is, from 0."""


@dataclass(frozen=True)
class Group:
    """Tables of one width, dtype, rounding, learning rate and optimizer, all with keys or all without."""

    tables: tuple[TableConfig, ...]
    features: tuple[FeatureSlot, ...]  # ordered by table
    first_table: int
    first_row: int
    table_starts: NDArray[np.int64]  # (T + 1,) first row of each table, within the group
    table_keys: NDArray[np.uint64]  # (T,) seeds of initial values
    table_bounds: NDArray[np.float32]  # (T,)
    share: Share | None = None  # of larger tables; None with keys

    @property
    def embedding_dim(self) -> int:
        return self.tables[0].embedding_dim

    @property
    def has_keys(self) -> bool:
        """True if ids are keys, which get rows as they appear."""
        return self.tables[0].keys is not None

    @property
    def lr_scale(self) -> float:
        return self.tables[0].lr_scale

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of stored values; uint16 holds bfloat16."""
        return BFLOAT16 if self.tables[0].dtype == "bfloat16" else np.dtype(np.float32)

    @property
    def rounds_stochastically(self) -> bool:
        """True if updates round rows at random."""
        return self.tables[0].rounding == "stochastic" and self.dtype == BFLOAT16

    @property
    def vector_bytes(self) -> int:
        """Bytes of the values of a row, without state."""
        return self.embedding_dim * self.dtype.itemsize

    @property
    def num_rows(self) -> int:
        return int(self.table_starts[-1])

    @property
    def num_columns(self) -> int:
        return sum(feature.column >= 0 for feature in self.features)

    @property
    def seed_starts(self) -> NDArray[np.int64]:
        """(T + 1,) first of the `seed_rows` of each table."""
        return self.table_starts if self.share is None else self.table_starts * self.share.number

    def seed_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) numbers on which initial values and rounding of rows (n,) depend: those in the larger tables."""
        if self.share is None:
            return rows
        tables = self.tables_of(rows)
        return rows * self.share.number + self.share.places(rows - self.table_starts[tables], self.table_keys[tables])

    # Both conversions may return their argument if the numberings agree.

    def to_global(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) global rows of group rows (n,)."""
        return rows + self.first_row if self.first_row else rows

    def from_global(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) group rows of global rows (n,); out of range for other groups."""
        return rows - self.first_row if self.first_row else rows

    @cached_property
    def feature_columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.bool_]]:
        """(features,) each: positions, columns, tables, and True if pooled by mean."""
        places = [(feature.position, feature.column, feature.table, feature.mean) for feature in self.features]
        positions, columns, tables, means = (np.array(column) for column in zip(*places, strict=True))
        return positions, columns, tables.astype(np.int32), means

    @cached_property
    def pools_in_order(self) -> bool:
        """True if the features are a batch's first ones, in its order, all pooled by sum."""
        return all(
            feature.column >= 0 and not feature.mean and feature.position == place
            for place, feature in enumerate(self.features)
        )

    @cached_property
    def feature_ends(self) -> NDArray[np.int64]:
        """(features, 2): position in the batch of each feature, and of the next one."""
        return np.add.outer(self.feature_columns[0], (0, 1))

    def pooled_bags(self, num_samples: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(bags,) each, read-only: vectors and tables of bags, if all features are pooled.

        They depend on the number of samples only, so the latest ones are cached.
        """
        bags = self._latest_bags.get(num_samples)
        if bags is None:
            _, columns, tables, _ = self.feature_columns
            vectors = np.add.outer(columns, np.arange(num_samples) * self.num_columns).ravel().astype(np.int32)
            bags = vectors, np.repeat(tables, num_samples)
            for array in bags:
                array.flags.writeable = False
            self._latest_bags.clear()
            self._latest_bags[num_samples] = bags
        return bags

    @cached_property
    def _latest_bags(self) -> dict[int, tuple[NDArray[np.int32], NDArray[np.int32]]]:
        return {}

    @cached_property
    def _table_index(self) -> TableIndex:
        return table_index(self.table_starts)

    def tables_of(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """(n,) number in the group of the table of each row."""
        tables = np.empty(len(rows), np.int32)
        books.tables_of(rows, self._table_index, tables)
        return tables

    @cached_property
    def table_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(tables,) number of rows of each, and (tables + 1,) first row of each."""
        return self.table_sizes, self.table_starts

    def count_by_table(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(tables,) number of rows (n,) of each table."""
        return np.bincount(self.tables_of(rows), minlength=len(self.tables))

    @cached_property
    def table_sizes(self) -> NDArray[np.int64]:
        return np.diff(self.table_starts)


def table_index(table_starts: NDArray[np.int64]) -> TableIndex:
    """Index the tables by up to 4,096 ranges of rows."""
    num_rows = int(table_starts[-1])
    shift = max(0, (num_rows - 1).bit_length() - 12)
    firsts = np.arange(0, num_rows, 1 << shift)
    tables = (np.searchsorted(table_starts, firsts, side="right") - 1).astype(np.int32)
    return table_starts, tables, shift


def feature_order(tables: Sequence[TableConfig]) -> tuple[str, ...]:
    """The tables' features, table by table: the order of features in a batch.

    Raises:
        ConfigError: if there is no table, or a table or feature name occurs twice.
    """
    if not tables:
        raise ConfigError("expected at least one TableConfig, got none")
    features = tuple(name for table in tables for name in table.feature_names)
    for kind, names in (("table", [table.name for table in tables]), ("feature", list(features))):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"expected unique {kind} names, got these more than once: {', '.join(twice)}")
    return features


def make_groups(tables: Sequence[TableConfig], seed: int, share: Share | None = None) -> tuple[Group, ...]:
    """Group the tables by width, dtype, rate, and keys; `share`: of those without keys."""
    features = feature_order(tables)
    groups: list[Group] = []
    first_table = first_row = 0
    for kind in dict.fromkeys(map(_kind, tables)):
        members = tuple(table for table in tables if _kind(table) == kind)
        of_larger = None if members[0].keys is not None else share
        groups.append(_make_group(members, features, first_table, first_row, seed, of_larger))
        first_table += len(members)
        first_row += groups[-1].num_rows
    return tuple(groups)


def _kind(table: TableConfig) -> tuple[object, ...]:
    return table.embedding_dim, table.lr_scale, table.dtype, table.rounding, table.keys is not None


def _make_group(
    tables: tuple[TableConfig, ...],
    features: tuple[str, ...],
    first_table: int,
    first_row: int,
    seed: int,
    share: Share | None,
) -> Group:
    starts = np.zeros(len(tables) + 1, np.int64)
    np.cumsum([table.num_rows for table in tables], out=starts[1:])
    bounds = [table.num_embeddings**-0.5 if table.init_bound is None else table.init_bound for table in tables]
    return Group(
        tables=tables,
        features=_feature_slots(tables, features),
        first_table=first_table,
        first_row=first_row,
        table_starts=starts,
        table_keys=np.array([table_key(table.name, seed) for table in tables], np.uint64),
        table_bounds=np.array(bounds, np.float32),
        share=share,
    )


def table_key(name: str, seed: int) -> int:
    """Seed of a table's initial values. It depends on the name only, not on other tables.

    A hash, not a sum: rows are counted by adding, too, and seed 1 must not be seed 0 shifted by one row.
    """
    return int.from_bytes(hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest(), "little")


def _feature_slots(tables: tuple[TableConfig, ...], features: tuple[str, ...]) -> tuple[FeatureSlot, ...]:
    pooled = [name for table in tables if table.pooling != "none" for name in table.feature_names]
    columns = {name: column for column, name in enumerate(sorted(pooled, key=features.index))}
    return tuple(
        FeatureSlot(name, features.index(name), number, columns.get(name, -1), table.pooling == "mean")
        for number, table in enumerate(tables)
        for name in table.feature_names
    )
