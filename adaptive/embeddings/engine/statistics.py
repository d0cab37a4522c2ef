"""`Statistics`: what the tiers did since they were last asked."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.counters import Counter
from adaptive.embeddings.engine.pipeline import Pipeline, ReadyBatch
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.traffic import RankTraffic


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


def summed(ranks: Ranks, found: Statistics) -> Statistics:
    """Over all ranks. Times are this rank's."""
    everyones = ranks.gather_arrays(np.array([astuple(one) for one in found.ranks], np.float64))
    numbers = np.concatenate([getattr(found, name).reshape(-1) for name in SUMMED] + [[found.device_rows]])
    total = np.sum(ranks.gather_arrays(numbers.astype(np.int64)), axis=0)
    norms = ranks.gather_arrays(np.array([found.update_norm_sum]))
    sizes = [getattr(found, name).size for name in SUMMED]
    pieces = np.split(total, np.cumsum(sizes))
    shaped: dict[str, Any] = {
        name: piece.reshape(getattr(found, name).shape) for name, piece in zip(SUMMED, pieces, strict=False)
    }
    norm_sum = sum(float(one[0]) for one in norms)
    traffic = tuple(RankTraffic.of(one.tolist()) for one in everyones)
    return replace(found, **shaped, device_rows=int(pieces[-1][0]), update_norm_sum=norm_sum, ranks=traffic)


class StatisticsInterval:
    """Statistics between two calls: counts of trained batches, times and histograms as differences."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._counts = self._zeros()
        self._resident = self._zeros()[:, 0]
        self._watched = [lane.planner.watched_counts() for lane in pipeline.lanes]
        self._policy: Mapping[str, float] = {}
        self.total = np.zeros(len(Counter), np.int64)  # over all tables, never reset
        self._batches = self._in_parts = self._waited = 0
        self._times: dict[str, float] = {}
        self._told = self._sizes = pipeline.update_sizes()
        self._traffic = self._all_traffic()

    def _all_traffic(self) -> tuple[RankTraffic, ...]:
        """Of this rank; nothing without ranks."""
        exchange = self._pipeline.exchange
        return () if exchange is None else (exchange.ranks.traffic(),)

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
        self._policy, self._sizes = ready.reported, ready.update_sizes
        self._counts += counts
        self.total += counts.sum(axis=0)
        lost = np.concatenate(self._pipeline.lost)
        self._resident += counts[:, Counter.PROMOTED] - counts[:, Counter.DEMOTED] - lost
        for left in self._pipeline.lost:
            left[:] = 0

    def lose(self, left: NDArray[np.int64]) -> None:
        """Count rows (tables,) that left the device outside of a batch."""
        self._resident -= left

    def count_rows(self) -> None:
        """Count the rows in slots as resident, those that are watched, and all updates. No batch is in flight."""
        self._sizes = self._pipeline.update_sizes()
        self._watched = [lane.planner.watched_counts() for lane in self._pipeline.lanes]
        self._resident = np.concatenate([lane.planner.resident_per_table() for lane in self._pipeline.lanes])

    def take(self) -> Statistics:
        """What happened since the last call."""
        pipeline = self._pipeline
        times = {**pipeline.stopwatch.total_ms(), "policy": pipeline.policy_caller.seconds * 1e3}
        traffic = self._all_traffic()
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
            update_norm_edges=pipeline.lanes[0].planner.tracker.bin_edges.astype(np.float64),
            update_norm_counts=self._sizes.counts - self._told.counts,
            update_norm_sum=self._sizes.sum - self._told.sum,
            policy=self._policy,
            ranks=tuple(now.since(before) for now, before in zip(traffic, self._traffic, strict=True)),
        )
        self._counts, self._times = self._zeros(), times
        self._batches = self._in_parts = self._waited = 0
        self._told, self._traffic = self._sizes, traffic
        return statistics
