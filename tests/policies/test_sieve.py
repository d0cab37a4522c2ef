"""SIEVE by hand and against a queue made of a list, through the real planner."""

from collections.abc import Sequence

import numpy as np
from builders import HalfResident, batch_of
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive import Counter, TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.policies.sieve import Sieve

NUM_ROWS = 30


class Queue:
    """The algorithm as published, one row at a time; rows of the batch being planned are passed over."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.queue: list[int] = []  # oldest first
        self.marked: dict[int, bool] = {}
        self.hand = 0  # position in the queue
        self.hits = 0

    def batch(self, ids: Sequence[int]) -> None:
        needed = sorted(set(ids))
        here = [row for row in needed if row in self.queue]
        self.hits += len(here)
        for row in here:
            self.marked[row] = True
        coming = [row for row in needed if row not in here]
        while len(self.queue) + len(coming) > self.size:
            self.evict(needed)
        for row in coming:
            self.queue.append(row)
            self.marked[row] = False

    def evict(self, held: Sequence[int]) -> None:
        while True:
            if self.hand >= len(self.queue):
                self.hand = 0
            row = self.queue[self.hand]
            if row in held:
                self.hand += 1
            elif self.marked[row]:
                self.marked[row] = False
                self.hand += 1
            else:
                del self.queue[self.hand]
                return


def hits(batches: Sequence[Sequence[int]], size: int, depth: int = 0) -> tuple[int, list[int]]:
    """Hits of the planner, and the rows that are on the device at the end."""
    tier = TierConfig(device_rows=str(size), device="cpu", eviction_share=0)
    table = TableConfig(name="t", num_embeddings=NUM_ROWS, embedding_dim=1)
    with TieredEmbeddingBag([table], tier, policy=Sieve()) as embeddings:
        for planned in embeddings.look_ahead((batch_of(ids) for ids in batches), depth=depth):
            embeddings.stack(planned).sum().backward()  # type: ignore[no-untyped-call]
            embeddings.step()
        counts = embeddings.statistics.take().counts
        resident = np.flatnonzero(embeddings.runtime.view.resident(np.arange(NUM_ROWS))).tolist()
    return int(counts[:, Counter.ROW_HITS].sum()), resident


def test_marked_rows_are_passed_over_once() -> None:
    """1 is used again, so 2 leaves for 4; the hand stands behind 1, whose mark is gone, and 3 leaves for 5.

    From there on newer rows leave first: that is what tells SIEVE from a clock.
    """
    assert hits([[1], [2], [3], [1], [4]], 3) == (1, [1, 3, 4])
    assert hits([[1], [2], [3], [1], [4], [5]], 3) == (1, [1, 4, 5])
    assert hits([[1], [2], [3], [1], [4], [5], [6], [7]], 3) == (1, [1, 6, 7])


def test_when_all_are_marked_the_hand_goes_around() -> None:
    assert hits([[1], [2], [3], [1, 2, 3], [4]], 3) == (3, [2, 3, 4])
    assert hits([[1], [2], [3], [1, 2, 3], [4], [5]], 3) == (3, [3, 4, 5])


def test_a_row_that_returns_stands_at_the_end_without_a_mark() -> None:
    assert hits([[1], [1], [2], [3]], 2) == (1, [1, 3])
    assert hits([[1], [1], [2], [3], [2]], 2) == (1, [1, 2])
    assert hits([[1], [1], [2], [3], [2], [2], [4]], 2) == (2, [2, 4])


@settings(max_examples=60, deadline=None)
@given(st.integers(4, 12), st.integers(0, 10**6))
def test_the_planner_under_sieve_is_the_queue(size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    batches = [(random.power(0.4, random.integers(1, 5)) * NUM_ROWS).astype(int).tolist() for _ in range(60)]
    queue = Queue(size)
    for ids in batches:
        queue.batch(ids)
    assert hits(batches, size) == (queue.hits, sorted(queue.queue))


def test_rows_in_flight_are_passed_over() -> None:
    found, resident = hits([[1], [2], [3], [1], [4], [5], [6]], 5, depth=2)
    assert found == 1 and len(resident) == 5


def test_it_goes_on_from_its_state() -> None:
    policy, restored = Sieve(), Sieve()
    for number, rows in enumerate([[1, 2, 3], [4, 5]]):
        policy.looked_up(number, np.array(rows), HalfResident((NUM_ROWS,)))
        policy.came(number, np.array(rows)[np.array(rows) % 2 == 1])
    restored.load_state_dict(policy.state_dict())
    for name, value in policy.state_dict().items():
        assert np.array_equal(restored.state_dict()[name], value)
    assert policy.state_dict()["rows"].tolist() == [1, 3, 5]
