"""Skipped updates: exactly those that the skip rule names, wherever rows lie and however far ahead one looks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
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
from support.skip_rules import LeaveOut, everything, waits

import adaptive.embeddings.planning.policy_calls
from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embeddings.planning.hot_set import Candidates, WatchedRows
from adaptive.embeddings.planning.lookups import Distinct
from adaptive.embeddings.planning.plan import Feedback, Snapshots
from adaptive.embeddings.planning.skipping import DeferralBook
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.kernels.planning.books import DUE, NOW, SKIPPED, WAITS
from adaptive.kernels.planning.watched import SHORTER
from adaptive.optim import Adagrad, Adam, RowOptimizer
from adaptive.policies.lru import LRU
from adaptive.policy import Policy, RowStats, SkipRule

SKIP = SkipConfig(interval=4, min_visits=1, hot_rows="100%", min_accesses=3, feedback_delay=5)
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
    """Movement decides, with hysteresis; each row is let through at one in four questions. It keeps no state."""

    def __init__(self) -> None:
        self.rule = LeaveOut(self.choose)

    def choose(self, rows: RowStats) -> NDArray[np.bool_]:
        moved = (rows.drift > 0) & (rows.drift_accesses >= 2)
        limit = np.where(rows.saturated, 0.4, 0.2)
        probed = (rows.rows + rows.step // SKIP.interval) % 4 == 0
        return np.where(moved, rows.drift <= limit, rows.saturated) & ~probed


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


def rows_watched(batches: Sequence[Batch], skip: SkipConfig) -> list[Skipped]:
    """Before each batch: the rows looked up often enough by all batches before it."""
    counts: dict[tuple[str, int], int] = {}
    watched: list[Skipped] = []
    for batch in batches:
        watched.append({row for row, count in counts.items() if count >= skip.min_accesses})
        for feature, name in enumerate(("a", "a", "b")):
            spans = reference.bag_spans(batch, feature)
            for row in batch.ids[spans[0][0] : spans[-1][1]].tolist():
                counts[name, row] = counts.get((name, row), 0) + 1
    return watched


@pytest.mark.parametrize("policy", [EvenRows, EvenRowsOnHost])
@pytest.mark.parametrize("depth", [0, 3])
def test_exactly_the_rows_that_a_rule_names_are_skipped(policy: type[Policy], depth: int) -> None:
    trained, _ = run(policy, depth=depth, device_rows="85%")
    watched = rows_watched(BATCHES, SKIP)
    expected = []
    for number, batch in enumerate(BATCHES):
        asked = number - number % SKIP.interval
        here = {(name, row) for name, rows in table_rows(TABLES, batch).items() for row in rows}
        # Rows are numbered through: table b starts at 12, so its even ids are even rows, too.
        expected.append({(name, row) for name, row in watched[asked] & here if row % 2 == 0} if asked else set())
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
    skip = SkipConfig(interval=1, min_visits=1, hot_rows="100%", min_accesses=1, feedback_delay=0)
    embeddings = one_table(6, "2", EverybodyRests, skip=skip)
    initial = embeddings.rows.table_weights("t")
    batches = [bags([1, 2]), bags([3, 4])] * 3
    done = step_all(embeddings, batches)
    tallies = [planned.works[0].plan.tally[0] for planned in done if planned.works[0].plan is not None]
    # Each pair changes at its first visit only, and is written back once, when the other pair comes.
    assert [tally[Counter.DEMOTED] for tally in tallies] == [0, 2, 2, 2, 2, 2]
    assert [tally[Counter.WRITTEN_BACK] for tally in tallies] == [0, 2, 2, 0, 0, 0]
    assert [tally[Counter.SKIPPED_UPDATES] for tally in tallies] == [0, 0, 2, 2, 2, 2]
    assert planner_of(embeddings).slots.dirty().tolist() == []
    assert embeddings.statistics.take().saturated_rows.tolist() == [4]
    expected = initial.copy()
    expected[1:5] -= 1
    assert np.array_equal(embeddings.rows.table_weights("t"), expected)


class EverybodyRests(LRU):
    def __init__(self) -> None:
        self.rule = LeaveOut(everything)


def test_the_view_knows_who_is_saturated() -> None:
    skip = SkipConfig(interval=1, min_visits=1, hot_rows="100%", min_accesses=1, feedback_delay=0)
    embeddings = one_table(6, policy=EvenRows, skip=skip)
    step_all(embeddings, [bags([1, 2]), bags([4, 1])])
    assert embeddings.runtime.view.saturated(np.arange(6)).tolist() == [False, False, True, False, False, False]
    step_all(embeddings, [bags([5])])
    assert embeddings.runtime.view.saturated(np.arange(6)).tolist() == [False, False, True, False, True, False]


# --- what a policy is told about movement --------------------------------------------------------------------------


@dataclass
class Told:
    """One question: row -> drift, lookups between the two snapshots, current verdict."""

    step: int
    rows: dict[int, tuple[float, int, bool]]


class Listens(LRU):
    def __init__(self) -> None:
        self.heard: list[Told] = []
        self.rule = LeaveOut(self.choose)

    def choose(self, rows: RowStats) -> NDArray[np.bool_]:
        columns = (rows.drift.tolist(), rows.drift_accesses.tolist(), rows.saturated.tolist())
        told = dict(zip(rows.rows.tolist(), zip(*columns, strict=True), strict=True))
        self.heard.append(Told(rows.step, told))
        verdicts: NDArray[np.bool_] = (rows.rows + rows.step) % 3 == 0
        return verdicts


def movement(batches: Sequence[Batch], tables_after: list[NDArray[np.float32]], skip: SkipConfig) -> list[Told]:
    """The slow twin: snapshots at each row's own pace, known `feedback_delay` batches later."""
    accesses: dict[int, int] = {}
    since: dict[int, int] = {}  # watched row -> lookups since its snapshot
    visits: dict[int, int] = {}  # and batches that looked it up
    taken: dict[int, int] = {}  # snapshots
    snapshots: dict[int, NDArray[np.float32]] = {}
    left_out: set[int] = set()  # rows of which an update was skipped since their snapshot
    measured: list[dict[int, tuple[float, int]]] = []
    verdicts: dict[int, bool] = {}
    questions = []
    for number, (batch, table) in enumerate(zip(batches, tables_after, strict=True)):
        if number and number % skip.interval == 0:
            known: dict[int, tuple[float, int]] = {}
            for earlier in measured[: max(0, number - skip.feedback_delay)]:
                known |= earlier
            told = {row: (*known.get(row, (float("nan"), 0)), verdicts.get(row, False)) for row in since}
            questions.append(Told(number, told))
            verdicts = {row: (row + number) % 3 == 0 for row in since}
        found = {}
        for row, count in zip(*np.unique(batch.ids, return_counts=True), strict=True):
            row = int(row)
            accesses[row] = accesses.get(row, 0) + int(count)
            if accesses[row] < skip.min_accesses:
                continue
            since[row] = since.get(row, 0) + int(count)
            visits[row] = visits.get(row, 0) + 1
            if verdicts.get(row, False):
                left_out.add(row)
            shorter = max(SHORTER + 1 - taken.get(row, 0), 0)
            due = since[row] >= skip.min_accesses >> shorter and visits[row] >= skip.min_visits >> shorter
            if row not in snapshots or due:
                taken[row] = taken.get(row, 0) + 1
                before = None if row in left_out else snapshots.get(row)
                found[row] = (float(reference.drift(table[row], before)), since[row])
                snapshots[row], since[row], visits[row] = table[row].copy(), 0, 0
                left_out.discard(row)
        measured.append(found)
    return questions


@pytest.mark.parametrize("delay", [0, 3])
def test_movement_is_measured_as_the_slow_twin_measures_it(delay: int) -> None:
    skip = SkipConfig(interval=4, min_visits=1, hot_rows="100%", min_accesses=3, feedback_delay=delay)
    rng = np.random.default_rng(1)
    batches = [bags(rng.integers(0, 8, 5).tolist()) for _ in range(40)]
    policy = Listens()
    embeddings = one_table(8, policy=policy, skip=skip, optimizer=Adagrad(lr=0.05))
    tables_after = []
    for planned in embeddings.look_ahead(batches, depth=0):
        sum_of(embeddings(planned)).square().backward()
        embeddings.step()
        tables_after.append(embeddings.rows.table_weights("t"))
    expected = movement(batches, tables_after, skip)
    assert [told.step for told in policy.heard] == [told.step for told in expected]
    for told, wanted in zip(policy.heard, expected, strict=True):
        assert set(told.rows) == set(wanted.rows)
        for row, numbers in told.rows.items():
            assert np.array_equal(numbers, wanted.rows[row], equal_nan=True), (told.step, row)
    assert any(drift > 0 for told in expected for drift, _, _ in told.rows.values())


def test_a_batch_that_is_not_stepped_takes_no_snapshot() -> None:
    """Movement is measured from the last snapshot that was really taken, never from an empty one."""
    skip = SkipConfig(interval=1, min_visits=1, hot_rows="100%", min_accesses=1, feedback_delay=0)
    policy = Listens()
    embeddings = one_table(4, policy=policy, skip=skip)
    for planned in embeddings.look_ahead([bags([1])] * 4, depth=0):
        if planned.number > 0:
            sum_of(embeddings(planned)).backward()
            embeddings.step()
    assert np.isnan(policy.heard[1].rows[1][0]), "batch 1 took the first snapshot: nothing to compare it with"


def test_loading_forgets_who_was_watched() -> None:
    """Verdicts, snapshots and counts belong to the rows that were there; with others loaded, training starts anew."""
    skip = SkipConfig(interval=1, min_visits=1, hot_rows="100%", min_accesses=2, feedback_delay=0)
    used, fresh = (one_table(policy=EverybodyRests, skip=skip) for _ in range(2))
    blank = {name: array.copy() for name, array in used.rows.state_arrays().items()}
    step_all(used, [bags([1, 2])] * 6)
    used.rows.load_state_arrays(blank)
    assert used.statistics.take().saturated_rows.tolist() == [0]
    for embeddings in (used, fresh):
        step_all(embeddings, [bags([1, 2])] * 6)
    assert np.array_equal(used.rows.table_weights("t"), fresh.rows.table_weights("t"))


def test_a_checkpoint_keeps_the_counts_of_the_latest_answer() -> None:
    """Between two questions rows become ready to wait; a run that goes on from there reports what it would have."""
    skip = SkipConfig(
        rule="defer+by=visits+every=1+warmup=0",
        interval=4,
        min_visits=1,
        hot_rows="100%",
        min_accesses=1,
        feedback_delay=0,
    )
    whole, resumed = (one_table(policy="lru", skip=skip) for _ in range(2))
    # asked before batch 4: row 1 may wait; row 2 may from batch 7 on
    step_all(whole, [bags([1])] * 6 + [bags([2])] * 2)
    assert whole.statistics.take().waiting_rows.tolist() == [1]
    resumed.rows.load_state_arrays({name: array.copy() for name, array in whole.rows.state_arrays().items()})
    assert resumed.statistics.take().waiting_rows.tolist() == [1]


def test_waiting_and_at_rest_are_two_things() -> None:
    """Row 0 has k = 16 and still moves by 85% of its length: it waits, and is not at rest. Row 1 moved by 3%: it is at
    rest, and written at every visit. Row 2 moved by 3% in a short first interval, row 3 by 5%, row 4 is not measured,
    and of row 5 an update was skipped: none of them is at rest."""
    policy = Listens()
    policy.rule = Sixteenth()
    skip = SkipConfig(min_accesses=64, min_visits=32, hot_rows="100%")
    skipper = planner_of(one_table(8, policy=policy, skip=skip)).skipper
    assert skipper is not None and skipper.deferral is not None
    skipper.hot.admit(
        np.arange(6), Candidates(np.full(6, 400, np.uint32), np.zeros(6, np.int32)), np.zeros(6, np.int32)
    )
    skipper.deferral.visits[:6] = 400
    measured = np.array([0, 1, 2, 3, 5], np.int32)
    lookups, visits = np.array([64, 64, 32, 64, 64]), np.array([64, 32, 32, 64, 64])
    snapshots = Snapshots(np.zeros(5, np.int64), measured, np.ones(5, np.bool_), lookups, visits)
    drifts = np.array([0.85, 0.03, 0.03, 0.05, np.nan], np.float32)
    skipper.learn(Feedback(np.zeros(0, np.int64), np.zeros(0, np.float32), snapshots, drifts))
    for _ in range(2):  # the second time, the rule sees its first answer
        skipper.ask(128)
    counts = skipper.watched_counts
    assert (counts.watched.tolist(), counts.judged.tolist()) == ([6], [5])
    assert (counts.waiting.tolist(), counts.at_rest.tolist(), counts.saturated.tolist()) == ([1], [1], [0])
    first, second = policy.rule.seen
    assert not first.waiting.any() and second.waiting.tolist() == [True] + 5 * [False]
    assert first.at_rest.tolist() == second.at_rest.tolist() == [False, True] + 4 * [False]


def test_without_need_for_movement_a_sample_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two rows that are watched, for reports: training is what it is without. A checkpoint keeps them.

    One batch in four looks up each row, one in seven is sampled: sooner or later these are batches of all rows.
    """
    rule = "defer+by=visits+every=2+warmup=0"
    skip = SkipConfig(rule=rule, interval=4, min_visits=1, hot_rows="100%", min_accesses=1, feedback_delay=0)
    batches = [bags([1]), bags([2]), bags([3]), bags([4])] * 20
    tables = {}
    for sampled in (0, 2, 9):
        monkeypatch.setattr(adaptive.embeddings.planning.policy_calls, "SAMPLED_ROWS", sampled)
        embeddings, resumed = (one_table(policy="lru", skip=skip) for _ in range(2))
        step_all(embeddings, batches)
        statistics = embeddings.statistics.take()
        tables[sampled] = embeddings.rows.table_weights("t")
        assert statistics.watched_rows.tolist() == statistics.waiting_rows.tolist() == [4]
        assert statistics.judged_rows.tolist() == [min(sampled, 4)]
        arrays = {name: array.copy() for name, array in embeddings.rows.state_arrays().items()}
        resumed.rows.load_state_arrays(arrays)
        assert resumed.statistics.take().judged_rows.tolist() == [min(sampled, 4)]
        for each in (embeddings, resumed):
            step_all(each, batches)
        assert np.array_equal(resumed.rows.table_weights("t"), embeddings.rows.table_weights("t"))
        assert resumed.statistics.take().at_rest_rows.tolist() == embeddings.statistics.take().at_rest_rows.tolist()
    assert np.array_equal(tables[0], tables[2]) and np.array_equal(tables[0], tables[9])


class Sixteenth(SkipRule):
    """Row 0 is written at every 16th visit, all others at every visit."""

    def __init__(self) -> None:
        self.seen: list[RowStats] = []

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        self.seen.append(rows)
        return np.where(rows.rows == 0, 16, 1)


# --- `DeferralBook`: whose gradient waits, and when the sum is applied -----------------------------------------------


def distinct(rows: int) -> Distinct:
    """Row 3, or rows 0, 1, ...: each looked up once."""
    numbers = np.array([3]) if rows == 1 else np.arange(rows)
    return Distinct(numbers, np.ones(rows, np.int32), np.zeros(0, np.int32), np.array([rows]))


def visits(book: DeferralBook, count: int, *, first: int = 0, accesses: int = 1, answer: int = 0) -> str:
    """What happens at each visit: `.` a plain update, `w` the gradient waits, `A` the sum is applied.

    `answer`: of the rule, 0: it is not asked.
    """
    story = ""
    for number in range(first, first + count):
        fates, (summed, entries, due) = np.zeros(1, np.uint8), np.full((3, 1), 9, np.int32)
        counts = book.decide(
            number,
            WatchedRows(np.zeros(1, np.int32), np.zeros(1, np.int32)),
            distinct(1),
            np.full(1, accesses, np.uint32),
            (fates, summed, entries, due),
            np.full(1, max(answer, 1) - 1, np.uint8),
        )
        story += {NOW: ".", WAITS: "w", DUE: "A"}[int(fates[0])]
        assert counts == (story[-1] != ".", story[-1] == "A")
        assert summed[0] == entries[0] == due[0] == 0
    return story


def book(every: int = 4, at_most: int = 3, warmup: int = 0, *, asks: bool = False) -> DeferralBook:
    rule = waits(every, at_most, warmup)
    rule.asks = asks
    return DeferralBook(1, rule)


def test_the_longer_its_history_the_longer_a_row_waits() -> None:
    """k = visits / 4: 1 up to visit 7, 2 up to visit 11, then 3, its limit."""
    assert visits(book(), 20) == "......." + "wAwAw" + "wAwwAwwA"


def test_a_row_admitted_late_gets_visits_by_its_current_rate() -> None:
    """It was looked up 40 times, once in this batch: 40 visits, so it waits at once, up to its limit."""
    assert visits(book(), 4, accesses=40) == "wwAw"


def test_saturated_and_unwatched_rows_count_no_visit() -> None:
    """Of three distinct rows the first is not watched and the last is saturated: only entry 1, the second's, visits."""
    mine = DeferralBook(3, waits(every=4, at_most=3))
    fates, lists = np.array([NOW, NOW, SKIPPED], np.uint8), tuple(np.full((3, 3), 9, np.int32))
    watched = WatchedRows(np.array([1, 2], np.int32), np.array([1, 0], np.int32))
    accesses, rows = np.full(3, 99, np.uint32), distinct(3)
    assert mine.decide(5, watched, rows, accesses, (fates, *lists), np.zeros(3, np.uint8)) == (1, 0)
    assert fates.tolist() == [NOW, WAITS, SKIPPED]
    assert [array[0] for array in lists[:2]] == [1, 1]
    assert mine.visits.tolist() == [0, 99, 0]


def test_rows_with_a_sum_and_those_due_are_listed() -> None:
    mine = DeferralBook(4, waits(every=1, at_most=2))
    mine.visits[:] = 50
    mine.waiting[:] = [0, 1, 0, 1]
    fates, (summed, entries, due) = np.zeros(6, np.uint8), np.full((3, 6), 9, np.int32)
    watched = WatchedRows(np.array([0, 2, 3, 5], np.int32), np.array([2, 1, 0, 3], np.int32))
    lists, accesses = (fates, summed, entries, due), np.zeros(6, np.uint32)
    assert mine.decide(0, watched, distinct(6), accesses, lists, np.zeros(6, np.uint8)) == (4, 2)
    assert fates.tolist() == [WAITS, NOW, DUE, WAITS, NOW, DUE]
    assert (summed[:4].tolist(), entries[:4].tolist()) == ([0, 2, 3, 5], [2, 1, 0, 3])
    assert due[:2].tolist() == [1, 3]
    assert mine.waiting.tolist() == [1, 0, 1, 0]


@given(
    every=st.integers(1, 9), at_most=st.integers(1, 12), warmup=st.integers(0, 30), accesses=st.integers(1, 200),
    count=st.integers(1, 120),
)  # fmt: skip
def test_the_book_equals_the_formula(every: int, at_most: int, warmup: int, accesses: int, count: int) -> None:
    """k = clamp(visits / every, 1, at_most), as a rule that is not asked has it."""
    story, seen, waiting = "", accesses - 1, 0
    for number in range(count):
        seen += 1
        k = max(1, min(seen // every, at_most)) if number >= warmup else 1
        waits = waiting + 1 < k
        story += "w" if waits else "A" if waiting else "."
        waiting = waiting + 1 if waits else 0
    assert visits(book(every, at_most, warmup), count, accesses=accesses) == story


def test_a_rule_says_for_how_many_visits_a_gradient_waits() -> None:
    """Its answers count from the next visit on: a row that is found to move again waits no longer than it says now."""
    one = book(every=1, at_most=255, asks=True)
    assert visits(one, 1, answer=1) == "."
    assert visits(one, 5, first=1, answer=3) == "wwAww"
    assert visits(one, 3, first=6, answer=1) == "A.."
