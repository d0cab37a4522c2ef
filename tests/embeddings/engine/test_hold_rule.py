"""The number of batches that hold their rows, simulated and real: one less loses updates.

The look-ahead thread plans batch k, writes evicted rows back and fetches its own; the training thread trains one
batch after another. With look-ahead d, plan k waits until batch k - d - 1 is trained, so batches k - d ... k - 1
may still be in training while k's rows move: they, and k itself, hold their rows. Nothing after k needs holding,
for a plan's write back is over before the next plan's fetch begins.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import Scattered, after_sums, bags, one_table, sum_of, wait_for_look_ahead

from adaptive.batch import Batch
from adaptive.embeddings.planning import planner
from adaptive.errors import DeviceMemoryError

NUM_ROWS, PRIME = 12, 1_000_003


def updated(value: int, batch: int) -> int:
    """An update whose order matters."""
    return (value * 3 + batch) % PRIME


@dataclass
class Simulation:
    """Two threads whose steps are interleaved at random."""

    batches: list[list[int]]
    depth: int
    hold: int  # batches before the planned one whose rows keep their slots
    wait: int  # a plan waits until all batches up to `wait` before it are trained
    fetch_first: bool = False
    seed: int = 0
    host: list[int] = field(default_factory=lambda: list(range(NUM_ROWS)))
    trained: int = -1
    fetched: int = -1

    def run(self) -> list[int]:
        """The rows after training."""
        rng = np.random.default_rng(self.seed)
        self.slot_of: dict[int, int] = {}
        self.slots = [0] * (NUM_ROWS * 2)
        self.free = list(range(len(self.slots)))
        self.plans: list[dict[int, int]] = []
        threads = {"look-ahead": self.look_ahead(rng), "training": self.training()}
        while threads:
            name = sorted(threads)[rng.integers(len(threads))]
            if next(threads[name], None) is None:
                del threads[name]
        for row, slot in self.slot_of.items():
            self.host[row] = self.slots[slot]
        return self.host

    def look_ahead(self, rng: np.random.Generator):  # type: ignore[no-untyped-def]
        for number, rows in enumerate(self.batches):
            while self.trained < number - self.wait:
                yield "waiting"
            held = set().union(*self.batches[max(0, number - self.hold) : number + 1])
            idle = [row for row in self.slot_of if row not in held]
            evicted = {row: self.slot_of.pop(row) for row in idle if rng.random() < 0.7}
            missing = [row for row in rows if row not in self.slot_of]
            self.free += evicted.values()
            self.slot_of |= {row: self.free.pop() for row in missing}
            self.plans.append({row: self.slot_of[row] for row in rows})
            yield "planned"
            moves = [self.write_back(evicted), self.fetch(missing)]
            for move in reversed(moves) if self.fetch_first else moves:
                yield from move
            self.fetched = number
            yield "fetched"

    def write_back(self, evicted: dict[int, int]):  # type: ignore[no-untyped-def]
        for row, slot in evicted.items():
            self.host[row] = self.slots[slot]
            yield "written back"

    def fetch(self, missing: list[int]):  # type: ignore[no-untyped-def]
        for row in missing:
            self.slots[self.slot_of[row]] = self.host[row]
            yield "copied"

    def training(self):  # type: ignore[no-untyped-def]
        for number, rows in enumerate(self.batches):
            while self.fetched < number:
                yield "waiting"
            for row in rows:
                slot = self.plans[number][row]
                self.slots[slot] = updated(self.slots[slot], number)
                yield "updated"
            self.trained = number


def one_after_the_other(batches: list[list[int]]) -> list[int]:
    rows = list(range(NUM_ROWS))
    for number, batch in enumerate(batches):
        for row in batch:
            rows[row] = updated(rows[row], number)
    return rows


def skewed(seed: int, num_batches: int = 25) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [sorted(set((rng.random(3) ** 2 * NUM_ROWS).astype(int).tolist())) for _ in range(num_batches)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(0, 5))
def test_the_rule_is_exact(seed: int, depth: int) -> None:
    batches = skewed(seed)
    simulated = Simulation(batches, depth, hold=depth, wait=depth + 1, seed=seed).run()
    assert simulated == one_after_the_other(batches)


def wrong_runs(depth: int, *, hold: int, wait: int, fetch_first: bool = False) -> int:
    runs = [Simulation(skewed(seed), depth, hold, wait, fetch_first, seed) for seed in range(60)]
    return sum(run.run() != one_after_the_other(run.batches) for run in runs)


@pytest.mark.parametrize("depth", range(1, 6))
def test_one_batch_less_held_loses_updates(depth: int) -> None:
    assert wrong_runs(depth, hold=depth, wait=depth + 1) == 0
    assert wrong_runs(depth, hold=depth - 1, wait=depth + 1) > 0


@pytest.mark.parametrize("depth", range(4))
def test_one_batch_less_waited_for_loses_updates(depth: int) -> None:
    assert wrong_runs(depth, hold=depth, wait=depth + 2) > 0


def test_fetching_before_writing_back_loses_updates() -> None:
    assert wrong_runs(1, hold=1, wait=2, fetch_first=True) > 0


# --- rows that are used on the host --------------------------------------------------------------------------------


@dataclass
class HostSimulation(Simulation):
    """Missed rows may stay on the host. One that a batch in flight uses there is late: the training thread fetches it
    `early` batches before the batch with whose plan it got its slot; None: the look-ahead thread fetches it."""

    early: int | None = 0
    late: int = 0  # how many were

    def look_ahead(self, rng: np.random.Generator):  # type: ignore[no-untyped-def]
        self.late_of: list[list[int]] = []
        for number, rows in enumerate(self.batches):
            while self.trained < number - self.wait:
                yield "waiting"
            in_flight = set().union(*self.batches[max(0, number - self.depth) : number])
            idle = [row for row in self.slot_of if row not in in_flight | set(rows)]
            evicted = {row: self.slot_of.pop(row) for row in idle if rng.random() < 0.7}
            coming = [row for row in rows if row not in self.slot_of and rng.random() < 0.5]
            late = [row for row in coming if row in in_flight]
            self.late += len(late)
            self.free += evicted.values()
            self.slot_of |= {row: self.free.pop() for row in coming}
            self.plans.append({row: self.slot_of.get(row, -1) for row in rows})
            self.late_of.append([] if self.early is None else late)
            yield "planned"
            yield from self.write_back(evicted)
            yield from self.fetch([row for row in coming if row not in late] if self.early is not None else coming)
            self.fetched = number
            yield "fetched"

    def training(self):  # type: ignore[no-untyped-def]
        for number, rows in enumerate(self.batches):
            while self.fetched < min(number + (self.early or 0), len(self.batches) - 1):
                yield "waiting"
            for coming in range(number, min(number + (self.early or 0) + 1, len(self.batches))):
                for row in self.late_of[coming]:
                    self.slots[self.plans[coming][row]] = self.host[row]
                self.late_of[coming] = []
            for row in rows:
                slot, table = self.plans[number][row], self.slots
                if slot < 0:
                    slot, table = row, self.host
                table[slot] = updated(table[slot], number)
                yield "updated"
            self.trained = number


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(0, 5))
def test_late_rows_are_fetched_in_time(seed: int, depth: int) -> None:
    batches = skewed(seed)
    simulation = HostSimulation(batches, depth, hold=depth, wait=depth + 1, seed=seed)
    assert simulation.run() == one_after_the_other(batches)
    assert depth or not simulation.late


@pytest.mark.parametrize("early", [None, 1])
@pytest.mark.parametrize("depth", range(1, 5))
def test_a_late_row_that_is_fetched_earlier_loses_updates(depth: int, early: int | None) -> None:
    """By the look-ahead thread, as rows that no batch in flight uses; or one batch too soon."""
    runs = [
        HostSimulation(skewed(seed), depth, hold=depth, wait=depth + 1, seed=seed, early=early) for seed in range(30)
    ]
    assert any(run.run() != one_after_the_other(run.batches) for run in runs)


# --- the real thing ------------------------------------------------------------------------------------------------


def train_eagerly(batches: list[Batch], depth: int) -> bool:
    """Train with the look-ahead as far ahead as it gets; whether the table is what it should be."""
    embeddings = one_table(NUM_ROWS, str(NUM_ROWS - 1), Scattered, when_full="reduce_lookahead", eviction_share=0.5)
    initial = embeddings.rows.table_weights("t")
    for planned in embeddings.look_ahead(batches, depth=depth):
        if planned.number % 3:
            wait_for_look_ahead(embeddings, planned, min(1, depth), len(batches))
        sum_of(embeddings(planned)).backward()
        embeddings.step()
    return np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, batches))


@pytest.mark.parametrize("depth", range(4))
def test_the_planner_holds_enough(depth: int) -> None:
    assert all(train_eagerly([bags(rows) for rows in skewed(seed, 40)], depth) for seed in range(5))


def test_the_planner_holds_no_more_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it held one batch less, tables would be wrong: so this test would notice."""
    monkeypatch.setattr(planner._Question, "oldest_held", property(lambda self: self.number - self.depth + 1))
    batches = [bags([0, 0, 0]), bags([1]), bags([2, 2]), bags([0])]
    embeddings = one_table(3, "1", Scattered)
    initial = embeddings.rows.table_weights("t")
    for planned in embeddings.look_ahead(batches, depth=1):
        wait_for_look_ahead(embeddings, planned, 1, len(batches))
        sum_of(embeddings(planned)).backward()
        embeddings.step()
    assert not np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, batches))


def test_with_the_rule_the_same_training_does_not_fit() -> None:
    with pytest.raises(DeviceMemoryError, match="2 device rows"):
        for _ in one_table(3, "1", Scattered).look_ahead([bags([0]), bags([1])], depth=1):
            pass
