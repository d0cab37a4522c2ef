"""What `TieredEmbeddingBag` tells: counts, memory, sizes."""

from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.base import Base
from adaptive.embeddings.engine.build import MEMORY
from adaptive.embeddings.engine.description import describe
from adaptive.embeddings.engine.statistics import Statistics, summed
from adaptive.embeddings.planning.sizing import Sizes, resized
from adaptive.policy import arranges


class Reports(Base):
    """The part that tells what happened and what there is."""

    def take_statistics(self) -> Statistics:
        """What happened since the last call; on all ranks, which call it together."""
        found = self._since.take()
        return found if self.ranks is None or self.ranks.size == 1 else summed(self.ranks, found)

    def policy_numbers(self) -> dict[str, float]:
        """What the policy, and the skip rule beside it, want shown (`reported`). With no look-ahead running.

        Raises:
            PolicyError: if one names an attribute that is not there, or no number.
        """
        return self._pipeline.policy_caller.reported()

    def counts(self) -> NDArray[np.int64]:
        """(len(Counter),) what was counted over all tables and all batches trained so far."""
        return self._since.total.copy()

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
            own = (weights, state, lane.planner.num_bytes, snapshots)
            parts = (*lane.host.num_bytes, *own, *lane.device.buffer_bytes)
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
        """No more rows can be watched in some group, here; more may have wanted to be."""
        skippers = [lane.planner.skipper for lane in self._pipeline.lanes]
        return any(one is not None and one.hot.num_entries == one.hot.capacity for one in skippers)

    @property
    def may_end_early(self) -> bool:
        """Whether batches that were read and not planned can be read again without any change in what is trained: the
        policy leaves them as they come. With ranks, others have been asked for their rows."""
        return self.ranks is None and not arranges(self.policy)

    def end_early(self) -> None:
        """Plan no more batches in the running look-ahead; those that are planned still come. From the training thread;
        only if `may_end_early`."""
        assert self.may_end_early
        self._pipeline.ending = True

    def extra_repr(self) -> str:
        return describe(self._pipeline, self._tier, self._optimizer, self.device_rows_text())

    def device_rows_text(self) -> str:
        """How many device rows there are and why, in one sentence."""
        if self._sizes.slots != tuple(lane.device.num_slots for lane in self._pipeline.lanes):
            self._sizes = self._resized("shared among widths by what batches ask")
        return self._sizes.text

    def _resized(self, reason: str) -> Sizes:
        lanes = self._pipeline.lanes
        return resized(
            [lane.group for lane in lanes], [lane.device.num_slots for lane in lanes], self._optimizer, reason
        )
