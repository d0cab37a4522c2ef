"""`ShardedStatistics`: counts of trained batches, summed over ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adaptive.config import TableConfig
from adaptive.distributed.peers import Peers
from adaptive.embeddings.engine.statistics import Statistics, StatisticsCollector

SUMMED: Final = (
    "counts",
    "resident_rows",
    "live_keys",
    "index_places",
    "hot_rows",
    "saturated_rows",
    "update_norm_counts",
)


class ShardedStatistics:
    """`StatisticsCollector` of all ranks. Lookups are those that reach the owners, one per rank, batch and row.

    Attributes:
        reported: numbers of a rule that drops inputs, as of the latest batch.
    """

    def __init__(self, local: StatisticsCollector, peers: Peers, tables: Sequence[TableConfig]) -> None:
        self._local, self._peers = local, peers
        self._rows = {table.name: table.num_embeddings for table in tables}
        self.reported: Mapping[str, float] = {}

    def take(self) -> Statistics:
        """Return the statistics since the last call, of all ranks, which call it together; times are this rank's."""
        local = self._local.take()
        columns = [getattr(local, name) for name in SUMMED]
        flat = np.concatenate([*(column.reshape(-1) for column in columns), [local.device_rows]]).astype(np.int64)
        numbers = self._peers.rows.gather(flat, "statistics")
        norms = self._peers.rows.gather(np.array([local.update_norm_sum]), "statistics")
        *pieces, device_rows = np.split(np.sum(numbers, axis=0), np.cumsum([column.size for column in columns]))
        sums = {name: piece.reshape(col.shape) for name, piece, col in zip(SUMMED, pieces, columns, strict=True)}
        return replace(
            local,
            **sums,  # type: ignore[arg-type]
            device_rows=int(device_rows[0]),
            update_norm_sum=sum(float(norm[0]) for norm in norms),
            policy={**local.policy, **self.reported},
        )

    def counts(self) -> NDArray[np.int64]:
        """Return this rank's counts (len(Counter),) of all tables and batches."""
        return self._local.counts()

    def policy_numbers(self) -> dict[str, float]:
        """Return the numbers that this rank's policy reports, while no look-ahead is running."""
        return self._local.policy_numbers()

    def table_rows(self) -> dict[str, int]:
        """Return table -> number of rows of all ranks, in the order of `table_names`."""
        return {name: self._rows[name] for name in self._local.table_rows()}

    @property
    def batches_trained(self) -> int:
        return self._local.batches_trained

    def memory(self) -> dict[str, int]:
        """Return this rank's bytes by name, as `StatisticsCollector.memory`."""
        return self._local.memory()

    def host_io(self) -> dict[str, int]:
        """Return this rank's traffic with files, as `StatisticsCollector.host_io`."""
        return self._local.host_io()

    @property
    def hot_set_is_full(self) -> bool:
        """True if the hot set of this rank is full."""
        return self._local.hot_set_is_full

    def device_rows_text(self) -> str:
        """Return a sentence with the number of this rank's device rows."""
        return self._local.device_rows_text()
