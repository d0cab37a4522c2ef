"""`StatisticsCollector`: what the tiers did since they were last asked, what they hold, and how large they are."""

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from adaptive.counters import Counter
from adaptive.embeddings.engine.build import MEMORY
from adaptive.embeddings.engine.pipeline import Pipeline, ReadyBatch
from adaptive.embeddings.planning.sizing import Sizes, resized
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.traffic import RankTraffic
from adaptive.optim import RowOptimizer


@dataclass(frozen=True)
class Statistics:
    """Counts, times and update sizes of the batches trained in an interval; `*_rows` and `policy` as of the latest of
    them, however far others are planned; tables as named."""

    batches: int
    counts: NDArray[np.int64]  # (tables, len(Counter))
    device_rows: int  # that the device tier has room for
    resident_rows: NDArray[np.int64]  # (tables,) on the device
    watched_rows: NDArray[np.int64]  # (tables,) as of the latest question to the policy or the skip rule
    judged_rows: NDArray[np.int64]  # (tables,) of these, with a verdict
    saturated_rows: NDArray[np.int64]  # (tables,) of these, whose updates are left out or wait
    times_ms: dict[str, float]  # summed over the batches, per stage
    update_norm_edges: NDArray[np.float64]  # (n + 1,)
    update_norm_counts: NDArray[np.int64]  # (n,) row updates by L2 norm: sizes come some batches after training
    update_norm_sum: float
    policy: Mapping[str, float]  # what the policy, and the skip rule beside it, want shown
    batches_in_parts: int = 0  # of the batches
    batches_waited: int = 0  # of those in parts: training had to wait for rows between two parts
    ranks: tuple[RankTraffic, ...] = ()  # of each rank that trains together


SUMMED = ("counts", "resident_rows", "watched_rows", "judged_rows", "saturated_rows", "update_norm_counts")


def _summed(ranks: Ranks, own: Statistics) -> Statistics:
    """Over all ranks. Times are this rank's."""
    everyones = ranks.gather_arrays(np.array([astuple(traffic) for traffic in own.ranks], np.float64))
    columns = [getattr(own, name) for name in SUMMED]
    numbers = np.concatenate([*(column.reshape(-1) for column in columns), [own.device_rows]])
    total = np.sum(ranks.gather_arrays(numbers.astype(np.int64)), axis=0)
    norms = ranks.gather_arrays(np.array([own.update_norm_sum]))
    *pieces, device_rows = np.split(total, np.cumsum([column.size for column in columns]))
    sums = {name: piece.reshape(col.shape) for name, piece, col in zip(SUMMED, pieces, columns, strict=True)}
    return replace(
        own,
        **sums,  # type: ignore[arg-type]
        device_rows=int(device_rows[0]),
        update_norm_sum=sum(float(norm[0]) for norm in norms),
        ranks=tuple(RankTraffic.of(traffic.tolist()) for traffic in everyones),
    )


class StatisticsCollector:
    """Counts of trained batches; times and histograms as differences. Of one training loop, not thread-safe."""

    def __init__(self, pipeline: Pipeline, sizes: Sizes, optimizer: RowOptimizer) -> None:
        self._pipeline, self._sizes, self._optimizer = pipeline, sizes, optimizer
        self._counts = self._zeros()
        self._resident = self._zeros()[:, 0]
        self._watched = [lane.planner.watched_counts() for lane in pipeline.lanes]
        self._policy: Mapping[str, float] = {}
        self._total = np.zeros(len(Counter), np.int64)  # over all tables, never reset
        self._batches = self._in_parts = self._waited = 0
        self._times: dict[str, float] = {}
        self._updates_taken = self._updates = pipeline.feedback.current_update_sizes()
        self._traffic = pipeline.exchange.traffic()

    def take(self) -> Statistics:
        """What happened since the last call; on all ranks, which call it together."""
        own, ranks = self._take_own(), self._pipeline.exchange.ranks
        return own if ranks.size == 1 else _summed(ranks, own)

    def counts(self) -> NDArray[np.int64]:
        """(len(Counter),) what was counted over all tables and all batches trained so far."""
        return self._total.copy()

    def policy_numbers(self) -> dict[str, float]:
        """What the policy, and its skip rule, report (`reported`). With no look-ahead running.

        Raises:
            PolicyError: if one names an attribute that does not exist, or no number.
        """
        return self._pipeline.policy_caller.reported()

    def table_rows(self) -> dict[str, int]:
        """Table -> its rows, in the order of `table_names`."""
        return {table.name: table.num_embeddings for lane in self._pipeline.lanes for table in lane.group.tables}

    @property
    def batches_trained(self) -> int:
        return self._pipeline.trained + 1

    def memory(self) -> dict[str, int]:
        """Bytes: of both tiers if every row were written, of records and slots, of snapshots and deferred sums, and of
        the transfer buffers, pinned and on the device; these grow with use."""
        totals = dict.fromkeys((*MEMORY, "pinned_buffers", "device_buffers"), 0)
        for lane in self._pipeline.lanes:
            weights, state, snapshots = lane.device.num_bytes
            of_device = (weights, state, lane.planner.num_bytes, snapshots)
            parts = (*lane.host.num_bytes, *of_device, *lane.device.buffer_bytes)
            for name, size in zip(totals, parts, strict=True):
                totals[name] += size
        return totals

    def host_io(self) -> dict[str, int]:
        """What has crossed between the host tier and its files so far: `reads`, `bytes_read`, `writes`,
        `bytes_written`. All 0 for a host tier in memory, and rows used in place are not counted."""
        counts = [asdict(lane.host.io) for lane in self._pipeline.lanes]
        return {name: sum(count[name] for count in counts) for name in counts[0]}

    @property
    def hot_set_is_full(self) -> bool:
        """No more rows can be watched in some group of this rank."""
        skippers = [lane.skipper for lane in self._pipeline.lanes]
        return any(skipper is not None and skipper.hot.num_entries == skipper.hot.capacity for skipper in skippers)

    def device_rows_text(self) -> str:
        """How many device rows there are and why, in one sentence."""
        if self._sizes.slots != tuple(lane.device.num_slots for lane in self._pipeline.lanes):
            self.resize("shared among widths by what batches ask")
        return self._sizes.text

    def resize(self, reason: str) -> None:
        """There are other numbers of slots now."""
        lanes = self._pipeline.lanes
        groups, slots = [lane.group for lane in lanes], [lane.device.num_slots for lane in lanes]
        self._sizes = resized(groups, slots, self._optimizer, reason)

    def _zeros(self) -> NDArray[np.int64]:
        tables = sum(len(lane.group.tables) for lane in self._pipeline.lanes)
        return np.zeros((tables, len(Counter)), np.int64)

    def add(self, ready: ReadyBatch, *, in_parts: bool, waited: bool) -> None:
        """Count a trained batch; `waited`: training had to wait for rows between two of its parts."""
        self._batches += 1
        self._in_parts += in_parts
        self._waited += waited
        counts = np.concatenate([plan.tally for plan in ready.plans])
        self._watched = [plan.watched or old for plan, old in zip(ready.plans, self._watched, strict=True)]
        self._policy, self._updates = ready.reported, ready.update_sizes
        self._counts += counts
        self._total += counts.sum(axis=0)
        evicted = np.concatenate(self._pipeline.evicted_between_batches)
        self._resident += counts[:, Counter.PROMOTED] - counts[:, Counter.DEMOTED] - evicted
        for of_group in self._pipeline.evicted_between_batches:
            of_group[:] = 0

    def lose(self, left: NDArray[np.int64]) -> None:
        """Count rows (tables,) that left the device outside of a batch."""
        self._resident -= left

    def count_rows(self) -> None:
        """Count the rows in slots as resident, those that are watched, and all updates. No batch is in flight."""
        self._updates = self._pipeline.feedback.current_update_sizes()
        self._watched = [lane.planner.watched_counts() for lane in self._pipeline.lanes]
        self._resident = np.concatenate([lane.planner.resident_per_table() for lane in self._pipeline.lanes])

    def _take_own(self) -> Statistics:
        pipeline = self._pipeline
        times = {**pipeline.stopwatch.total_ms(), "policy": pipeline.policy_caller.seconds * 1e3}
        traffic = pipeline.exchange.traffic()
        statistics = Statistics(
            batches=self._batches,
            batches_in_parts=self._in_parts,
            batches_waited=self._waited,
            counts=self._counts,
            device_rows=sum(lane.device.num_slots for lane in pipeline.lanes),
            resident_rows=self._resident.copy(),
            watched_rows=np.concatenate([counts.watched for counts in self._watched]),
            judged_rows=np.concatenate([counts.judged for counts in self._watched]),
            saturated_rows=np.concatenate([counts.saturated for counts in self._watched]),
            times_ms={name: total - self._times.get(name, 0.0) for name, total in times.items()},
            update_norm_edges=pipeline.feedback.update_size_edges.astype(np.float64),
            update_norm_counts=self._updates.counts - self._updates_taken.counts,
            update_norm_sum=self._updates.sum - self._updates_taken.sum,
            policy=self._policy,
            ranks=tuple(now.since(before) for now, before in zip(traffic, self._traffic, strict=True)),
        )
        self._counts, self._times = self._zeros(), times
        self._batches = self._in_parts = self._waited = 0
        self._updates_taken, self._traffic = self._updates, traffic
        return statistics
