"""Index, sketch and freed rows of tables with keys, against a dict and slow twins."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.config import TableConfig
from adaptive.counters import Counter
from adaptive.embeddings.planning.key_tables import LEAST_CELLS, LINES, LOAD, GroupKeys
from adaptive.embeddings.planning.layout import make_groups, table_key
from adaptive.embeddings.planning.lookups import DistinctFinder
from adaptive.kernels.planning import keys as kernels
from adaptive.kernels.planning.lookups import Distinct

Int64s = NDArray[np.int64]
EXTREMES = [-(2**63), 2**63 - 1, 0, -1]
KEYS = st.one_of(st.sampled_from(EXTREMES), st.integers(-(2**63), 2**63 - 1))


class Table:
    """Keys of one table with the latest batch of each row, as the engine keeps it."""

    def __init__(self, capacity: int = 8, seed: int = 7, **options: Any) -> None:
        settings = {"name": "item", "num_embeddings": capacity, "embedding_dim": 4, "keys": "int64"} | options
        (self.group,) = make_groups([TableConfig.model_validate(settings)], seed)
        self.keys = GroupKeys(self.group)
        self.table, self.books = self.keys.tables[0], self.keys.books
        self.last_access = np.zeros(capacity + 1 if capacity < 10**8 else 1, np.int32)
        self.latest = self.last_access.__getitem__

    def batch(self, number: int, keys: Sequence[int] | Int64s) -> dict[int, int]:
        """The row of each key, 0 without one, after batch `number` of one bag."""
        values = np.asarray(keys, np.int64), [0, len(keys)]
        batch = Batch.of(item=values, labels=[1.0], extras={"timestamp": [0.0]})
        lookups = DistinctFinder(self.group).find_lookups(batch)
        lookups, changes = self.keys.prepare(lookups, batch, number, self.latest)
        self.last_access[changes.freed] = 0
        assert not self.last_access[changes.admitted].any() and len(set(changes.admitted)) == len(changes.admitted)
        rows = lookups.distinct.rows
        assert len(np.unique(rows)) == len(rows) and lookups.distinct.counts.sum() == len(keys)
        self.last_access[rows[rows > 0]] = number + 1
        self.check()
        return dict(zip(batch.ids.tolist(), rows[lookups.distinct.inverse].tolist(), strict=True))

    def check(self) -> None:
        """The index finds each live key in its row, and nothing else is in it."""
        live, books = self.table.live_rows(), self.books
        assert len(live) == self.table.num_live == np.count_nonzero(books.places)
        assert self.find(books.row_keys[live]).tolist() == live.tolist()
        assert len(live) * LOAD[1] <= len(books.places) * LOAD[0]
        assert len(live) + len(self.table.freed_rows()) == self.table.num_used - 1
        assert not np.intersect1d(live, self.table.freed_rows()).size

    def find(self, keys: Int64s) -> Int64s:
        """The present row of each of distinct keys."""
        distinct = Distinct(
            keys, np.ones(len(keys), np.int32), np.arange(len(keys), dtype=np.int32), np.array([len(keys)])
        )
        return self.keys.glance(distinct).rows


BATCHES = st.lists(st.lists(st.one_of(st.integers(0, 30), KEYS), unique=True, max_size=12), max_size=20)


@settings(deadline=None)
@given(
    BATCHES,
    st.integers(1, 20),
    st.sampled_from([None, 1, 3, 40]),
    st.integers(0, 2**62),
)
def test_keys_that_come_and_go(batches: list[list[int]], capacity: int, expire: int | None, seed: int) -> None:
    """The same keys as in the slow twin have rows after every batch; keys keep their row while they have one."""
    table = Table(capacity, seed, expire=expire)
    book = reference.KeyBook(table.table.config, table.table.sweep_every)
    before: dict[int, int] = {}
    for number, keys in enumerate(batches):
        rows, slow = table.batch(number, keys), book.look_up(number, keys)
        assert [row > 0 for row in rows.values()] == [row > 0 for row in slow]
        live = table.table.live_rows()
        now = dict(zip(table.books.row_keys[live].tolist(), live.tolist(), strict=True))
        assert set(now) == set(book.rows)
        assert all(now[key] == row for key, row in before.items() if key in now and key not in set(keys))
        before = now


@pytest.mark.parametrize("kinds", [1, 4, 200, 4000])
def test_distinct_keys_of_features_with_many_lookups(kinds: int) -> None:
    """In order of first lookup, also if a feature's first lookups have few keys and later ones have others."""
    table = TableConfig(name="item", keys="int64", num_embeddings=9, embedding_dim=4, features=("a", "b"))
    (group,) = make_groups([table], 3)
    random = np.random.default_rng(kinds)
    known = np.concatenate([EXTREMES, random.integers(-(2**63), 2**63 - 1, kinds)])
    first, second = random.choice(known[:kinds], 3000), random.choice(known, 3000)
    second[1500:] = random.choice(known[-9:], 1500)
    batch = Batch.of(a=(first, [0, 3000]), b=(second, [0, 3000]), labels=[1.0])
    distinct = DistinctFinder(group).find(batch)
    order = dict.fromkeys(batch.ids.tolist())
    assert distinct.rows.tolist() == list(order) and distinct.table_ends.tolist() == [len(order)]
    assert np.array_equal(distinct.rows[distinct.inverse], batch.ids)
    assert np.array_equal(distinct.counts, np.bincount(distinct.inverse))


def test_a_key_gets_its_row_at_its_third_lookup() -> None:
    table = Table(admit=3)
    assert table.batch(0, [5, 6]) == {5: 0, 6: 0}
    assert table.batch(1, [5]) == {5: 0}
    assert table.batch(2, [6, 5]) == {6: 0, 5: 1}
    assert table.batch(3, [9, 6, 8, 9, 8, 9]) == {9: 2, 6: 3, 8: 0}


def test_keys_expire_at_sweeps_once_they_are_older() -> None:
    """Looked up in batch 2, with expire=32 and sweeps every second batch: alive at 34, gone at 36."""
    table = Table(expire=32)
    assert table.table.sweep_every == 2
    table.batch(2, [5])
    assert all(not len(table.table.sweep(number, table.latest)) for number in range(3, 36))
    assert table.table.sweep(36, table.latest).tolist() == [1]


def test_keys_expire_by_the_latest_timestamp() -> None:
    table = Table(expire="10s")
    every = table.table.sweep_every
    table.batch(1, [5])
    for number, clock, expired in [(every, 100.0, []), (2 * every, 110.0, []), (3 * every, 110.5, [1])]:
        table.table.clock = clock
        assert table.table.sweep(number, table.latest).tolist() == expired


def crafted(secret: int, count: int) -> Int64s:
    """Keys whose hashes have equal 32 highest bits under this secret: the inverse of the hash, on neighbors."""

    def unmix(x: int) -> int:
        word = 2**64
        x ^= (x >> 31) ^ (x >> 62)
        x = x * pow(0x94D049BB133111EB, -1, word) % word
        x ^= (x >> 27) ^ (x >> 54)
        x = x * pow(0xBF58476D1CE4E5B9, -1, word) % word
        return x ^ (x >> 30) ^ (x >> 60)

    words = [unmix((0x12345678 << 32) + i) ^ secret for i in range(count)]
    return np.array(words, np.uint64).view(np.int64)


def test_crafted_collisions_are_found_and_removed() -> None:
    """Keys of one home, and of equal bits in the index, are told apart by the keys themselves."""
    table, other = Table(600, seed=11), Table(600, seed=12)
    keys = crafted(int(table.books.secrets[0]), 600)
    assert len(np.unique(table.table.hashes(keys) >> np.uint64(32))) == 1
    assert sorted(table.batch(0, keys[:500]).values()) == list(range(1, 501))
    assert all(table.batch(1, keys[::2]).values())
    assert len(np.unique(other.table.hashes(keys) >> np.uint64(32))) > 590  # another seed, other homes


def test_tables_of_a_group_have_their_own_keys() -> None:
    """The same keys in three tables, one of which has room for one."""
    settings = {"embedding_dim": 4, "keys": "int64", "num_embeddings": 5}
    rules = [{"name": "a", "admit": 2}, {"name": "b"}, {"name": "c", "num_embeddings": 1}]
    (group,) = make_groups([TableConfig.model_validate(settings | each) for each in rules], 0)
    keys, latest = GroupKeys(group), np.zeros(group.num_rows, np.int32).__getitem__
    rows = []
    for number in range(2):
        batch = Batch.of(a=[3, 4], b=[3, 4], c=[3, 4], labels=[1.0, 0.0])
        lookups, changes = keys.prepare(DistinctFinder(group).find_lookups(batch), batch, number, latest)
        rows.append(lookups.distinct.rows[lookups.distinct.inverse].tolist())
        assert changes.tally[:, Counter.UNADMITTED_LOOKUPS].tolist() == [[2, 0, 1], [0, 0, 1]][number]
    assert rows == [[0, 0, 7, 8, 13, 12], [1, 2, 7, 8, 13, 12]]
    assert keys.books.num_live.tolist() == [2, 2, 1]


@pytest.mark.parametrize("plain", [False, True])
def test_the_sketch_counts_as_its_twin(plain: bool) -> None:
    """Count-min with conservative update in lines of few cells, where keys collide."""
    random = np.random.default_rng(2)
    cells, slow = np.zeros(LINES * 16, np.uint8), [[0] * 16 for _ in range(LINES)]
    hashes = random.integers(0, 2**64, 200, np.uint64)
    counts = random.integers(1, 60, 200).astype(np.int32)
    admitted, counted = np.empty(200, np.int64), np.zeros(1, np.int64)
    count_keys = kernels.count_keys.py_func if plain else kernels.count_keys  # type: ignore[attr-defined]
    of_table = np.array([200]), np.array([90]), cells, np.array([0, LINES * 16])
    with np.errstate(over="ignore"):
        size = count_keys(hashes, np.arange(200), counts, *of_table, counted, admitted)
    places = [
        [(reference.mix((int(h) + (line + 1) * reference.GOLDEN) % 2**64) >> 32) * 16 >> 32 for line in range(LINES)]
        for h in hashes
    ]
    new = [reference.count_in_sketch(slow, at, int(count)) for at, count in zip(places, counts, strict=True)]
    assert admitted[:size].tolist() == [u for u, count in enumerate(new) if count >= 90]
    assert cells.reshape(LINES, 16).tolist() == slow and 0 < size < 200 and counted == [200]


def test_counts_are_halved_now_and_then() -> None:
    table = Table(admit=3)
    table.batch(0, [5])
    table.batch(1, [5, 6])
    table.books.counted[0] = LEAST_CELLS - 1
    assert table.batch(2, [7]) == {7: 0}
    assert table.batch(3, [5, 6]) == {5: 0, 6: 0}  # 5 had two lookups, which count as one now; 6 had one
    assert table.batch(4, [5, 6]) == {5: 1, 6: 0}


def test_a_restored_table_goes_on_as_the_saved_one() -> None:
    random = np.random.default_rng(5)
    batches = [random.permutation(60)[: random.integers(1, 20)].tolist() for _ in range(40)]
    table, again = Table(25, admit=2, expire=20), Table(25, admit=2, expire=20)
    for number in range(20):
        table.batch(number, batches[number])
    live = table.table.live_rows()
    again.table.restore(live, table.books.row_keys[live], table.table.state())
    again.last_access[:] = table.last_access
    again.check()
    for number in range(20, 40):
        assert table.batch(number, batches[number]) == again.batch(number, batches[number])
    assert np.array_equal(table.books.cells, again.books.cells)


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 60), st.sampled_from([1, 3, 1024]), st.integers(0, 2**32))
def test_an_index_that_grows_finds_the_same_rows(size: int, more: int, block: int, seed: int) -> None:
    """Also if searches go around its end, as they do in a small one; compiled and as plain Python."""
    random, rows = np.random.default_rng(seed), np.arange(1, size + 1)
    hashes = random.integers(0, 2**64, size, np.uint64)
    hashes[: size // 3] |= np.uint64(2**64 - 2**62)  # near the end
    old = np.zeros(size + 1 + more % 4, np.uint64)
    kernels.insert_rows(hashes, rows, old)
    results = []
    for use in (kernels.copy_places, kernels.copy_places.py_func):  # type: ignore[attr-defined]
        places = np.zeros(len(old) + more, np.uint64)
        with np.errstate(over="ignore"):
            use(old, places, np.empty(block, np.uint64))
        assert np.array_equal(np.sort(places[places > 0]), np.sort(old[old > 0]))
        guesses = np.empty(size, np.int64)
        kernels.guess_rows(hashes, places, guesses)
        assert np.array_equal(guesses, rows)
        results.append(places.tolist())
    assert results[0] == results[1]


@settings(deadline=None)
@given(st.lists(KEYS, unique=True, min_size=1, max_size=40), st.data())
def test_removal_leaves_the_others_in_reach(keys: list[int], data: st.DataObject) -> None:
    """In a small index, where searches go around the end; compiled and as plain Python."""
    array, secret = np.array(keys, np.int64), np.uint64(table_key("item", 0))
    hashes, rows = np.empty(len(keys), np.uint64), np.arange(1, len(keys) + 1)
    row_keys, of_table = (
        np.concatenate([[0], array]),
        (np.array([len(keys)]), np.array([secret]), np.array([0, len(keys) + 1])),
    )
    leaving = np.array(data.draw(st.lists(st.integers(1, len(keys)), unique=True)), np.int64)
    results = []
    for use in (lambda kernel: kernel, lambda kernel: kernel.py_func):
        places = np.zeros(len(keys) * 10 // 7 + 2, np.uint64)
        with np.errstate(over="ignore"):
            use(kernels.hash_keys)(array, secret, hashes)
            use(kernels.insert_rows)(hashes, rows, places)
            use(kernels.remove_rows)(hashes[leaving - 1], leaving, places)
            rows_of_keys, absent = np.empty((2, len(keys)), np.int64)
            count = use(kernels.find_keys)(array, *of_table, hashes, places, row_keys, rows_of_keys, absent)
        assert rows_of_keys.tolist() == [0 if row in set(leaving.tolist()) else row for row in rows.tolist()]
        assert absent[:count].tolist() == np.flatnonzero(rows_of_keys == 0).tolist()
        results.append(places.tolist())
    assert results[0] == results[1]
