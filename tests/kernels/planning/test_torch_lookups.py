"""Distinct rows and look-ups by row as torch finds them, beside the CPU's kernels: equal, and in the same order."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.variants import both
from torch import Tensor

from adaptive.batch import Batch
from adaptive.config import TableConfig
from adaptive.embeddings.planning.layout import Group, make_groups
from adaptive.embeddings.planning.lookups import DistinctFinder, Lookups, feature_lookups
from adaptive.embeddings.tiers.gpu.upload import bag_arrays
from adaptive.kernels.planning import lookups, torch_lookups
from adaptive.kernels.planning.torch_lookups import Bags, LookupTensors

Choose = Callable[[Any], Callable[..., Any]]


def room(rows: Tensor, num_tables: int, scales: Tensor) -> LookupTensors:
    """As memory is that was used before."""
    size = len(rows)
    return LookupTensors(
        rows=torch.full((size + 1,), -7, dtype=rows.dtype),
        counts=torch.full((size + 1,), 2**31 - 1, dtype=torch.int32),
        table_ends=torch.full((num_tables,), -7),
        inverse=torch.full((size,), -7, dtype=torch.int32),
        vectors=torch.full((size,), -7, dtype=torch.int32),
        scales=torch.full((len(scales),), torch.nan),
    )


# --- written out -----------------------------------------------------------------------------------------------------


# --- rows of look-ups ------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("bad", [-1, 4, 2**32, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("position", [0, 3])
def test_an_id_outside_its_table_is_found_by_both_kernels(choose: Choose, bad: int, position: int) -> None:
    """The first of its table's first feature that has one; position 4 is of a feature behind it."""
    ids = np.array([0, 1, 2, 3, -5])
    ids[position:4] = bad
    spans, tables = np.array([[0, 4], [4, 5]]), np.zeros(2, np.int32)
    sizes, starts = np.array([4]), np.array([0, 4])
    rows, ends = np.empty(5, np.int64), np.empty(1, np.int64)
    features, of_tables = (ids, spans, tables), (sizes, starts)
    found = choose(lookups.copy_rows)(features, of_tables, rows, ends)
    hash_table = np.zeros(16, np.int32), np.ones(1, np.int64)
    out = np.empty(5, np.int64), np.empty(5, np.int32), np.empty(5, np.int32), np.empty(1, np.int64)
    assert found == choose(lookups.distinct_rows)(0, features, of_tables, hash_table, out)
    assert found == -(position + 1)


# --- any batch -------------------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> tuple[Sequence[Group], Batch]:
    """Tables of several widths, shared among features; some bags, features, tables and groups without a look-up."""
    weighted = draw(st.booleans())
    pooling = st.sampled_from(["sum", "none"] if weighted else ["sum", "mean", "none"])
    shapes = draw(
        st.lists(
            st.tuples(st.sampled_from([1, 3, 40, 10**6]), st.sampled_from([4, 6]), pooling, st.integers(1, 3)),
            min_size=1,
            max_size=4,
        )
    )
    tables = [
        TableConfig(name=f"t{n}", num_embeddings=size, embedding_dim=width, pooling=how, features=tuple("xyz"[:count]))
        for n, (size, width, how, count) in enumerate(shapes)
    ]
    tables = [t.model_copy(update={"features": tuple(t.name + f for f in t.features)}) for t in tables]
    samples, random = draw(st.integers(1, 4)), np.random.default_rng(draw(st.integers(0, 999)))
    largest = draw(st.sampled_from([0, 1, 2, 30]))
    limits = np.array([table.num_embeddings for table in tables for _ in table.features])
    sizes = random.integers(0 if largest != 1 else 1, largest + 1, (len(limits), samples))
    sizes[random.random(len(limits)) < draw(st.sampled_from([0.0, 0.5]))] = 0
    bounds = np.repeat(limits, sizes.sum(axis=1))
    ids = (random.random(len(bounds)) ** 3 * bounds).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    weights = random.normal(size=len(ids)).astype(np.float32) if weighted else None
    zeros = np.zeros((samples, 1), np.float32)
    return make_groups(tables, 0), Batch(zeros, ids, offsets, zeros[:, 0], weights)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(cases(), st.sampled_from([np.int32, np.int64]))
def test_what_torch_finds_is_what_the_cpu_finds(case: tuple[Sequence[Group], Batch], dtype: type) -> None:
    groups, batch = case
    for group in groups:
        expected = DistinctFinder(group).find_lookups(batch)
        if len(expected.distinct.inverse):
            check(expected, group, batch, dtype)


def check(expected: Lookups, group: Group, batch: Batch, dtype: type) -> None:
    distinct, bags = expected.distinct, expected.bags
    rows, ends = np.empty(len(distinct.inverse), dtype), np.empty(len(group.tables), np.int64)
    assert lookups.copy_rows(feature_lookups(group, batch), group.table_rows, rows, ends) == 0
    arrays = bag_arrays(bags.pooling(distinct.inverse, distinct.rows), distinct.rows)
    vectors, starts, scales = (torch.tensor(array) for array in arrays[2:])
    found = room(torch.from_numpy(rows), len(group.tables), scales)
    sent = Bags(bags.num_vectors, bags.num_samples, vectors, starts, scales)
    torch_lookups.find_lookups(torch.from_numpy(rows), torch.from_numpy(ends), sent, found)
    size = len(distinct.rows)
    assert found.table_ends.tolist() == distinct.table_ends.tolist()
    assert found.rows[:size].tolist() == distinct.rows.tolist()
    assert found.counts[:size].tolist() == distinct.counts.tolist()
    assert found.inverse.tolist() == distinct.inverse.tolist()
    assert found.vectors.tolist() == expected.vectors.tolist()
    assert found.scales.tolist() == expected.scales.tolist()
