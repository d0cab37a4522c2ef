"""Rows loaded between batches go on as those that were saved: deferred sums, sizes and answers included."""

import copy
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.helpers import LFU, Trainee, bags, random_batches, step_all, sum_of, train_more
from support.skip_rules import LeaveOut, Waits

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import CheckpointError
from adaptive.optim import FTRL, SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policies.lru import LRU
from adaptive.policy import Policy, RowStats

Arrays = dict[str, NDArray[Any]]

TABLES = (
    TableConfig(name="a", num_embeddings=12, embedding_dim=4, features=("x", "y")),
    TableConfig(name="b", num_embeddings=30, embedding_dim=16, pooling="mean"),
)
BATCHES = random_batches(TABLES, 40, seed=3, samples=4)
SKIP = SkipConfig(interval=4, hot_rows="100%", min_accesses=3, feedback_delay=5)


class Plain(Policy):
    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.last_access


class Defer(Plain):
    def __init__(self) -> None:
        self.rule = Waits(most=5, warmup=3)


class Freeze(Plain):
    """Rows that move little are left alone, but for one question in four."""

    def __init__(self) -> None:
        self.rule = LeaveOut(self.choose)

    def choose(self, rows: RowStats) -> NDArray[np.bool_]:
        return (rows.update_size < 0.3) & ((rows.rows + rows.step // 4) % 4 > 0)


class Both(Freeze):
    def __init__(self) -> None:
        self.rule = LeaveOut(self.choose, most=4, warmup=2)


class BothOnHost(Both):
    misses: Literal["prefetch", "host"] = "host"


POLICIES: list[type[Policy]] = [Plain, Defer, Freeze, Both, BothOnHost]
OPTIMIZERS: list[RowOptimizer] = [SGD(lr=0.3), Adagrad(lr=0.1), RowwiseAdagrad(lr=0.1), Adam(lr=0.01), FTRL(lr=0.1)]


def build(
    policy: type[Policy] = Both,
    optimizer: RowOptimizer = OPTIMIZERS[1],
    *,
    rows: str = "85%",
    device: Any = "cpu",
    skip: SkipConfig | None = SKIP,
) -> TieredEmbeddingBag:
    tier = TierConfig(device_rows=rows, device=device, poison=True, when_full="reduce_lookahead")
    return TieredEmbeddingBag(TABLES, tier, policy=policy, optimizer=optimizer, skip=skip)


def assert_same(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, strict=True, err_msg=name)


def trained(cut: int = 30, **options: Any) -> tuple[TieredEmbeddingBag, Trainee]:
    embeddings, trainee = build(**options), Trainee(TABLES)
    train_more(embeddings, trainee, BATCHES[:cut], 2)
    return embeddings, trainee


CUTS: dict[str, Any] = {
    "policy": st.sampled_from(POLICIES),
    "optimizer": st.sampled_from(OPTIMIZERS),
    "cut": st.integers(0, len(BATCHES)),
    "depths": st.tuples(st.integers(0, 4), st.integers(0, 4)),
    "rows": st.tuples(st.sampled_from(["85%", "100%"]), st.sampled_from(["85%", "100%"])),
    "devices": st.tuples(st.sampled_from(["cpu", "cpu-torch"]), st.sampled_from(["cpu", "cpu-torch"])),
}


@settings(max_examples=8)
@given(**CUTS)
def test_training_goes_on_bit_for_bit(**cut: Any) -> None:
    """With any two tiers and depths, decisions, counts and all saved arrays agree."""
    check_cut(**cut)


@pytest.mark.nightly
@settings(max_examples=300)
@given(**CUTS)
def test_training_goes_on_at_length(**cut: Any) -> None:
    check_cut(**cut)


def check_cut(
    policy: type[Policy],
    optimizer: RowOptimizer,
    cut: int,
    depths: tuple[int, int],
    rows: tuple[str, str],
    devices: tuple[str, str],
) -> None:
    first, trainee = build(policy, optimizer, rows=rows[0], device=devices[0]), Trainee(TABLES)
    train_more(first, trainee, BATCHES[:cut], depths[0])
    saved, later = first.rows.state_arrays(), copy.deepcopy(trainee)
    later.optimizer.param_groups[0]["params"] = list(later.model.parameters())
    expected = train_more(first, trainee, BATCHES[cut:], depths[1])
    second = build(policy, optimizer, rows=rows[1], device=devices[1])
    second.rows.load_state_arrays(saved)
    assert_same(second.rows.state_arrays(), saved)
    found = train_more(second, later, BATCHES[cut:], depths[1])
    found.assert_equals(expected)
    assert found.skipped == expected.skipped
    assert_same(second.rows.state_arrays(), first.rows.state_arrays())


def test_missing_update_norms_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Rows evicted by an order of columns have none; a policy that reads them begins with those to come."""
    first, _ = trained(12, policy=LRU, skip=None)
    saved = first.rows.state_arrays()
    assert not any(name.endswith("update_norm") for name in saved)
    first.rows.load_state_arrays(saved)
    assert not caplog.messages
    second = build(Plain, skip=None)
    second.rows.load_state_arrays(saved)
    assert [message[:45] for message in caplog.messages] == ["batch 12: the checkpoint has no update norms,"]
    train_more(second, Trainee(TABLES), BATCHES[12:20], 2)
    norms = second.rows.state_arrays()
    assert all((norms[f"rows{group}.update_norm"] > 0).any() for group in range(2))


def test_batches_without_backward_can_be_gone_on_from() -> None:
    """No update is measured."""
    saved, again = build(Freeze), build(Freeze)
    for _ in saved.look_ahead(BATCHES):
        pass
    arrays = saved.rows.state_arrays()
    assert len(arrays["rows0.hot.row"]) and np.isnan(arrays["rows0.hot.size"]).all()
    again.rows.load_state_arrays(arrays)
    assert_same(again.rows.state_arrays(), arrays)


def test_hot_rows_and_deferred_updates_are_saved() -> None:
    """Or else the test above would show nothing."""
    arrays = trained()[0].rows.state_arrays()
    for group in ("rows0.hot.", "rows1.hot."):
        waiting = np.searchsorted(arrays[group + "row"], arrays[group + "summed"])
        assert len(waiting) > 2 and arrays[group + "deferred"][waiting].min() > 0
        assert (arrays[group + "answer"] == 0).any() and np.isfinite(arrays[group + "size"]).any()
        rows = arrays[group + "row"][waiting]
        settled = arrays[group.replace("hot.", "weights")][
            np.searchsorted(arrays[group.replace("hot.", "changed")], rows)
        ]
        assert (settled != arrays[group + "raw_values"]).any(axis=1).all()


def test_tables_without_skip_load_values_with_their_sums() -> None:
    embeddings, _ = trained()
    plain = build(Both, skip=None)
    plain.rows.load_state_arrays(embeddings.rows.state_arrays())
    for table in TABLES:
        np.testing.assert_array_equal(plain.rows.table_weights(table.name), embeddings.rows.table_weights(table.name))
    assert not [name for name in plain.rows.state_arrays() if ".hot." in name]


@pytest.mark.parametrize(("policy", "skip"), [(Freeze, SKIP), (Both, SKIP.model_copy(update={"interval": 5}))])
def test_tables_with_another_hot_set_begin_with_an_empty_one(policy: type[Policy], skip: SkipConfig) -> None:
    embeddings, _ = trained()
    other = build(policy, skip=skip)
    other.rows.load_state_arrays(embeddings.rows.state_arrays())
    for table in TABLES:
        np.testing.assert_array_equal(other.rows.table_weights(table.name), embeddings.rows.table_weights(table.name))
    arrays = other.rows.state_arrays()
    assert len(arrays["rows0.hot.row"]) == 0 and other.statistics.take().saturated_rows.tolist() == [0, 0]


def test_hot_rows_of_before_are_forgotten() -> None:
    saved = trained(8)[0].rows.state_arrays()
    embeddings, _ = trained()
    embeddings.rows.load_state_arrays(saved)
    assert_same(embeddings.rows.state_arrays(), saved)
    num_hot = [len(saved[f"rows{group}.hot.row"]) for group in (0, 1)]
    assert embeddings.statistics.take().hot_rows.tolist() == num_hot and sum(num_hot) > 0


def test_while_a_look_ahead_runs_only_values_are_saved() -> None:
    """The books of hot rows are ahead of the training then."""
    embeddings, trainee = build(), Trainee(TABLES)
    for planned in embeddings.look_ahead(BATCHES, depth=2):
        trainee.learn(embeddings(planned), planned.batch)
        embeddings.step()
        if planned.number == 20:
            assert not [name for name in embeddings.rows.state_arrays() if ".hot." in name]


def test_a_look_ahead_that_was_left_early_can_be_gone_on_from() -> None:
    """Its books count batches that were never trained; what is loaded counts them alike."""
    embeddings, trainee = build(), Trainee(TABLES)
    for planned in embeddings.look_ahead(BATCHES, depth=3):
        trainee.learn(embeddings(planned), planned.batch)
        embeddings.step()
        if planned.number == 17:
            break
    saved, later = embeddings.rows.state_arrays(), copy.deepcopy(trainee)
    later.optimizer.param_groups[0]["params"] = list(later.model.parameters())
    second = build()
    second.rows.load_state_arrays(saved)
    train_more(second, later, BATCHES[18:], 1).assert_equals(train_more(embeddings, trainee, BATCHES[18:], 1))
    assert_same(second.rows.state_arrays(), embeddings.rows.state_arrays())


def first_is(value: Any) -> Any:
    """An array with another first value."""

    def changed(array: NDArray[Any]) -> NDArray[Any]:
        array = array.copy()
        array.reshape(-1)[0] = value
        return array

    return changed


WRONG_ARRAYS: list[tuple[str, Any, str]] = [
    ("rate", lambda rate: np.array(rate[0]), r"rate: expected float64 \(1,\), got float64 \(\)"),
    ("next_batch", lambda number: number[:0], r"int64 \(1,\), got int64 \(0,\)"),
    ("next_batch", lambda number: np.array(number[0]), r"int64 \(1,\), got int64 \(\)"),
    ("next_batch", list, "expected a numpy array, got list"),
    ("rows1.seen", lambda rows: rows.astype(np.float64), "rows1.seen: expected int64 .* got float64"),
    ("rows1.changed", lambda rows: rows.astype(np.float32), "rows1.changed: expected int64 .* got float32"),
    ("rows1.changed", lambda rows: rows[::-1], "of ascending rows up to 29, got other numbers"),
    ("rows1.changed", lambda rows: rows + 30, "of ascending rows up to 29"),
    ("rows1.seen", first_is(-1), "of ascending rows up to 29"),
    ("rows1.accesses", lambda counts: counts[1:], "rows1.accesses: expected uint32"),
    ("rows1.table_starts", lambda starts: starts.astype(np.float64), "expected int64"),
    ("rows1.table_starts", lambda starts: starts + np.arange(2), r"expected tables of \[30\] rows, got .* of \[31\]"),
    ("rows1.table_keys", lambda keys: keys + np.uint64(1), "a checkpoint of another seed"),
    ("rows0.state", lambda state: state[:, :1], "rows0.state: expected float32"),
    ("rows0.weights", lambda weights: weights.astype(np.float64), "rows0.weights: expected float32"),
    ("rows0.hot.row", lambda rows: rows + 100, "of ascending rows up to 11"),
    ("rows0.hot.row", lambda rows: rows * 0, "of ascending rows up to 11"),
    ("rows0.hot.summed", lambda rows: rows + 100, "summed: .*of ascending rows"),
    ("rows0.hot.sums", lambda sums: sums[:, :2], r"hot.sums: expected float32 \(\d+, 4\)"),
    ("rows0.hot.deferred", lambda waiting: waiting[1:], r"hot.deferred: expected uint8 \(\d+,\)"),
    ("rows0.hot.size", lambda values: values.astype(np.float64), "hot.size: expected float32"),
    ("rows0.hot.squares", lambda squares: squares[:, :0], "hot.squares: expected float32"),
    ("rows0.hot.order", lambda order: order.astype(np.int64), "hot.order: expected int32"),
    ("rows0.hot.interval", lambda one: one.astype(np.float64), "expected int64"),
]


@pytest.mark.parametrize("in_state_dict", [False, True])
@pytest.mark.parametrize(("name", "change", "message"), WRONG_ARRAYS)
def test_wrong_arrays_are_refused_and_nothing_changes(
    name: str, change: Any, message: str, *, in_state_dict: bool
) -> None:
    """All arrays of all groups are checked before any row is replaced, by both ways to load them."""
    embeddings, before = tables_and_arrays(1)
    wrong = before | {name: change(before[name])}
    if not in_state_dict:
        with pytest.raises(CheckpointError, match=message):
            embeddings.rows.load_state_arrays(wrong)
    elif isinstance(wrong[name], np.ndarray | np.generic):
        tensors = {key: torch.from_numpy(np.array(value)) for key, value in wrong.items()}
        with pytest.raises(RuntimeError, match=message):
            embeddings.load_state_dict(tensors)
    assert_same(embeddings.rows.state_arrays(), before)


@cache
def shared_tables(optimizer: int) -> tuple[TieredEmbeddingBag, Arrays]:
    embeddings, _ = trained(optimizer=OPTIMIZERS[optimizer])
    return embeddings, embeddings.rows.state_arrays()


def tables_and_arrays(optimizer: int) -> tuple[TieredEmbeddingBag, Arrays]:
    """Trained tables, which no test changes, and what they hold."""
    embeddings, arrays = shared_tables(optimizer)
    return embeddings, dict(arrays)


def one_table(bound: float | None, size: int = 20, first: float = 0.0, seed: int = 0) -> TieredEmbeddingBag:
    table = TableConfig(name="t", num_embeddings=size, embedding_dim=4, init_bound=bound)
    return TieredEmbeddingBag([table], optimizer=Adagrad(initial_accumulator=first), seed=seed)


@pytest.mark.parametrize("in_state_dict", [False, True])
@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"bound": 0.1}, "table 't': expected initial values within 0.1, got .* within 0.5. Set init_bound=0.5"),
        ({"bound": None}, "expected initial values within 0.22"),
        ({"bound": 0.5, "first": 0.25}, "expected initial optimizer state 0.25, got .* with 0.0. Set initial_accum"),
        ({"bound": 0.5, "seed": 1}, "another seed"),
    ],
)
def test_tables_with_other_initial_values_are_refused(
    other: dict[str, Any], message: str, *, in_state_dict: bool
) -> None:
    """Rows that were never trained are in no checkpoint: they would differ."""
    saved, tables = one_table(0.5), one_table(**other)
    before = tables.rows.state_arrays()
    load = tables.load_state_dict if in_state_dict else tables.rows.load_state_arrays
    state: dict[str, Any] = saved.state_dict() if in_state_dict else saved.rows.state_arrays()
    with pytest.raises(RuntimeError if in_state_dict else CheckpointError, match=message):
        load(state)
    assert_same(tables.rows.state_arrays(), before)
    one_table(0.5).load_state_dict(saved.state_dict())


@pytest.mark.parametrize(
    ("before", "after", "fits"), [(None, None, True), (0.5, 0.5, True), (0.5, 0.1, False), (0.5, None, False)]
)
def test_a_larger_table_begins_as_the_smaller_one_did(before: float | None, after: float | None, *, fits: bool) -> None:
    """Only the default bound follows from the number of rows."""
    saved, larger = one_table(before).rows.state_arrays(), one_table(after, 30)
    if fits:
        larger.rows.load_state_arrays(saved, grow=True)
    else:
        with pytest.raises(CheckpointError, match="expected initial values within"):
            larger.rows.load_state_arrays(saved, grow=True)


@pytest.mark.parametrize("depth", [0, 3])
def test_rows_that_begin_anew_in_a_larger_table_are_trained(depth: int) -> None:
    """They were looked up in the latest batches before, which are in flight no more."""
    tables = [TableConfig(name="t", num_embeddings=n, embedding_dim=4) for n in (10, 30)]
    smaller, larger = (TieredEmbeddingBag([one], TierConfig(device_rows="100%", poison=True)) for one in tables)
    for _ in smaller.look_ahead([bags([n]) for n in range(5)]):
        pass
    larger.rows.load_state_arrays(smaller.rows.state_arrays(), grow=True)
    for planned in larger.look_ahead([bags([n]) for n in range(5)], depth=depth):
        with torch.no_grad():
            vectors = larger(planned)["t"].numpy()
        np.testing.assert_array_equal(vectors, larger.rows.table_weights("t")[planned.number - 5][None])


@pytest.mark.parametrize("rows", ["3", "100%"])
def test_unchanged_rows_begin_as_a_larger_table_does(rows: str) -> None:
    """Neither their tier nor the number of batches planned when the loop ended matters."""
    tables = [TableConfig(name="t", num_embeddings=n, embedding_dim=4) for n in (10, 30)]
    smaller, larger, new = (
        TieredEmbeddingBag([one], TierConfig(device_rows=rows), optimizer=SGD(lr=1.0))
        for one in (tables[0], tables[1], tables[1])
    )
    ready = smaller.look_ahead([bags([n]) for n in range(5)], depth=2)
    sum_of(smaller(next(ready))).backward()
    smaller.step()
    next(ready)
    ready.close()
    larger.rows.load_state_arrays(smaller.rows.state_arrays(), grow=True)
    np.testing.assert_array_equal(larger.rows.table_weights("t")[0], smaller.rows.table_weights("t")[0])
    np.testing.assert_array_equal(larger.rows.table_weights("t")[1:], new.rows.table_weights("t")[1:])


def test_more_hot_rows_than_there_is_room_for() -> None:
    embeddings, _ = trained()
    small = build(skip=SKIP.model_copy(update={"hot_rows": "5"}))
    with pytest.raises(CheckpointError, match=r"skip.hot_rows: expected room for .* rows of width 4, got .* Set it"):
        small.rows.load_state_arrays(embeddings.rows.state_arrays())


# --- larger tables -----------------------------------------------------------------------------------------------


def sized(*rows: int, skip: SkipConfig | None = None) -> TieredEmbeddingBag:
    tables = [
        TableConfig(name=name, num_embeddings=number, embedding_dim=width, init_bound=0.5)
        for name, number, width in zip("abc", rows, (4, 4, 8), strict=True)
    ]
    return TieredEmbeddingBag(tables, TierConfig(device_rows="80%"), policy=LFU, optimizer=Adam(lr=0.1), skip=skip)


@pytest.mark.parametrize("skip", [None, SkipConfig(rule="defer", interval=2, min_accesses=1)])
def test_larger_tables_load_the_rows_of_smaller_ones(skip: SkipConfig | None) -> None:
    small, large = sized(20, 10, 30, skip=skip), sized(25, 10, 31, skip=skip)
    batches = random_batches([table for group in small.runtime.pipeline.groups for table in group.tables], 8, samples=4)
    step_all(small, batches[:5], depth=1)
    arrays = small.rows.state_arrays()
    with pytest.raises(CheckpointError, match=r"expected tables of .*grow=True"):
        large.rows.load_state_arrays(arrays)
    large.rows.load_state_arrays(arrays, grow=True)
    for embeddings in (small, large):
        step_all(embeddings, batches[5:], depth=1)
    for name, rows in (("a", 20), ("b", 10), ("c", 30)):
        assert np.array_equal(large.rows.table_weights(name)[:rows], small.rows.table_weights(name))
    assert np.array_equal(large.rows.table_weights("a")[20:], sized(25, 10, 31).rows.table_weights("a")[20:])
    with pytest.raises(CheckpointError, match="expected tables of"):
        small.rows.load_state_arrays(large.rows.state_arrays(), grow=True)


@pytest.mark.nightly
@pytest.mark.parametrize("depth", [0, 3])
def test_one_look_ahead_per_day_trains_the_same(depth: int) -> None:
    """A custom loop, day by day: rows, their state, records and numbers of batches continue."""
    tables = [TableConfig(name="t", num_embeddings=40, embedding_dim=4)]
    batches = random_batches(tables, 10, samples=3)

    def trained(*days: list[Batch]) -> dict[str, np.ndarray]:
        embeddings = TieredEmbeddingBag(tables, TierConfig(device_rows="80%"), policy="lru", optimizer=Adam())
        for day in days:
            for planned in embeddings.look_ahead(day, depth=depth):
                (sum_of(embeddings(planned)) ** 2).backward()
                embeddings.step()
        return embeddings.rows.state_arrays()

    whole, by_day = trained(batches), trained(batches[:6], batches[6:])
    for name, array in whole.items():
        assert np.array_equal(array, by_day[name]), name
