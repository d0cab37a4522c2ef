"""Counts against slow twins, and small cases by hand."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import featured

from adaptive.batch import Batch
from adaptive.data.dataset import Dataset, Feature
from adaptive.embeddings.planning.layout import Group, make_groups
from adaptive.errors import InputError
from adaptive.studies.profile import DataProfile
from adaptive.studies.profile import data_profile as hot
from adaptive.studies.profile.data_profile import (
    THRESHOLDS,
    DataQuestion,
    curve,
    falling_counts,
    profile_data,
    rows_for,
)
from adaptive.studies.profile.id_trace import IdTrace
from adaptive.training.components import build_tables

ROWS = (7, 30, 4)


class Listed(Dataset):
    """The samples [feature][sample] -> bag, in batches of any size."""

    def __init__(self, lookups: list[list[list[int]]], rows: tuple[int, ...] = ROWS) -> None:
        self.features = tuple(Feature(f"f{f}", size) for f, size in enumerate(rows))
        self.num_dense = 1
        self.lookups = lookups
        self.passes = 0

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        self.passes += 1
        size = min(batch_size, 5)  # several chunks
        for first in range(0, len(self.lookups[0]), size):
            yield featured(*(list(feature[first : first + size]) for feature in self.lookups))

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        return iter(())

    def num_train_samples(self) -> int:
        return len(self.lookups[0])

    def fingerprint(self) -> dict[str, object]:
        return {}


def drawn(samples: int, seed: int, rows: tuple[int, ...] = ROWS) -> list[list[list[int]]]:
    random = np.random.default_rng(seed)
    return [[[int(i) for i in random.zipf(1.5, random.integers(0, 4)) % size] for _ in range(samples)] for size in rows]


def group_of(dataset: Dataset) -> Group:
    (group,) = make_groups(build_tables(dataset, 4), 0)
    return group


def profiled(lookups: list[list[list[int]]], **options: object) -> DataProfile:
    dataset = Listed(lookups)
    return profile_data(dataset, group_of(dataset), 20, DataQuestion(**options))  # type: ignore[arg-type]


@given(samples=st.integers(2, 23), seed=st.integers(0, 99), batch=st.integers(1, 7))
@settings(max_examples=25, deadline=None)
def test_counts_hot_inputs_and_reuse_equal_slow_twins(samples: int, seed: int, batch: int) -> None:
    lookups = drawn(samples, seed)
    if not any(bag for feature in lookups for bag in feature):
        return
    dataset = Listed(lookups)
    group = group_of(dataset)
    starts = group.table_starts[:-1]
    rows = [[[int(starts[f]) + i for i in bag] for bag in feature] for f, feature in enumerate(lookups)]
    counts = reference.row_counts(rows, group.num_rows, [True] * samples)
    row_bytes = 200_000  # so that no table but the last (4 rows) is below 1 MB
    result = profile_data(dataset, group, row_bytes, DataQuestion(budgets=(("9", 9),), batch_size=batch))

    assert result.lookups == counts.sum() and result.samples == samples
    for table, part in zip(result.tables, np.split(counts, group.table_starts[1:-1]), strict=False):
        assert (table.lookups, table.seen) == (part.sum(), (part > 0).sum())
        if part.sum():
            assert table.top_share == part.max() / part.sum()
            assert table.seen_once_share == (part == 1).sum() / (part > 0).sum()

    whole = np.repeat([part.sum() for part in np.split(counts, group.table_starts[1:-1])], group.table_sizes)
    last = set(range(int(starts[2]), group.num_rows))
    for point in result.thresholds:
        warm = set(np.flatnonzero((counts > 0) & (counts / np.maximum(whole, 1) >= point.threshold)).tolist()) | last
        assert point.hot_rows == len(warm)
        assert point.hot_input_share == pytest.approx(np.mean(reference.hot_inputs(rows, warm)))
        assert point.lookup_share == pytest.approx(counts[sorted(warm)].sum() / counts.sum())
    assert result.hot[0].hot_rows <= 9

    batches = [
        {row for feature in rows for bag in feature[first : first + batch] for row in bag}
        for first in range(0, samples, batch)
    ]
    if len(batches) > 1:
        for batches_back, share in result.reuse.reused_from.items():
            assert share == pytest.approx(reference.known_from(batches, int(batches_back)))
    if samples >= batch:
        whole_batches = [len(batch) for batch in batches[: samples // batch]]
        assert result.reuse.distinct_by_batch_size[str(batch)] == pytest.approx(np.mean(whole_batches))


def test_a_small_case_equals_one_worked_by_hand() -> None:
    # table f0: row 1 twice, row 2 once; f1: row 5 three times; f2 (small): rows 0, 0, 3
    lookups = [[[1], [1], [2]], [[5], [5], [5]], [[0], [0], [3]]]
    result = profiled(lookups, budgets=(("two", 2),), batch_size=1)
    tables = {table.table: table for table in result.tables}
    assert (tables["f0"].seen, tables["f0"].top_share, tables["f0"].rows_for_90) == (2, 2 / 3, 2)
    assert (tables["f1"].rows_for_half, tables["f1"].seen_once_share) == (1, 0.0)
    assert (tables["all"].lookups, tables["all"].seen) == (9, 5)
    assert result.reuse.reused_from["1"] == pytest.approx(4 / 9)


def test_a_budget_takes_all_rows_of_equal_count_or_none() -> None:
    dataset = Listed([[[0], [0], [1], [2]], [[0], [1], [2], [3]], [[], [], [], []]], (300_000, 300_000, 300_000))
    group = group_of(dataset)
    counts = np.zeros(group.num_rows, np.int64)
    counts[[0, 1, 2]] = [2, 1, 1]
    counts[group.table_starts[1] + np.arange(4)] = 1
    heat = hot.heat_of(group, counts)
    for budget, rows, threshold in ((0, 0, math.inf), (1, 1, 0.5), (3, 1, 0.5), (7, 7, 0.25), (99, 7, 0.25)):
        result = hot.within(group, heat, budget, 20)
        assert (result.num_rows, result.threshold) == (rows, threshold), budget


def test_the_estimate_is_close_and_exact_if_small() -> None:
    dataset = Listed([[[0]], [[0]], [[0]]], (500_000, 40_000, 10))
    group = group_of(dataset)
    random = np.random.default_rng(3)
    counts = random.poisson(0.5, group.num_rows).astype(np.int64)
    heat = counts / np.repeat(np.add.reduceat(counts, group.table_starts[:-1]), group.table_sizes)
    threshold = 2 / counts[:500_000].sum()
    whole = np.array([False, False, True])
    result = hot.Estimator(group, counts).estimate(threshold, whole)
    truth = int((heat[:540_000] >= threshold).sum()) + 10
    assert result.margin > 0 and abs(result.rows - truth) < result.margin
    exact = hot.Estimator(group, counts).estimate(threshold, np.array([True, False, True]))
    assert exact.rows == 500_010 + int((heat[500_000:540_000] >= threshold).sum()) and exact.margin == 0


def test_row_numbers_beyond_memory_are_reread() -> None:
    dataset = Listed(drawn(23, 1))
    trace = IdTrace(dataset, group_of(dataset), None, kept_bytes=8)
    first = np.concatenate([chunk.rows for chunk in trace])
    assert not trace.is_kept and trace.num_samples == 23 and dataset.passes == 1
    assert np.array_equal(np.concatenate([chunk.rows for chunk in trace]), first) and dataset.passes == 2
    trace = IdTrace(dataset, group_of(dataset), None)
    assert np.array_equal(np.concatenate([chunk.rows for chunk in trace]), first)
    assert np.array_equal(np.concatenate([chunk.rows for chunk in trace]), first) and dataset.passes == 3


def test_profiling_ends_at_a_sample_count_or_stop() -> None:
    lookups = drawn(23, 2)
    assert profiled(lookups, samples=7).samples == 7
    dataset = Listed(lookups)
    read: list[int] = []
    result = profile_data(
        dataset, group_of(dataset), 20, DataQuestion(), is_stopped=lambda: len(read) > 1, on_progress=read.append
    )
    assert (result.samples, result.was_stopped) == (10, True) and read == [5, 10]


def test_invalid_ids_and_empty_data_are_reported() -> None:
    with pytest.raises(InputError, match=r"feature f0, sample 1, position 0: expected ids .* of table f0, got 7"):
        profiled([[[0], [7]], [[0], [0]], [[0], [0]]])
    with pytest.raises(InputError, match="expected training samples"):
        profiled([[], [], []])


def test_curves_and_shares() -> None:
    falling = falling_counts(np.array([0, 5, 1, 0, 4]))
    assert falling.tolist() == [5, 4, 1]
    assert [rows_for(falling, share) for share in (0.5, 0.51, 0.9, 1.0)] == [1, 2, 2, 3]
    assert curve(falling) == [(1, 5), (2, 4), (3, 1)] and curve(falling[:0]) == []
    assert len(THRESHOLDS) <= 64


def test_collisions_of_hashed_ids_are_those_that_were_made() -> None:
    """Estimated from the rows alone, against the ids that were hashed to them."""
    rows, random = 5_000, np.random.default_rng(0)
    ids = np.minimum(random.zipf(1.2, 40_000), 10**6)
    row_of = random.integers(0, rows, 10**6 + 1)  # a hash
    data = Listed([[[int(row)] for row in row_of[ids]]], (rows + 1,))
    data.hash_rows = {"f0": rows}
    (group,) = make_groups(build_tables(data, 4), 0)
    (collisions,) = profile_data(data, group, 4, DataQuestion(budgets=[])).collisions
    distinct, of_row = np.unique(ids), np.bincount(row_of[np.unique(ids)], minlength=rows)
    assert (collisions.table, collisions.rows, collisions.seen) == ("f0", rows, int((of_row > 0).sum()))
    assert collisions.ids == pytest.approx(len(distinct), rel=0.03)
    assert collisions.shared_share == pytest.approx(np.mean(of_row[row_of[distinct]] > 1), abs=0.03)


def test_collisions_by_hand() -> None:
    data = Listed([[[0], [1], [1], [4]]], (5,))  # row 4 is that of missing ids
    (group,) = make_groups(build_tables(data, 4), 0)
    counts = np.array([1, 2, 0, 0, 1])
    assert hot.hash_collisions({}, group, counts) == []
    (one,) = hot.hash_collisions({"f0": 4}, group, counts)
    assert (one.seen, one.shared_share) == (2, 0.5)
    assert one.ids == pytest.approx(4 * math.log(2))
    (full,) = hot.hash_collisions({"f0": 2}, group, counts)
    assert (full.ids, full.shared_share) == (None, 1.0)
