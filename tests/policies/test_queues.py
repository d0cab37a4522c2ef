"""SIEVE and S3-FIFO by hand and against queues made of lists, through the real planner."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders import batch_of
from support.example_policies import S3Fifo, Sieve

from adaptive import Counter, Policy, TableConfig, TierConfig, TieredEmbeddingBag

NUM_ROWS = 40


def hits(policy: Policy, batches: Sequence[Sequence[int]], size: int, depth: int = 0) -> tuple[int, list[int]]:
    """Hits of the planner, and the rows that are on the device at the end."""
    tier = TierConfig(device_rows=str(size), device="cpu", eviction_share=0)
    table = TableConfig(name="t", num_embeddings=NUM_ROWS, embedding_dim=1)
    with TieredEmbeddingBag([table], tier, policy=policy) as embeddings:
        for planned in embeddings.look_ahead((batch_of(ids) for ids in batches), depth=depth):
            embeddings.stack(planned).sum().backward()  # type: ignore[no-untyped-call]
            embeddings.step()
        counts = embeddings.statistics.take().counts
        resident = np.flatnonzero(embeddings.runtime.view.resident(np.arange(NUM_ROWS))).tolist()
    return int(counts[:, Counter.ROW_HITS].sum()), resident


# --- SIEVE -----------------------------------------------------------------------------------------------------------


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


def test_marked_rows_are_passed_over_once() -> None:
    """1 is used again, so 2 leaves for 4; the hand stands behind 1, whose mark is gone, and 3 leaves for 5.

    From there on newer rows leave first: that is what tells SIEVE from a clock.
    """
    assert hits(Sieve(), [[1], [2], [3], [1], [4]], 3) == (1, [1, 3, 4])
    assert hits(Sieve(), [[1], [2], [3], [1], [4], [5]], 3) == (1, [1, 4, 5])
    assert hits(Sieve(), [[1], [2], [3], [1], [4], [5], [6], [7]], 3) == (1, [1, 6, 7])


@pytest.mark.nightly
@settings(max_examples=60, deadline=None)
@given(st.integers(4, 12), st.integers(0, 10**6))
def test_the_planner_under_sieve_is_the_queue(size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    batches = [(random.power(0.4, random.integers(1, 5)) * NUM_ROWS).astype(int).tolist() for _ in range(60)]
    queue = Queue(size)
    for ids in batches:
        queue.batch(ids)
    assert hits(Sieve(), batches, size) == (queue.hits, sorted(queue.queue))


# --- S3-FIFO ---------------------------------------------------------------------------------------------------------


class Queues:
    """The algorithm one row at a time; rows of the batch being planned are passed over."""

    def __init__(self, size: int, small: float) -> None:
        self.size, self.most_main = size, size - int(small * size)
        self.small: list[int] = []  # oldest first
        self.main: list[int] = []
        self.left: list[int] = []  # the small queue, latest last
        self.visits: dict[int, int] = {}
        self.hits = 0

    def batch(self, ids: Sequence[int]) -> None:
        held = sorted(set(ids))
        here = [row for row in held if row in self.small + self.main]
        self.hits += len(here)
        for row in here:
            self.visits[row] = min(self.visits[row] + 1, 3)
        known = self.left[-self.most_main :]
        coming = [row for row in held if row not in here]
        self.main += [row for row in coming if row in known]
        self.small += [row for row in coming if row not in known]
        for row in coming:
            self.visits[row] = 0
            self.left = [0 if row == other else other for other in self.left]  # its place is taken, not given away
        self.make_room(held)

    def make_room(self, held: Sequence[int]) -> None:
        moving: list[int] = []
        while len(self.small) + len(self.main) + len(moving) > self.size:
            small = [row for row in self.small if row not in held]
            main = [row for row in self.main if row not in held]
            if main and (len(self.main) + len(moving) > self.most_main or not small):
                self.evict(main)
            elif small:
                self.small.remove(small[0])
                if self.visits[small[0]] >= 2:
                    self.visits[small[0]] = 0
                    moving.append(small[0])
                else:
                    self.left.append(small[0])
            else:
                moving.pop(0)
        self.main += moving

    def evict(self, main: list[int]) -> None:
        while True:
            row = main.pop(0)
            self.main.remove(row)
            if self.visits[row] == 0:
                return
            self.visits[row] -= 1
            self.main.append(row)
            main.append(row)


def test_what_is_used_once_leaves_in_order() -> None:
    assert hits(S3Fifo(small=0.34), [[1], [2], [3], [1], [4]], 3) == (1, [2, 3, 4]), "one visit does not keep 1"


def test_what_is_used_twice_moves_on_and_survives_a_scan() -> None:
    assert hits(S3Fifo(small=0.34), [[1], [1], [1], [2], [3], [4], [5], [6]], 3) == (2, [1, 5, 6])


def test_the_main_queue_goes_around() -> None:
    """Main has room for 1 and 2. When 4 moves on, too, the older of them leaves, unless it was used again."""
    in_main = [[1], [1], [1], [2], [2], [2], [3], [4]]
    assert hits(S3Fifo(small=0.34), in_main, 3)[1] == [1, 2, 4]
    assert hits(S3Fifo(small=0.34), [*in_main, [4], [4], [5]], 3)[1] == [2, 4, 5]
    assert hits(S3Fifo(small=0.34), [*in_main, [1], [4], [4], [5]], 3)[1] == [1, 4, 5]


@pytest.mark.nightly
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(5, 16), st.sampled_from([0.1, 0.2, 0.34, 0.5]), st.integers(0, 10**6))
def test_the_planner_under_s3fifo_is_the_queues(size: int, small: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    batches = [(1 + random.power(0.4, random.integers(1, 6)) * (NUM_ROWS - 1)).astype(int).tolist() for _ in range(80)]
    queues = Queues(size, small)
    for ids in batches:
        queues.batch(ids)
    assert hits(S3Fifo(small=small), batches, size) == (queues.hits, sorted(queues.small + queues.main))
