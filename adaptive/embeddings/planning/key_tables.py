"""Tables with keys: which key has which row (`KeyTable`), and the keys of a group of tables (`GroupKeys`).

A key gets a row in the batch in which its lookups reach `TableConfig.admit`, in order of first lookup. It loses the row
when it expires, or to another key if the table is full. All of this follows from the sequence of batches alone, because
keys get rows when a batch is planned, in the planning thread, the only writer. What comes after sees rows.

Row 0 of a table stands for all keys without a row. It is zero at first. Rows 1 ... `num_embeddings` are for keys. Their
numbers are internal: what a key's row contains depends on the seed, the table, the key, and its training.

*Sweeps* find expired keys, before batches whose number is a multiple of `KeyTable.sweep_every`. A row can be freed
while batches in flight use it; `engine.between_batches` waits for them then. So an expiry may be shorter than the
look-ahead, and neither depends on the other.

Letters: U distinct keys or rows of a batch, n keys or rows, T tables of the group.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.arrays import Int32s, Int64s, UInt64s
from adaptive.batch import Batch
from adaptive.config import TableConfig
from adaptive.counters import Counter
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.lookups import Lookups, describe_sample, group_lookups
from adaptive.embeddings.planning.plan import no_rows
from adaptive.errors import ConfigError, InputError
from adaptive.kernels.planning import keys as kernels
from adaptive.kernels.planning.lookups import Distinct
from adaptive.kernels.scratch import ScratchPool, allocate

LastAccess = Callable[[Int64s], Int32s]  # rows (n,) -> latest batch + 1 that looked up each; 0: none

LINES: Final = kernels.LINES  # of the sketch, with a cell for two rows of the table: 1.5 bytes a row
LEAST_CELLS: Final = 1 << 17  # of a line
CELL_BLOCK: Final = 1 << 12  # cells that are saved together
LOAD: Final = 5, 8  # the most rows for places: at 7 of 10, a search takes half as long again
GROWTH: Final = 8  # a full index grows by this fraction of its places: at most 14.4 bytes a row in use
COPIED_AT_ONCE: Final = 1 << 10  # places of an index that grows
LEAST_ROWS: Final = 1 << 10  # with room in an empty index
MOST_ROWS: Final = 2**32 - 1  # of a group: the index has 32 bits for a row
EVICTED_AT_ONCE: Final = 64  # a full table loses this fraction of its keys: looking for them reads every record
SWEPT_AT_ONCE: Final = 1 << 16  # rows
MOST_SWEEPS: Final = 16  # in the time after which a key expires
END_OF_TIME: Final = 253_370_764_800  # seconds: the year 9999
NO_TIME: Final = -1.0  # before any timestamp


class KeyTable:
    """The keys of one table: their sketch, freed rows and clock. For the planning thread.

    Args:
        books: of the group.
        number: of the table in it.
    """

    def __init__(self, books: "KeyBooks", number: int) -> None:
        self.config, self.capacity = books.tables[number], books.tables[number].num_embeddings
        self._books, self._number = books, number
        self.start = int(books.starts[number])
        self._secret = books.secrets[number]
        self.clear()

    def clear(self) -> None:
        """Forget the times of samples and sweeps."""
        self.clock = NO_TIME  # the largest timestamp so far
        self.sweeps: list[tuple[int, float]] = []  # batch number and clock of past sweeps

    @property
    def num_live(self) -> int:
        """Keys that have a row."""
        return int(self._books.num_live[self._number])

    @property
    def num_used(self) -> int:
        """First row that never had a key."""
        return int(self._books.num_used[self._number])

    @property
    def sweep_every(self) -> int:
        """Batches between sweeps, each of which reads the records of all rows: more for larger tables."""
        every = min(max(64, self.capacity >> 16), 1000)
        batches = self.config.expire_batches
        return every if batches is None else max(1, min(every, batches // MOST_SWEEPS))

    # --- time ------------------------------------------------------------------------------------------------

    def latest_time(self, batch: Batch) -> float:
        """Return the latest timestamp of a batch.

        Raises:
            InputError: if timestamps are missing, or no time from 0 to the year 9999.
        """
        name = self.config.name
        times = batch.extras.get("timestamp")
        if times is None or times.ndim != 1:
            got = "none" if times is None else f"shape {times.shape}"
            raise InputError(
                f'table {name!r}: expected Batch.extras["timestamp"] ({batch.num_samples},) with expire='
                f"{self.config.expire!r}, got {got}. Add the samples' times in seconds, or let keys expire by batches."
            )
        outside = np.flatnonzero(~((times >= 0) & (times < END_OF_TIME)))  # NaN, too
        if len(outside):
            raise InputError(
                f"table {name!r}, {describe_sample(batch, int(outside[0]))}: expected a timestamp in seconds from 0 to "
                f"the year 9999, got {times[outside[0]]}. Correct it, or convert it to seconds."
            )
        return float(times.max())

    def check_age(self, latest: float, where: Callable[[], str]) -> None:
        """Check the latest timestamp of the next batch; `where` describes its sample.

        Raises:
            InputError: if it is older than keys that have expired.
        """
        assert self.config.expire_seconds is not None
        if latest + self.config.expire_seconds < self.clock:
            raise InputError(
                f"table {self.config.name!r}, {where()}: expected timestamps at most {self.config.expire} before the "
                f"latest one, {self.clock:.0f}, got {latest:.0f}. Sort the data by time."
            )

    def _threshold(self, number: int) -> int:
        """Note a sweep before batch `number`; keys whose latest batch, counted from 1, is at most this one expire."""
        if self.config.expire_batches is not None:
            return number - self.config.expire_batches
        assert self.config.expire_seconds is not None
        self.sweeps.append((number, self.clock))
        past = [
            place for place, (_, clock) in enumerate(self.sweeps) if clock < self.clock - self.config.expire_seconds
        ]
        if not past:
            return 0
        self.sweeps = self.sweeps[past[-1] :]
        return self.sweeps[0][0]

    # --- keys that come and go -------------------------------------------------------------------------------

    def sweep(self, number: int, last_access: LastAccess) -> Int64s:
        """Free the rows of expired keys, before batch `number`; returns the rows (n,), ascending.

        last_access: rows -> latest batch + 1.
        """
        if number % self.sweep_every or not number:
            return no_rows()
        threshold, expired = self._threshold(number), [no_rows()]
        for first in range(self.start + 1, self.num_used, SWEPT_AT_ONCE):
            rows = np.arange(first, min(first + SWEPT_AT_ONCE, self.num_used))
            latest = last_access(rows)
            expired.append(rows[(latest > 0) & (latest <= threshold)])
        return self._free(np.concatenate(expired))

    def make_room(self, shortage: int, spared: Int64s, last_access: LastAccess) -> Int64s:
        """Free at least `shortage` rows of the keys not looked up for longest, equal ones by key.

        Returns the rows (n,), ascending: fewer if there are no others than `spared`, rows of the table that stay.
        """
        used = last_access(np.arange(self.start, self.num_used)).astype(np.int64)
        used[0] = used[spared - self.start] = 0
        candidates = np.flatnonzero(used > 0)
        count = min(max(shortage, self.capacity // EVICTED_AT_ONCE), len(candidates))
        if count < len(candidates):
            used = used[candidates]
            border = np.partition(used, count - 1)[count - 1]
            older, equal = candidates[used < border], candidates[used == border]
            by_key = np.argsort(self._books.row_keys[self.start + equal], kind="stable")
            candidates = np.sort(np.concatenate([older, equal[by_key[: count - len(older)]]]))
        return self._free(self.start + candidates)

    @property
    def _cells(self) -> NDArray[np.uint8]:
        """(blocks, CELL_BLOCK) the sketch."""
        first, last = self._books.cell_starts[self._number : self._number + 2]
        return self._books.cells[first:last].reshape(-1, CELL_BLOCK)

    def halve_counts(self) -> None:
        """Halve the counts of keys without a row if as many were counted as a line of the sketch has cells."""
        if self._books.counted[self._number] >= _line_cells(self.config):
            cells = self._cells
            cells >>= 1
            self._books.counted[self._number] = 0

    def _free(self, rows: Int64s) -> Int64s:
        books = self._books
        kernels.remove_rows(self.hashes(books.row_keys[rows]), rows, books.places)
        books.first_free[self._number] = kernels.push_free(books.first_free[self._number], books.row_keys, rows)
        books.num_live[self._number] -= len(rows)
        return rows

    def hashes(self, keys: Int64s) -> UInt64s:
        """(n,) hashes of keys (n,)."""
        hashes = np.empty(len(keys), np.uint64)
        kernels.hash_keys(keys, self._secret, hashes)
        return hashes

    def freed_rows(self) -> Int64s:
        """(n,) rows that had a key and have none, in the order in which they are taken."""
        rows = np.empty(self.num_used - self.start - 1 - self.num_live, np.int64)
        last = kernels.list_freed(self._books.first_free[self._number], self._books.row_keys, rows)
        assert last == 0
        return rows

    def live_rows(self) -> Int64s:
        """(n,) rows with a key, ascending."""
        is_live = np.ones(self.num_used - self.start, np.bool_)
        is_live[0] = False
        is_live[self.freed_rows() - self.start] = False
        return self.start + np.flatnonzero(is_live)

    # --- saving ----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything but live rows and their keys, for `restore`.

        Rows are numbered within the table. Of the sketch, it has the blocks that are not zero.
        """
        cells = self._cells
        chosen = np.flatnonzero(cells.any(axis=1))
        return {
            "freed": self.freed_rows() - self.start,
            "used": np.array([self.num_used - self.start, self._books.counted[self._number]], np.int64),
            "clock": np.array([(-1, self.clock), *self.sweeps], np.float64),
            "cell_blocks": chosen,
            "cells": cells[chosen],
        }

    def restore(self, rows: Int64s, keys: Int64s, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore live rows (n,) with their keys (n,), and the result of `state`, in a table without keys."""
        books, number = self._books, self._number
        used, counted = state["used"].tolist()
        books.num_used[number], books.counted[number] = self.start + used, counted
        freed = np.ascontiguousarray(self.start + state["freed"][::-1])
        books.first_free[number] = kernels.push_free(0, books.row_keys, freed)
        (_, self.clock), *sweeps = state["clock"].tolist()
        self.sweeps = [(int(batch), clock) for batch, clock in sweeps]
        if self.config.admit > 1:
            self._cells[state["cell_blocks"]] = state["cells"]
        books.row_keys[rows], books.num_live[number] = keys, len(rows)
        books.insert(self.hashes(keys), rows)


class KeyBooks:
    """Arrays of all tables of a group, for kernels.

    Attributes:
        starts: (T + 1,) first row of each table, which is for keys without a row.
        secrets: (T,) of hashes.
        row_keys: (rows,) key of each row; of a freed row, the row that was freed before it, or 0.
        places: the index, see `kernels.planning.keys`.
        num_live, num_used, first_free, counted: (T,) keys with a row; first row that never had a key; latest freed row,
            or 0; keys counted since counts were halved.
        cells, cell_starts: sketches, see `kernels.planning.keys.count_keys`.
    """

    def __init__(self, tables: Sequence[TableConfig], starts: Int64s, secrets: UInt64s) -> None:
        self.tables, self.starts, self.secrets = tuple(tables), starts, secrets
        if starts[-1] > MOST_ROWS:
            raise ConfigError(
                f"tables {', '.join(table.name for table in tables)}: expected at most {MOST_ROWS:,} rows for keys of "
                f"one width, got {starts[-1]:,}. Lower num_embeddings."
            )
        self.admit = np.array([table.admit for table in tables], np.int64)
        self.cell_starts = np.concatenate([[0], np.cumsum(list(map(_num_cells, tables)))])
        self.row_keys: Int64s = np.zeros(starts[-1], np.int64)
        self.clear()

    def clear(self) -> None:
        """Forget all keys and counts."""
        self.places = np.zeros(_num_places(LEAST_ROWS), np.uint64)
        self.num_live, self.num_used, self.first_free, self.counted = np.zeros((4, len(self.tables)), np.int64)
        self.num_used += self.starts[:-1] + 1
        self.cells = np.zeros(self.cell_starts[-1], np.uint8)

    def insert(self, hashes: UInt64s, rows: Int64s) -> None:
        """Enter rows (n,) with hashes (n,), which are counted as live, into the index."""
        num_live = int(self.num_live.sum())
        if num_live * LOAD[1] > len(self.places) * LOAD[0]:
            places = np.zeros(max(len(self.places) * (GROWTH + 1) // GROWTH, _num_places(num_live)), np.uint64)
            kernels.copy_places(self.places, places, np.empty(COPIED_AT_ONCE, np.uint64))
            self.places = places
        kernels.insert_rows(hashes, rows, self.places)

    @property
    def bytes_in_use(self) -> int:
        """Bytes of index, keys of rows, and sketches, which grow with the number of keys up to `key_bytes`."""
        return self.places.nbytes + 8 * int((self.num_used - self.starts[:-1]).sum()) + self.cells.nbytes


def key_bytes(group: Group) -> int:
    """Bytes of index, keys of rows, and sketches of full tables; 0 without keys."""
    if not group.has_keys:
        return 0
    of_tables = (8 * _num_places(table.num_embeddings) + _num_cells(table) for table in group.tables)
    return 8 * group.num_rows + sum(of_tables)


def _num_cells(table: TableConfig) -> int:
    """Cells of the sketch, in whole blocks."""
    cells = LINES * _line_cells(table) if table.admit > 1 else 0
    return -(-cells // CELL_BLOCK) * CELL_BLOCK


def _line_cells(table: TableConfig) -> int:
    return max(table.num_embeddings // 2, LEAST_CELLS)


def _num_places(num_rows: int) -> int:
    """Places for so many rows at the highest load, and one that is always empty."""
    return num_rows * LOAD[1] // LOAD[0] + 2


@dataclass(frozen=True)
class KeyChanges:
    """Rows that lose and get keys for a batch, of one group; a row may do both.

    Attributes:
        freed: (n,) rows whose keys expired, then those whose keys were evicted for others.
        admitted: (n,) rows that get keys, in order.
        tally: (T, counters), see `Counter`.
        latest_use: the latest batch that looked up a row which loses its key; None if none does.
        is_complete: True if every key of the batch has a row now.
        failure: raised once the changes are committed.
    """

    freed: Int64s
    admitted: Int64s
    tally: Int64s
    latest_use: int | None
    is_complete: bool
    failure: InputError | None


class GroupKeys:
    """The keys of a group of tables.

    `find` may be called by any thread that holds the pipeline's lock, all other methods by the planning thread.

    Attributes:
        row_keys: (rows,) key of each row; meaningless for rows without a key.
        tables: one entry for each table of the group.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.books = KeyBooks(group.tables, group.table_starts, group.table_keys)
        self.tables = [KeyTable(self.books, number) for number in range(len(group.tables))]
        self.row_keys = self.books.row_keys
        self._expiring = [table for table in self.tables if table.config.expire is not None]
        self._timed = [table for table in self._expiring if table.config.expire_seconds is not None]
        # One pool for each kind of array: a pool drops memory that does not fit the next request.
        self._searched, self._merged, self._grouped = ScratchPool(), ScratchPool(), ScratchPool()

    def clear(self) -> None:
        """Forget all keys."""
        self.books.clear()
        for table in self.tables:
            table.clear()

    def live_rows(self) -> Int64s:
        """Return the rows (n,) with a key, ascending."""
        return np.concatenate([table.live_rows() for table in self.tables])

    def count_live(self) -> Int64s:
        """Return the number of keys with a row (T,)."""
        return self.books.num_live.copy()

    def find(self, distinct: Distinct) -> Distinct:
        """Return the distinct rows of distinct keys, none of which gets a row; changes their inverse."""
        rows, absent, _ = self._find(distinct)
        return self._merge(distinct, rows)[0] if len(absent) else distinct._replace(rows=rows)

    def glance(self, distinct: Distinct) -> Distinct:
        """Return the present rows of distinct keys; that of keys without a row may repeat.

        The inverse is that of the keys.
        """
        return distinct._replace(rows=self._find(distinct)[0].copy())

    def rows_of(self, keys: Int64s, table_ends: Int64s) -> Int64s:
        """(n,) present rows of keys (n,), table by table up to `table_ends` (T,), the first one without a row.

        Writes to its own arrays, so that a policy's thread may call it while no batch is planned.
        """
        books, size = self.books, len(keys)
        rows, absent, hashes = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.uint64)
        of_tables = table_ends, books.secrets, books.starts
        kernels.find_keys(keys, *of_tables, hashes, books.places, books.row_keys, rows, absent)
        return rows

    def _find(self, distinct: Distinct) -> tuple[Int64s, Int64s, UInt64s]:
        """(U,) row of each key, the first one of its table without one; (n,) positions of these; (U,) hashes."""
        books, size = self.books, len(distinct.rows)
        rows, absent, hashes = allocate(self._searched, (np.int64, size), (np.int64, size), (np.uint64, size))
        of_tables = distinct.table_ends, books.secrets, books.starts
        index = hashes, books.places, books.row_keys
        count = kernels.find_keys(distinct.rows, *of_tables, *index, rows, absent)
        return rows, absent[:count], hashes

    def prepare(
        self, lookups: Lookups, batch: Batch, number: int, last_access: LastAccess
    ) -> tuple[Lookups, KeyChanges]:
        """Give the keys of the next batch rows. Commit the changes before it is planned (`engine.between_batches`).

        Args:
            lookups: of the batch, with distinct keys instead of rows.
            batch: for its timestamps.
            number: of the batch.
            last_access: rows of the group -> latest batch + 1.

        Raises:
            InputError: for missing or wrong timestamps. Then no key has changed.
        """
        rows, changes = self.give_rows(
            lookups.distinct,
            self.latest_time(batch),
            number,
            last_access,
            lambda: describe_sample(batch, int(batch.extras["timestamp"].argmax())),
        )
        merged = lookups.distinct._replace(rows=rows)
        if not changes.is_complete:
            merged, changes.tally[:, Counter.UNADMITTED_LOOKUPS] = self._merge(lookups.distinct, rows)
        return group_lookups(merged, lookups.bags, self._grouped), changes

    def latest_time(self, batch: Batch) -> float:
        """Return the latest timestamp of a batch; before any if no key expires by time.

        Raises:
            InputError: for missing or wrong timestamps.
        """
        return self._timed[0].latest_time(batch) if self._timed else NO_TIME  # checked once for all tables

    def give_rows(
        self,
        distinct: Distinct,
        latest: float,
        number: int,
        last_access: LastAccess,
        where: Callable[[], str],
    ) -> tuple[Int64s, KeyChanges]:
        """Return the row (U,) of each distinct key of batch `number`, the first one of its table without one.

        Args:
            distinct: the keys.
            latest: timestamp of the batch.
            number: of the batch.
            last_access: rows -> latest batch + 1.
            where: describes the sample with the latest timestamp, for messages.

        Raises:
            InputError: if the timestamp is older than keys that have expired. Then no key has changed.
        """
        for table in self._timed:
            table.check_age(latest, where)
        expired = np.concatenate([no_rows(), *(table.sweep(number, last_access) for table in self._expiring)])
        for table in self._timed:
            table.clock = max(table.clock, latest)
        rows, absent, hashes = self._find(distinct)
        admitted, evicted, failure = no_rows(), no_rows(), None
        if len(absent):
            admitted = self._count(distinct, absent, hashes)
            evicted = self._make_room(distinct, rows, admitted, expired, last_access)
            admitted, refused = self._take(distinct, admitted, hashes, rows)
            failure = self._failure(refused, number)
        freed = np.concatenate([expired, evicted])
        latest_use = int(last_access(freed).max()) - 1 if len(freed) else None
        tally = np.zeros((len(self.tables), len(Counter)), np.int64)
        with_key = rows[admitted]
        counters = Counter.EXPIRED_KEYS, Counter.EVICTED_KEYS, Counter.ADMITTED_KEYS
        for counter, of_batch in zip(counters, (expired, evicted, with_key), strict=True):
            if len(of_batch):
                tally[:, counter] = self._group.count_by_table(of_batch)
        is_complete = len(admitted) == len(absent)
        return rows, KeyChanges(freed, with_key, tally, latest_use, is_complete, failure)

    def _count(self, distinct: Distinct, absent: Int64s, hashes: UInt64s) -> Int64s:
        """Count lookups of keys without a row; returns those of `absent` that reach `admit`."""
        books, admitted = self.books, np.empty(len(absent), np.int64)
        keys, cells = (hashes, absent, distinct.counts, distinct.table_ends), (books.cells, books.cell_starts)
        size = kernels.count_keys(*keys, books.admit, *cells, books.counted, admitted)
        for table in self.tables:
            table.halve_counts()
        return admitted[:size]

    def _make_room(
        self, distinct: Distinct, rows: Int64s, admitted: Int64s, leaving: Int64s, last_access: LastAccess
    ) -> Int64s:
        """Evict keys of full tables for admitted ones; `leaving`: freed rows with records. Returns the rows (n,)."""
        ends = distinct.table_ends
        wanted = np.diff(np.searchsorted(admitted, ends), prepend=0)
        shortages = wanted + self.books.num_live - np.diff(self.books.starts) + 1
        evicted = [no_rows()]
        for number in np.flatnonzero(shortages > 0).tolist():
            table = self.tables[number]
            if table.config.when_full == "evict":
                looked_up = rows[ends[number - 1] if number else 0 : ends[number]]
                of_table = leaving[(leaving >= table.start) & (leaving < self.books.starts[number + 1])]
                spared = np.concatenate([looked_up, of_table])
                evicted.append(table.make_room(int(shortages[number]), spared, last_access))
        return np.concatenate(evicted)

    def _take(self, distinct: Distinct, admitted: Int64s, hashes: UInt64s, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Give admitted keys rows; returns those that got one, and (T,) the number of those that did not."""
        books, refused = self.books, np.zeros(len(self.tables), np.int64)
        keys = distinct.rows, hashes, admitted, distinct.table_ends
        of_tables = books.starts, books.num_live, books.num_used, books.first_free
        count = kernels.take_rows(*keys, *of_tables, books.row_keys, rows, refused)
        admitted = admitted[:count]
        books.insert(hashes[:count], rows[admitted])
        return admitted, refused

    def _failure(self, refused: Int64s, number: int) -> InputError | None:
        """Return the error of the first table that may not be full."""
        for table, count in zip(self.tables, refused.tolist(), strict=True):
            if count and table.config.when_full == "error":
                return InputError(
                    f"table {table.config.name!r}: expected at most {table.capacity} keys, got {count} more in batch "
                    f'{number}. Raise num_embeddings, set expire, or set when_full="evict".'
                )
        return None

    def _merge(self, distinct: Distinct, rows: Int64s) -> tuple[Distinct, Int64s]:
        """Return the distinct rows of keys with rows (U,), and (T,) the lookups of keys without one.

        Changes the inverse of `distinct`.
        """
        size, num_tables = len(rows), len(self.tables)
        merged, counts, group_rows, ends = allocate(
            self._merged, (np.int32, size), (np.int32, size), (np.int64, size), (np.int64, num_tables)
        )
        lookups = np.zeros(num_tables, np.int64)
        keys = rows, distinct.counts, distinct.table_ends, self.books.starts
        size = kernels.merge_unadmitted(*keys, merged, group_rows, counts, ends, lookups)
        kernels.renumber(distinct.inverse, merged)
        return Distinct(group_rows[:size], counts[:size], distinct.inverse, ends), lookups
