"""`SimulatedRun`: one policy with one device size, planned without row values.

`SharedTrace` plans the same batches for several runs, in chunks, and keeps the trace of these batches.

Letters: U distinct rows of a batch, T tables.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TierConfig, TrainConfig
from adaptive.counters import Counter
from adaptive.data.dataset import Dataset
from adaptive.embeddings.planning.access_events import AccessNotifier, RowView
from adaptive.embeddings.planning.access_log import Trace
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.lookups import DistinctFinder, check_batch, lay_out_bags
from adaptive.embeddings.planning.planner import Planner, SlotChanges
from adaptive.embeddings.planning.policy_calls import PolicyCaller
from adaptive.embeddings.planning.sizing import choose_slots, row_bytes
from adaptive.errors import DeviceMemoryError, InputError, PolicyError
from adaptive.kernels.planning import traces
from adaptive.kernels.planning.lookups import Distinct
from adaptive.optim import RowOptimizer
from adaptive.policy import Policy, arranges
from adaptive.training.components import total_steps


@dataclass(frozen=True)
class Setup:
    """Settings that all runs of a simulation share."""

    group: Group
    optimizer: RowOptimizer
    tier: TierConfig
    depth: int


class SimulatedRun:
    """Plans batches as training would, and counts what `statistics.take` would count.

    Ids do not show the sizes of updates: policies see those of fresh rows, and nothing is deferred (`skips_unknown`).

    Attributes:
        tally: (T, counters) sums over the planned batches.
        popular: samples all of whose rows were on the device when their batch was planned.
        seconds: total time, including calibration and counts that only a simulation makes.
        error: the reason why the run stopped: its device tier is too small, or its policy failed.
        skips_unknown: training would skip or defer updates.

    Args:
        setup: shared settings.
        policy: with its skip rule, if it has one.
        device_rows: as in `tier.device_rows`.
        skip: settings of skipping; None to skip nothing.

    Raises:
        AdaptiveError: for an impossible size, or a rule that fails at once.
    """

    def __init__(self, setup: Setup, policy: Policy, device_rows: str, skip: SkipConfig | None = None) -> None:
        tier = setup.tier.model_copy(update={"device_rows": device_rows})
        sizes = choose_slots((setup.group,), tier, setup.optimizer, policy)
        self.setup, self.policy = setup, policy
        self.num_slots = sizes.slots[0]
        self.policy_caller = PolicyCaller(policy)
        row_size = row_bytes(setup.group, setup.optimizer)
        self.planner = Planner(setup.group, self.num_slots, tier, self.policy_caller, row_size)
        self.policy_caller.begin(type(setup.optimizer).__name__.lower())
        self.skips_unknown = skip is not None and self.policy_caller.skips
        self.view = RowView([self.planner.group], [self.planner])
        self._notifier = AccessNotifier([self.planner], self.policy_caller)
        self.tally = np.zeros((len(setup.group.tables), len(Counter)), np.int64)
        self.batches = self.samples = self.popular = 0
        self.seconds = 0.0
        self.error: DeviceMemoryError | PolicyError | None = None
        self._reduces_lookahead = tier.when_full == "reduce_lookahead"
        self._ahead: deque[tuple[Batch, Distinct]] = deque()

    @property
    def staged(self) -> bool:
        return self.policy.misses == "prefetch"

    @property
    def arranges(self) -> bool:
        """True if the policy regroups or drops inputs, so that no other run has its batches."""
        return arranges(self.policy_caller.policy)

    def calibrate(self, sample: Sequence[Batch]) -> None:
        """Show the policy a sample of the training data."""
        with self.timed():
            self.policy_caller.calibrate(sample, self.view)

    def arranged(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return the batches as the policy arranges them."""
        return self.policy_caller.arrange(batches, self.view, self.view.rows)

    def add(self, batch: Batch, distinct: Distinct) -> None:
        """Add the next batch, and plan the one whose window it completes."""
        self._ahead.append((batch, distinct))
        if len(self._ahead) > self.policy.window:
            self._plan_first()

    def end_epoch(self) -> None:
        """Plan the batches that are left in the window."""
        while self._ahead:
            self._plan_first()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time spent inside; an error stops only this run."""
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
            changes = self._prepare(distinct, [later for _, later in self._ahead])
            self._count_popular(batch, changes)
            self._commit(batch, changes)

    def _prepare(self, distinct: Distinct, window: list[Distinct]) -> SlotChanges:
        depth = self.setup.depth
        while True:
            try:
                return self._notifier.prepare([distinct], self.batches, depth, [window])[0]
            except DeviceMemoryError:
                if not self._reduces_lookahead or depth == 0:
                    raise
                depth -= 1

    def _count_popular(self, batch: Batch, changes: SlotChanges) -> None:
        """Count samples whose rows are all on the device, before the batch moves any."""
        cold = np.empty(batch.num_samples, np.bool_)
        inverse, locations = changes.distinct.inverse, changes.locations
        self.popular += int(traces.popular_inputs(batch.offsets, inverse, locations, cold))

    def _commit(self, batch: Batch, changes: SlotChanges) -> None:
        """Commit the batch to the planner's records and add its counts."""
        bags = None if self.staged else lay_out_bags(self.setup.group, batch)
        tally, _ = self.planner.commit_books(changes, bags)
        self.tally += tally
        self.batches += 1
        self.samples += batch.num_samples


CHUNK: Final = 32  # batches that a run plans before the next run does, so that its records stay in the CPU cache

OnProgress = Callable[[int, int | None], None]
"""Called with the number of planned batches and, if known, their total."""


def least_device_rows(streams: "Sequence[SharedTrace]") -> int | None:
    """Device rows that are enough for all batches of all streams; None if no stream knows."""
    sizes = [rows for stream in streams if (rows := stream.least_device_rows) is not None]
    return max(sizes, default=None)


@dataclass
class SharedTrace:
    """Runs that plan the same batches, and the trace of these batches.

    Attributes:
        runs: policy and device size as the user wrote them, and the run.
        seconds: time of finding distinct rows and recording the trace.
    """

    runs: list[tuple[str, str, SimulatedRun]]
    setup: Setup
    trace: Trace = field(init=False)
    lookups: int = 0
    batches: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.trace = Trace(self.setup.group.num_rows)
        self._finder = DistinctFinder(self.setup.group)

    def read(self, dataset: Dataset, config: TrainConfig, on_progress: OnProgress) -> None:
        """Plan the batches that training with `config` would train."""
        total = total_steps(config, dataset)
        for epoch in range(config.epochs):
            left = None if config.steps is None else config.steps - self.batches
            if left == 0 or self.is_over:
                break
            for _ in self._read_epoch(islice(dataset.train(config.batch_size, epoch=epoch), left)):
                on_progress(self.batches, total)
            for _, _, run in self.runs:
                run.end_epoch()
        if not self.batches and not self.is_over:
            raise InputError(f"data {config.data}: expected training samples, got none")

    @property
    def is_over(self) -> bool:
        """True if no run can continue.

        If all runs are too small, batches are still read, to find the size that is enough.
        """
        return all(run.error for _, _, run in self.runs) and not self.is_too_small

    @property
    def is_too_small(self) -> bool:
        """True if every run stopped because of its device size."""
        errors = [run.error for _, _, run in self.runs]
        return all(isinstance(error, DeviceMemoryError) for error in errors) and not self.runs[0][2].arranges

    @property
    def least_device_rows(self) -> int | None:
        """Device rows for the batches in flight; None if unknown, or if no policy prefetches."""
        is_staged = any(run.staged for _, _, run in self.runs)
        return self.trace.most_held(self.setup.depth) if is_staged and not self.is_over else None

    def _read_epoch(self, batches: Iterator[Batch]) -> Iterator[None]:
        """Plan the batches of an epoch in chunks; yields after each."""
        (_, _, first), size = self.runs[0], CHUNK
        if first.arranges:  # it may ask where rows are, so it must not run ahead of the plan
            batches, size = first.arranged(batches), 1
        while not self.is_over:
            try:
                chunk = list(islice(batches, size))
            except PolicyError as error:  # from `arrange`, so the stream has only this run
                first.error = error
                break
            if not chunk:
                break
            self._plan(chunk)
            yield

    def _plan(self, chunk: Sequence[Batch]) -> None:
        started = time.perf_counter()
        rows = [self._finder.find(check_batch(batch, [self.setup.group])) for batch in chunk]
        for distinct in rows:
            self.trace.add(distinct.rows)
            self.lookups += len(distinct.inverse)
        self.batches += len(chunk)
        self.seconds += time.perf_counter() - started
        for _, _, run in self.runs:
            for batch, distinct in zip(chunk, rows, strict=True):
                run.add(batch, distinct)
