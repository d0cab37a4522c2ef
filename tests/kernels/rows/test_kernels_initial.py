"""Initial values of rows: a function of table, seed, index and column alone."""

from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from support.row_kernels import Choose, Floats
from support.variants import both

from adaptive.config import TableConfig
from adaptive.embeddings.planning import books
from adaptive.embeddings.planning.layout import Group, make_groups
from adaptive.embeddings.tiers.host import MemoryHost
from adaptive.kernels.rows.cpu import initial
from adaptive.optim import Adagrad


def table(name: str = "a", num: int = 40, dim: int = 8, bound: float | None = None) -> TableConfig:
    return TableConfig(name=name, num_embeddings=num, embedding_dim=dim, init_bound=bound)


def values(group: Group, rows: Any, choose: Choose = lambda kernel: kernel) -> Floats:
    """(n, D) initial values of local rows."""
    rows = np.asarray(rows, np.int64)
    weights, state = np.full((len(rows), group.embedding_dim), np.nan, np.float32), np.zeros((len(rows), 0), np.float32)
    choose(initial.initial_rows)(
        weights, state, np.arange(len(rows)), rows,
        group.table_starts, group.table_keys, group.table_bounds, np.float32(0),
    )  # fmt: skip
    return weights


def one_table(seed: int = 0, **options: Any) -> Floats:
    (group,) = make_groups([table(**options)], seed)
    return values(group, range(group.num_rows))


@both
def test_mix_is_the_finalizer_of_splitmix64(choose: Choose) -> None:
    """mix(n * golden) is the n-th number of splitmix64 seeded with 0, as published."""
    for n, expected in ((1, 0xE220A8397B1DCDAF), (2, 0x6E789E6AA1B965F4)):
        assert int(choose(initial.mix)(np.uint64(n * reference.GOLDEN % 2**64))) == expected
        assert reference.mix(n * reference.GOLDEN % 2**64) == expected


@both
@settings(max_examples=30, deadline=None)
@given(
    dim=st.sampled_from([1, 3, 16, 17, 40]),
    nums=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    seed=st.integers(0, 2**63),
    data=st.data(),
)
def test_values_equal_the_twin_in_any_order(
    choose: Choose, dim: int, nums: list[int], seed: int, data: st.DataObject
) -> None:
    tables = [table(f"t{i}", num, dim, bound=None if i else 0.25) for i, num in enumerate(nums)]
    (group,) = make_groups(tables, seed)
    expected = np.concatenate([reference.initial_table(t, seed) for t in tables])
    rows = data.draw(st.permutations(range(group.num_rows)))
    np.testing.assert_array_equal(values(group, rows, choose), expected[rows])


def test_values_are_uniform_within_the_bound() -> None:
    numbers = one_table(num=20_000, dim=16, bound=0.5) / 0.5
    assert numbers.min() >= -1 and numbers.max() < 1
    assert abs(numbers.mean()) < 4 / np.sqrt(3 * numbers.size)
    shares = np.histogram(numbers, 20, (-1, 1))[0] / numbers.size
    np.testing.assert_allclose(shares, 0.05, atol=0.002)
    correlations = np.corrcoef(numbers.T) - np.eye(16)
    assert np.abs(correlations).max() < 5 / np.sqrt(20_000)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_that_share_rows_move_the_same(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Initial values, a copy out of the host tier, and one back to other rows."""
    monkeypatch.setattr(books, "SHARED_ROWS", 1)
    (group,) = make_groups([table(num=90), table("b", num=30)], 3)
    rows, slots = np.random.default_rng(threads).permutation(120)[:101], np.random.default_rng(1).permutation(150)[:101]
    results = []
    for number in (1, threads):
        host = MemoryHost(group, Adagrad(0.1))
        host.weights.fill(0), host.state.fill(0)
        host.threads = number
        weights, state = np.zeros((150, 8), np.float32), np.zeros((150, 8), np.float32)
        host.store_initial(rows)
        host.copy_out(rows, weights, state, slots)
        weights += 1
        host.copy_in(119 - rows, weights, state, slots)
        results.append([array.tolist() for array in (weights, state, host.weights, host.state)])
    assert results[0] == results[1]
    assert len({tuple(row) for row in results[0][0]}) == 102
