"""`StatisticsCollector`: counts and times of trained batches, rows, and memory."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.counters import Counter
from adaptive.embeddings.engine.build import MEMORY
from adaptive.embeddings.engine.pipeline import Pipeline, ReadyBatch
from adaptive.embeddings.planning.key_tables import key_bytes
from adaptive.embeddings.planning.sizing import Sizes
from adaptive.kernels.planning import books


@dataclass(frozen=True)
class Statistics:
    """Counts and times of the batches trained in an interval.

    `*_rows` and `policy` are as of the latest of these batches, no matter how far others are planned. Tables are in the
    order of `table_names`.
    """

    batches: int
    counts: NDArray[np.int64]  # (tables, len(Counter))
    device_rows: int  # number of slots
    resident_rows: NDArray[np.int64]  # (tables,) rows on the device
    live_keys: NDArray[np.int64]  # (tables,) keys with a row; 0 for tables without keys
    hot_rows: NDArray[np.int64]  # (tables,) as of the latest call of the policy or the skip rule
    saturated_rows: NDArray[np.int64]  # (tables,) hot rows that an update moves by less than 5% of their length
    times_ms: dict[str, float]  # stage -> sum over the batches
    policy: Mapping[str, float]  # numbers that the policy and the skip rule report
    batches_in_parts: int = 0  # of the batches
    batches_waited: int = 0  # of those in parts: training had to wait for rows between two parts


_IS_RESIDENT = np.zeros(len(Counter), np.int64)  # what one count of each column adds to the resident rows
_IS_RESIDENT[[Counter.ADMITTED, Counter.EVICTED]] = 1, -1
_IS_LIVE = np.zeros(len(Counter), np.int64)  # and to the keys with a row
_IS_LIVE[[Counter.ADMITTED_KEYS, Counter.EXPIRED_KEYS, Counter.EVICTED_KEYS]] = 1, -1, -1


class StatisticsCollector:
    """Counts trained batches and measures the tiers. For the training thread only."""

    def __init__(self, pipeline: Pipeline, sizes: Sizes) -> None:
        self._pipeline, self._sizes = pipeline, sizes
        self._counts, self._counts_taken = self._zeros(), self._zeros()  # since the start, and until the latest `take`
        num_tables = [len(tiered.group.tables) for tiered in pipeline.tiered_groups]
        self._first_tables: list[int] = [0, *np.cumsum(num_tables)[:-1].tolist()]  # of each group
        # Rows on the device and keys with a row that no count explains: a sum for each batch would take longer.
        self._resident, self._live = self._zeros()[:, 0], self._zeros()[:, 0]
        self._hot_counts = [tiered.planner.hot_counts for tiered in pipeline.tiered_groups]
        self._policy: Mapping[str, float] = {}
        self._batches = self._in_parts = self._waited = 0
        self._times: dict[str, float] = {}

    def take(self) -> Statistics:
        """Return the statistics since the last call."""
        pipeline = self._pipeline
        hot_rows, saturated_rows = np.concatenate(self._hot_counts, axis=1)
        times = {**pipeline.stopwatch.total_ms(), "policy": pipeline.policy_caller.seconds * 1e3}
        statistics = Statistics(
            batches=self._batches,
            batches_in_parts=self._in_parts,
            batches_waited=self._waited,
            counts=self._counts - self._counts_taken,
            device_rows=sum(tiered.device.num_slots for tiered in pipeline.tiered_groups),
            resident_rows=self._resident + self._counts @ _IS_RESIDENT,
            live_keys=self._live + self._counts @ _IS_LIVE,
            hot_rows=hot_rows,
            saturated_rows=saturated_rows,
            times_ms={name: total - self._times.get(name, 0.0) for name, total in times.items()},
            policy=self._policy,
        )
        self._counts_taken, self._times = self._counts.copy(), times
        self._batches = self._in_parts = self._waited = 0
        return statistics

    def counts(self) -> NDArray[np.int64]:
        """Return the counts (len(Counter),) of all tables and all batches trained so far."""
        total: NDArray[np.int64] = self._counts.sum(axis=0)
        return total

    def policy_numbers(self) -> dict[str, float]:
        """Return the numbers that policy and skip rule report, while no look-ahead is running.

        Raises:
            PolicyError: if `reported` names an attribute that does not exist or is not a number.
        """
        return self._pipeline.policy_caller.reported()

    def table_rows(self) -> dict[str, int]:
        """Return table -> number of rows, in the order of `table_names`."""
        return {
            table.name: table.num_embeddings for tiered in self._pipeline.tiered_groups for table in tiered.group.tables
        }

    @property
    def batches_trained(self) -> int:
        return self._pipeline.trained + 1

    def memory(self) -> dict[str, int]:
        """Return bytes by name.

        Host and device tiers count as if every row were written. `bookkeeping` has records, slots and the index
        of keys; `sums` are those of deferred updates. Transfer buffers, pinned and on the device, grow
        with use.
        """
        totals = dict.fromkeys((*MEMORY, "pinned_buffers", "device_buffers"), 0)
        for tiered in self._pipeline.tiered_groups:
            weights, state, sums = tiered.device.num_bytes
            bookkeeping = tiered.planner.num_bytes + key_bytes(tiered.group)
            of_device = (weights, state, bookkeeping, sums)
            parts = (*tiered.host.num_bytes, *of_device, *tiered.device.buffer_bytes)
            for name, size in zip(totals, parts, strict=True):
                totals[name] += size
        return totals

    def host_io(self) -> dict[str, int]:
        """Return `reads`, `bytes_read`, `writes`, `bytes_written` of files, not of rows in place."""
        counts = [asdict(tiered.host.io) for tiered in self._pipeline.tiered_groups]
        return {name: sum(count[name] for count in counts) for name in counts[0]}

    def device_rows_text(self) -> str:
        """Return one sentence with the number of device rows and the reason for it."""
        return self._sizes.text

    def _zeros(self) -> NDArray[np.int64]:
        tables = sum(len(tiered.group.tables) for tiered in self._pipeline.tiered_groups)
        return np.zeros((tables, len(Counter)), np.int64)

    def add(self, ready: ReadyBatch, *, in_parts: bool, waited: bool) -> None:
        """Count a trained batch; `waited`: training waited for rows between two of its parts."""
        self._batches += 1
        self._in_parts += in_parts
        self._waited += waited
        for first, plan in zip(self._first_tables, ready.plans, strict=True):
            books.add_counts(first, plan.tally, self._counts)
        self._hot_counts = [plan.hot_counts for plan in ready.plans]
        self._policy = ready.reported

    def refresh(self, *, recount: bool) -> None:
        """Take over hot rows as they are now, when no batch is in flight.

        `recount`: count resident rows and keys, too, by reading all codes or slots. Not needed if all batches that were
        planned have been counted.
        """
        self._hot_counts = [tiered.planner.hot_counts for tiered in self._pipeline.tiered_groups]
        if not recount:
            return
        resident = np.concatenate([tiered.planner.resident_per_table() for tiered in self._pipeline.tiered_groups])
        self._resident = resident - self._counts @ _IS_RESIDENT
        self._live = (
            np.concatenate([tiered.live_keys() for tiered in self._pipeline.tiered_groups]) - self._counts @ _IS_LIVE
        )
