"""Every row has one owner, numbers go there and back, and no pattern of ids overloads a rank."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive.embeddings.ranks.owners import BITS, Owners

SIZES = (7, 1, 65_536, 65_537, 200_000, 131_072, 40)


def everything(sizes: tuple[int, ...], size: int) -> tuple[list[Owners], np.ndarray, np.ndarray]:
    starts = np.concatenate([[0], np.cumsum(sizes)])
    owners = [Owners([f"t{n}" for n in range(len(sizes))], starts, rank, size) for rank in range(size)]
    return owners, np.arange(starts[-1]), np.repeat(np.arange(len(sizes)), sizes)


def ranks_of(owners: Owners, rows: np.ndarray, tables: np.ndarray) -> np.ndarray:
    return owners.buckets_of(rows, tables) * owners.size >> BITS


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64])
def test_every_row_has_one_owner_and_its_number_there(size: int) -> None:
    all_owners, rows, tables = everything(SIZES, size)
    owner = ranks_of(all_owners[0], rows, tables)
    for rank, owners in enumerate(all_owners[:4]):
        local = owners.owned_rows(rows, tables)
        assert np.array_equal(local >= 0, owner == rank)
        number = int(owners.owned_starts[-1])
        assert np.array_equal(np.sort(local[owner == rank]), np.arange(number)), "no gaps"
        own_tables = np.repeat(np.arange(len(SIZES)), np.diff(owners.owned_starts))
        results = owners.group_rows(np.arange(number), own_tables)
        assert np.array_equal(local[results], np.arange(number))
        assert np.array_equal(tables[results], own_tables)
        assert np.array_equal(owners.counts.sum(axis=0), SIZES)
        assert np.array_equal(owners.counts, all_owners[0].counts)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 140_000), min_size=1, max_size=4), st.integers(1, 9), st.data())
def test_drawn_tables(sizes: list[int], size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, size - 1))
    all_owners, rows, tables = everything(tuple(sizes), size)
    owners = all_owners[rank]
    mine = ranks_of(owners, rows, tables) == rank
    local = owners.owned_rows(rows, tables)
    assert np.array_equal(local >= 0, mine)
    assert np.array_equal(owners.group_rows(local[mine], tables[mine]), rows[mine])


@pytest.mark.parametrize("step", [1, 64, 65_536])
def test_no_pattern_of_ids_overloads_a_rank(step: int) -> None:
    number = 40_000
    starts = np.array([0, number * step])
    rows = np.arange(number) * step
    results = np.bincount(ranks_of(Owners(["t"], starts, 0, 64), rows, np.zeros(number, np.int64)), minlength=64)
    assert results.max() <= 1.15 * results.mean()


def test_buckets_do_not_depend_on_how_many_ranks_there_are() -> None:
    """Rank r of 2 W owns half of what rank r // 2 of W owns."""
    starts, rows = np.array([0, 100_000]), np.arange(100_000)
    tables = np.zeros(100_000, np.int64)
    four, two = (ranks_of(Owners(["t"], starts, 0, size), rows, tables) for size in (4, 2))
    assert np.array_equal(four // 2, two)
