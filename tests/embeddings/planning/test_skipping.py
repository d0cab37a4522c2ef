"""Skipped updates: exactly those that the skip rule names, wherever rows lie and however far ahead one looks."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
import reference
import torch
from numpy.typing import NDArray
from support.helpers import (
    Skipped,
    Trained,
    bags,
    one_table,
    planner_of,
    random_batches,
    step_all,
    sum_of,
    table_rows,
    train,
    train_slowly,
)
from support.skip_rules import LeaveOut, everything

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embeddings.planning.skipping import Skipper
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer
from adaptive.policies.lru import LRU
from adaptive.policy import Policy, RowStats

SKIP = SkipConfig(interval=4, hot_rows="100%", min_accesses=3, feedback_delay=5)
TABLES = (
    TableConfig(name="a", num_embeddings=12, embedding_dim=4, features=("x", "y")),
    TableConfig(name="b", num_embeddings=30, embedding_dim=16, pooling="mean"),
)
BATCHES = random_batches(TABLES, 40, seed=3, samples=4)


class EvenRows(LRU):
    """A rule that looks at nothing but the row."""

    def __init__(self) -> None:
        self.rule = LeaveOut(lambda rows: np.equal(rows.rows % 2, 0))


class EvenRowsOnHost(EvenRows):
    misses: Literal["prefetch", "host"] = "host"


class Nobody(LRU):
    def __init__(self) -> None:
        self.rule = LeaveOut(lambda rows: np.zeros(len(rows), np.bool_))


class StandsStill(LRU):
    """Sizes of updates decide; each row is let through at one in four questions. It keeps no state."""

    def __init__(self) -> None:
        self.rule = LeaveOut(self.choose)

    def choose(self, rows: RowStats) -> NDArray[np.bool_]:
        probed = (rows.rows + rows.step // SKIP.interval) % 4 == 0
        return (rows.update_size < 0.2) & ~probed


class StandsStillOnHost(StandsStill):
    misses: Literal["prefetch", "host"] = "host"


def run(
    policy: type[Policy] | Policy,
    *,
    device_rows: str = "100%",
    depth: int = 0,
    skip: SkipConfig | None = SKIP,
    optimizer: RowOptimizer = Adagrad(lr=0.1),  # noqa: B008 (immutable)
) -> tuple[Trained, NDArray[np.int64]]:
    """What was trained, and the counts."""
    tier = TierConfig(device_rows=device_rows, poison=True, when_full="reduce_lookahead")
    embeddings = TieredEmbeddingBag(TABLES, tier, policy=policy, optimizer=optimizer, skip=skip)
    trained = train(embeddings, TABLES, BATCHES, depth)
    return trained, embeddings.statistics.take().counts


def hot_rows_of(batches: Sequence[Batch], skip: SkipConfig) -> list[Skipped]:
    """Before each batch: the rows looked up often enough by all batches before it."""
    counts: dict[tuple[str, int], int] = {}
    hot: list[Skipped] = []
    for batch in batches:
        hot.append({row for row, count in counts.items() if count >= skip.min_accesses})
        for feature, name in enumerate(("a", "a", "b")):
            spans = reference.bag_spans(batch, feature)
            for row in batch.ids[spans[0][0] : spans[-1][1]].tolist():
                counts[name, row] = counts.get((name, row), 0) + 1
    return hot


@pytest.mark.parametrize("policy", [EvenRows, EvenRowsOnHost])
@pytest.mark.parametrize("depth", [0, 3])
def test_exactly_the_rows_that_a_rule_names_are_skipped(policy: type[Policy], depth: int) -> None:
    trained, _ = run(policy, depth=depth, device_rows="85%")
    hot = hot_rows_of(BATCHES, SKIP)
    expected = []
    for number, batch in enumerate(BATCHES):
        asked = number - number % SKIP.interval
        here = {(name, row) for name, rows in table_rows(TABLES, batch).items() for row in rows}
        # Rows are numbered through: table b starts at 12, so its even ids are even rows, too.
        expected.append({(name, row) for name, row in hot[asked] & here if row % 2 == 0} if asked else set())
    assert trained.skipped == expected
    assert sum(map(len, expected)) > 50


@pytest.mark.parametrize("optimizer", [Adagrad(lr=0.1), Adam(lr=0.01)], ids=["adagrad", "adam"])
@pytest.mark.parametrize("policy", [EvenRows, EvenRowsOnHost, StandsStill, StandsStillOnHost])
def test_tables_equal_a_training_that_skips_exactly_these(policy: type[Policy], optimizer: RowOptimizer) -> None:
    trained, _ = run(policy, depth=2, device_rows="85%", optimizer=optimizer)
    assert any(trained.skipped)
    trained.assert_equals(train_slowly(TABLES, BATCHES, optimizer, skipped=trained.skipped))


@pytest.mark.parametrize(
    ("policy", "device_rows"),
    [
        (StandsStill, "85%"),
        (StandsStill, "100%"),
        (StandsStillOnHost, "0%"),
        (StandsStillOnHost, "30%"),
        (StandsStillOnHost, "100%"),
    ],
)
def test_decisions_do_not_depend_on_depth_size_or_misses(policy: type[Policy], device_rows: str) -> None:
    expected, _ = run(StandsStill)
    assert sum(map(len, expected.skipped)) > 20
    woken = [row for earlier in expected.skipped for row in earlier if row not in expected.skipped[-1]]
    assert woken, "no row was let through again: the example shows nothing"
    for depth in (0, 1, SKIP.feedback_delay):
        trained, _ = run(policy, depth=depth, device_rows=device_rows)
        assert trained.skipped == expected.skipped
        trained.assert_equals(expected)


@pytest.mark.parametrize("depth", [0, 3])
def test_nobody_saturated_or_nobody_asked_equals_the_plain_run(depth: int) -> None:
    plain = train_slowly(TABLES, BATCHES, Adagrad(lr=0.1))
    for policy, skip in [(Nobody, SKIP), (EvenRows, None), (StandsStill, None), (LRU, SKIP)]:
        trained, counts = run(policy, skip=skip, depth=depth, device_rows="85%")
        trained.assert_equals(plain)
        assert not any(trained.skipped)
        assert counts[:, [Counter.SKIPPED_UPDATES, Counter.SKIPPED_LOOKUPS]].sum() == 0


def test_skipped_updates_and_look_ups_are_counted_per_table() -> None:
    trained, counts = run(EvenRows, depth=1)
    for number, name in enumerate(("a", "b")):
        updates = sum(table == name for skipped in trained.skipped for table, _ in skipped)
        lookups = 0
        for batch, skipped in zip(BATCHES, trained.skipped, strict=True):
            for feature, table in enumerate(("a", "a", "b")):
                spans = reference.bag_spans(batch, feature)
                ids = batch.ids[spans[0][0] : spans[-1][1]].tolist()
                lookups += sum((table, row) in skipped for row in ids if table == name)
        assert counts[number, [Counter.SKIPPED_UPDATES, Counter.SKIPPED_LOOKUPS]].tolist() == [updates, lookups]
        assert updates > 0


def test_a_row_with_skipped_updates_only_is_not_written_back() -> None:
    skip = SkipConfig(interval=1, hot_rows="100%", min_accesses=1, feedback_delay=0)
    embeddings = one_table(6, "2", EverybodyRests, skip=skip)
    initial = embeddings.rows.table_weights("t")
    batches = [bags([1, 2]), bags([3, 4])] * 3
    done = step_all(embeddings, batches)
    tallies = [planned.works[0].plan.tally[0] for planned in done if planned.works[0].plan is not None]
    # Each pair changes at its first visit only, and is written back once, when the other pair comes.
    assert [tally[Counter.EVICTED] for tally in tallies] == [0, 2, 2, 2, 2, 2]
    assert [tally[Counter.WRITTEN_BACK] for tally in tallies] == [0, 2, 2, 0, 0, 0]
    assert [tally[Counter.SKIPPED_UPDATES] for tally in tallies] == [0, 0, 2, 2, 2, 2]
    assert planner_of(embeddings).slots.dirty().tolist() == []
    expected = initial.copy()
    expected[1:5] -= 1
    assert np.array_equal(embeddings.rows.table_weights("t"), expected)


class EverybodyRests(LRU):
    def __init__(self) -> None:
        self.rule = LeaveOut(everything)


def test_the_view_knows_who_is_saturated() -> None:
    skip = SkipConfig(interval=1, hot_rows="100%", min_accesses=1, feedback_delay=0)
    embeddings = one_table(6, policy=EvenRows, skip=skip)
    step_all(embeddings, [bags([1, 2]), bags([4, 1])])
    hot = skipper_of(embeddings).hot
    hot.sizes[hot.entries_of(np.array([1, 2, 4]))] = 0.05, 0.049, np.nan
    assert embeddings.runtime.view.saturated(np.arange(6)).tolist() == [False, False, True, False, False, False]


def skipper_of(embeddings: TieredEmbeddingBag) -> Skipper:
    skipper = planner_of(embeddings).skipper
    assert skipper is not None
    return skipper


# --- what a rule is told about sizes of updates ----------------------------------------------------------------------


@dataclass
class Told:
    """One question: row -> size of its updates."""

    step: int
    rows: dict[int, float]


class Listens(LRU):
    def __init__(self) -> None:
        self.heard: list[Told] = []
        self.rule = LeaveOut(self.choose)

    def choose(self, rows: RowStats) -> NDArray[np.bool_]:
        assert np.array_equal(rows.saturated, rows.update_size < 0.05)
        self.heard.append(Told(rows.step, dict(zip(rows.rows.tolist(), rows.update_size.tolist(), strict=True))))
        verdicts: NDArray[np.bool_] = (rows.rows + rows.step) % 3 == 0
        return verdicts


def sizes_slowly(batches: Sequence[Batch], tables: list[NDArray[np.float32]], skip: SkipConfig) -> list[Told]:
    """The slow twin: running means of the updates that were known `feedback_delay` batches later.

    tables: before each batch, and at the end.
    """
    accesses: dict[int, int] = {}
    sizes: dict[int, np.float32] = {}  # of hot rows
    skipped: set[int] = set()
    updates: list[list[int]] = []
    questions = []
    for number, batch in enumerate(batches):
        if number > skip.feedback_delay:
            past = number - 1 - skip.feedback_delay
            for row in updates[past]:
                if row in sizes:
                    norm = np.linalg.norm(tables[past + 1][row] - tables[past][row])
                    sizes[row] = reference.update_size(sizes[row], norm, np.linalg.norm(tables[past][row]), 1)
        if number and number % skip.interval == 0 and sizes:
            questions.append(Told(number, {row: float(size) for row, size in sizes.items()}))
            skipped = {row for row in sizes if (row + number) % 3 == 0}
        for row, count in zip(*np.unique(batch.ids, return_counts=True), strict=True):
            accesses[int(row)] = accesses.get(int(row), 0) + int(count)
            if accesses[int(row)] >= skip.min_accesses:
                sizes.setdefault(int(row), np.float32(np.nan))
        updates.append([int(row) for row in np.unique(batch.ids) if int(row) not in skipped])
    return questions


@pytest.mark.parametrize("delay", [0, 3])
def test_sizes_are_those_of_the_slow_twin(delay: int) -> None:
    skip = SkipConfig(interval=4, hot_rows="100%", min_accesses=3, feedback_delay=delay)
    rng = np.random.default_rng(1)
    batches = [bags(rng.integers(0, 8, 5).tolist()) for _ in range(40)]
    policy = Listens()
    embeddings = one_table(8, policy=policy, skip=skip, optimizer=Adagrad(lr=0.05))
    tables = [embeddings.rows.table_weights("t")]
    for planned in embeddings.look_ahead(batches, depth=0):
        sum_of(embeddings(planned)).square().backward()
        embeddings.step()
        tables.append(embeddings.rows.table_weights("t"))
    expected = sizes_slowly(batches, tables, skip)
    assert [told.step for told in policy.heard] == [told.step for told in expected]
    for told, wanted in zip(policy.heard, expected, strict=True):
        assert told.rows.keys() == wanted.rows.keys()
        numbers = list(told.rows.values()), [wanted.rows[row] for row in told.rows]
        np.testing.assert_allclose(*numbers, rtol=1e-3, err_msg=f"batch {told.step}")
    assert any(size > 0 for told in expected for size in told.rows.values())


def test_loading_empties_the_hot_set() -> None:
    """Verdicts, snapshots and counts belong to the rows that were there; with others loaded, training starts anew."""
    skip = SkipConfig(interval=1, hot_rows="100%", min_accesses=2, feedback_delay=0)
    used, fresh = (one_table(policy=EverybodyRests, skip=skip) for _ in range(2))
    blank = {name: array.copy() for name, array in used.rows.state_arrays().items()}
    step_all(used, [bags([1, 2])] * 6)
    used.rows.load_state_arrays(blank)
    assert used.statistics.take().saturated_rows.tolist() == [0]
    for embeddings in (used, fresh):
        step_all(embeddings, [bags([1, 2])] * 6)
    assert np.array_equal(used.rows.table_weights("t"), fresh.rows.table_weights("t"))


def test_a_checkpoint_keeps_the_counts_of_the_latest_call() -> None:
    """Between two calls rows become saturated; a run that goes on from there reports what it would have."""
    skip = SkipConfig(rule="defer+warmup=0", interval=4, hot_rows="100%", min_accesses=1, feedback_delay=0)
    whole, resumed = (one_table(policy="lru", skip=skip) for _ in range(2))
    step_all(whole, [bags([1])] * 6)
    hot = skipper_of(whole).hot
    hot.sizes[0] = 0.01
    assert whole.statistics.take().saturated_rows.tolist() == [0]
    hot.saturated[0] = True
    skipper_of(whole).count_hot_rows()
    resumed.rows.load_state_arrays({name: array.copy() for name, array in whole.rows.state_arrays().items()})
    statistics = resumed.statistics.take()
    assert (statistics.hot_rows.tolist(), statistics.saturated_rows.tolist()) == ([1], [1])


# --- which batches are measured --------------------------------------------------------------------------------------


def test_about_sixteen_batches_between_two_calls_are_measured() -> None:
    """Rows that are written in every k-th batch alone are measured as often as others, whatever k is."""
    embeddings = one_table(8, skip=SkipConfig(rule="defer", interval=64))
    measured = np.array([skipper_of(embeddings).measures(number) for number in range(20_000)])
    for stride in range(1, 65):
        shares = [measured[first::stride].mean() for first in range(stride)]
        assert min(shares) > 0.15 and max(shares) < 0.35, stride
    few = one_table(8, skip=SkipConfig(rule="defer", interval=16))
    assert all(skipper_of(few).measures(number) for number in range(100))


@pytest.mark.parametrize("warmup", [0, 10**6])
def test_rows_are_measured_in_these_batches_alone(warmup: int) -> None:
    skip = SkipConfig(rule=f"defer+warmup={warmup}", interval=32, hot_rows="100%", min_accesses=1, feedback_delay=0)
    embeddings = one_table(8, skip=skip)
    skipper, lines, sizes = skipper_of(embeddings), [], []
    for planned in embeddings.look_ahead([Batch.of(t=[1, 2], labels=[0, 0])] * 80, depth=0):
        sizes.append(skipper.hot.sizes[: skipper.hot.num_entries].copy())
        sum_of(embeddings(planned)).backward()
        embeddings.step()
        lines.append(planned.works[0].plan.norm_lines == 2)  # type: ignore[union-attr]
    assert lines == [skipper.measures(number) for number in range(80)] and sum(lines) == 40
    for number, (before, after) in enumerate(pairwise(sizes)):
        changed = len(before) != len(after) or bool((before != after).any())
        assert changed == lines[number], number


# --- a row that stops moving, and moves again ------------------------------------------------------------------------

SOON = SkipConfig(rule="defer+warmup=0", interval=2, hot_rows="100%", min_accesses=1, feedback_delay=2)


SIGNS = np.random.default_rng(0).choice([-1.0, 1.0], (120, 2))


def gradients(number: int) -> tuple[float, float]:
    """Of rows 1 and 2, to and fro. Row 1 stands still from batch 10 on, and moves again from batch 60 on."""
    size = 0.5 if number < 10 else 0.0001 if number < 60 else 2.0
    return size * SIGNS[number, 0], 0.5 * SIGNS[number, 1]


def states_of_rows(optimizer: RowOptimizer, depth: int) -> list[tuple[list[int], int]]:
    """For each batch: the rows whose gradient waits after it, and the number of saturated rows."""
    table = TableConfig(name="t", num_embeddings=3, embedding_dim=4, init_bound=1.0)
    tier = TierConfig(device_rows="100%", device="cpu")
    embeddings = TieredEmbeddingBag([table], tier, policy="lru", optimizer=optimizer, skip=SOON)
    states = []
    for planned in embeddings.look_ahead([Batch.of(t=[1, 2], labels=[0, 0])] * 120, depth=depth):
        plan = planned.works[0].plan
        assert plan is not None
        waits = [] if plan.deferred is None else np.delete(plan.deferred.summed, plan.deferred.applied)
        states.append((plan.row_updates.rows[np.asarray(waits, int)].tolist(), int(plan.hot_counts[1].sum())))
        factors = torch.tensor(gradients(planned.number))[:, None]
        (embeddings(planned)["t"] * factors).sum().backward()
        embeddings.step()
    return states


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("optimizer", [SGD(lr=1.0), Adagrad(lr=1.0, eps=1.0)], ids=["sgd", "adagrad"])
def test_a_row_whose_gradient_freezes_becomes_saturated(optimizer: RowOptimizer, depth: int) -> None:
    states = states_of_rows(optimizer, depth)
    assert all(waits == [] for waits, _ in states[:10]), "both rows move"
    assert [saturated for _, saturated in states[56:60]] == [1] * 4
    assert sum(waits == [1] for waits, _ in states[56:60]) >= 3 and all(waits in ([], [1]) for waits, _ in states)


def test_a_saturated_row_that_moves_again_is_updated_at_every_visit() -> None:
    """Once the sum in which its first large gradients are has been applied, measured and asked about."""
    states = states_of_rows(SGD(lr=1.0), 0)  # whose steps do not shrink
    assert any(waits == [1] for waits, _ in states[60:80])
    assert all(waits == [] and saturated == 0 for waits, saturated in states[82:])
