"""`SimulatedRun`: one policy and one device size. Its planner keeps books as in training; no row has a value.

Letters: U distinct rows of a batch, T tables.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.config import TierConfig
from adaptive.counters import Counter
from adaptive.errors import DeviceMemoryError, InputError, PolicyError
from adaptive.kernels import belady, planning
from adaptive.optim import RowOptimizer
from adaptive.planning.layout import Group
from adaptive.planning.lookups import Distinct
from adaptive.planning.planner import Arrival, Planner
from adaptive.planning.policy_calls import Referee
from adaptive.planning.sizing import choose_slots, row_bytes
from adaptive.planning.tier_view import RowView
from adaptive.policy import Policy, arranges

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Setup:
    """What all runs of a simulation share."""

    group: Group
    optimizer: RowOptimizer
    tier: TierConfig
    depth: int


class SimulatedRun:
    """Plans batch after batch as training would, and counts what `take_statistics` would count.

    Nothing is skipped, and what a policy is told of values (update sizes, drift) is what it is told of fresh rows.

    Attributes:
        tally: (T, counters) sums over the batches planned so far.
        popular: samples all of whose rows were on the device when their batch was planned.
        seconds: spent planning.
        error: why the run stopped: its device tier is too small, or its policy failed.
    """

    def __init__(self, setup: Setup, policy: Policy, device_rows: str) -> None:
        tier = setup.tier.model_copy(update={"device_rows": device_rows})
        sizes = choose_slots((setup.group,), tier, setup.optimizer, policy)
        self.setup, self.policy = setup, policy
        self.num_slots = sizes.slots[0]
        self.referee = Referee(policy, tier.policy_timeout_s)
        row_size = row_bytes(setup.group, setup.optimizer)
        self.planner = Planner(setup.group, self.num_slots, tier, self.referee, row_size)
        self.view = RowView([self.planner])
        self.tally = np.zeros((len(setup.group.tables), len(Counter)), np.int64)
        self.batches = self.samples = self.popular = self.host_vectors = 0
        self.seconds = 0.0
        self.error: DeviceMemoryError | PolicyError | None = None
        self._shallower = tier.when_full == "shallower"
        self._ahead: deque[tuple[Batch, Distinct]] = deque()

    @property
    def staged(self) -> bool:
        return self.policy.misses == "stage"

    @property
    def arranges(self) -> bool:
        """The policy regroups or drops inputs, so that its batches are its own."""
        return arranges(self.referee.policy)

    def calibrate(self, sample: Sequence[Batch]) -> None:
        """Show the policy a sample of the training data."""
        with self.timed():
            self.referee.calibrate(sample, self.view)

    def arranged(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches as the policy arranges them."""
        return self.referee.arrange(batches, self.view)

    def add(self, batch: Batch, distinct: Distinct) -> None:
        """The next batch has been read; plan the one whose window it completes."""
        self._ahead.append((batch, distinct))
        if len(self._ahead) > self.policy.window:
            self._plan_first()

    def end_epoch(self) -> None:
        """No batch follows; plan those that were read for the window."""
        while self._ahead:
            self._plan_first()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Adds the time spent inside; an error that is this run's own stops it, and no other."""
        started = time.perf_counter()
        try:
            yield
        except (DeviceMemoryError, PolicyError) as error:
            self.error = error
        finally:
            self.seconds += time.perf_counter() - started

    def _plan_first(self) -> None:
        batch, distinct = self._ahead.popleft()
        if self.error is not None:
            return
        with self.timed():
            arrival = self._prepare(distinct, [later for _, later in self._ahead])
            self._settle(batch, arrival)

    def _prepare(self, distinct: Distinct, window: list[Distinct]) -> Arrival:
        depth = self.setup.depth
        while True:
            try:
                return self.planner.prepare(distinct, self.batches, depth, window)
            except DeviceMemoryError:
                self.planner.let_go(distinct)
                if not self._shallower or depth == 0:
                    raise
                depth -= 1

    def _settle(self, batch: Batch, arrival: Arrival) -> None:
        """What `Planner.commit` does to the books. The batch is not described to kernels: nothing is pooled."""
        planner, distinct, locations = self.planner, arrival.distinct, arrival.locations
        tally = np.zeros_like(self.tally)
        planning.count_tables(distinct.table_ends, distinct.counts, locations, tally)
        cold = np.empty(batch.num_samples, np.bool_)
        self.popular += int(belady.popular_inputs(batch.offsets, distinct.inverse, locations, cold))
        planner.slots.release(arrival.victims, tally)
        planner.slots.take(arrival.takers, distinct.rows, locations, self.batches, tally)
        fresh = np.empty(len(distinct.rows), np.int64)
        tracker = planner.tracker
        planning.use_rows_on_host(distinct.rows, tracker.codes, locations, fresh)
        planning.touch(distinct.rows, distinct.counts, self.batches, tracker.accesses, tracker.last_access)
        planning.mark_dirty(np.arange(len(distinct.rows)), locations, planner.slots.flags)
        self._count_bytes(batch, distinct, locations, tally)
        self.tally += tally
        self.batches += 1
        self.samples += batch.num_samples

    def _count_bytes(self, batch: Batch, distinct: Distinct, locations: Int64s, tally: Int64s) -> None:
        group = self.setup.group
        size = row_bytes(group, self.setup.optimizer)
        tally[:, Counter.BYTES_H2D] += tally[:, Counter.FETCHED] * size
        tally[:, Counter.BYTES_D2H] += tally[:, Counter.WRITTEN_BACK] * size
        if self.staged:
            return
        vectors, lookups = np.zeros(len(group.tables), np.int64), np.empty(len(distinct.inverse), np.int64)
        planning.lookup_locations(distinct.inverse, locations, lookups)
        tables = np.repeat(np.array([f.table for f in group.features], np.int32), batch.num_samples)
        planning.count_host_vectors(tables, batch.offsets, lookups, vectors)
        tally[:, [Counter.BYTES_H2D, Counter.BYTES_D2H]] += 4 * group.embedding_dim * vectors[:, None]
        self.host_vectors += int(vectors.sum())


def checked(batch: Batch, group: Group) -> Batch:
    """The batch itself, if it fits the tables.

    Raises:
        InputError: if it is empty or has another number of features.
    """
    if not batch.num_samples:
        raise InputError("a batch without samples; leave it out")
    if batch.num_features != len(group.features):
        raise InputError(f"the tables have {len(group.features)} features, a batch has {batch.num_features}")
    return batch
