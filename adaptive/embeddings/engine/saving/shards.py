"""`adaptive.embeddings.engine.saving.row_arrays` for one rank's shard of a checkpoint: the rows it owns, by their
numbers in the undivided group, dealt out into pieces by their buckets. Nothing crosses between ranks. Whoever loads
shards, however many, sees the arrays of one process, or those of some pieces.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.engine.pipeline import Lane, Pipeline
from adaptive.embeddings.engine.saved_arrays import table_arrays
from adaptive.embeddings.engine.saving.watched import SUMMED_ROWS, WATCHED, save_own_watched
from adaptive.embeddings.planning.layout import OwnedGroup
from adaptive.embeddings.ranks.owners import BITS
from adaptive.storage.arrays import Blocks
from adaptive.storage.shards import PIECES, Part

Arrays = dict[str, NDArray[Any]]
Int64s = NDArray[np.int64]


class _Dealt:
    """Rows (m,) of one rank in the order of a shard: piece after piece, ascending in each."""

    def __init__(self, group: OwnedGroup, rows: Int64s) -> None:
        """`rows`: of the undivided group."""
        pieces = group.owners.buckets_of(rows, group.undivided.tables_of(rows)) * PIECES >> BITS
        self.order: Int64s = np.lexsort((rows, pieces))
        self.rows = rows[self.order]
        self.counts = np.bincount(pieces, minlength=PIECES).tolist()

    def parts(self, prefix: str, key: str, columns: Mapping[str, NDArray[Any]]) -> dict[str, Part]:
        """Their numbers, and columns (m, ...) that are in the order they were given."""
        found = {prefix + key: self.part(self.rows, prefix + key)}
        return found | {prefix + name: self.part(one[self.order], prefix + key) for name, one in columns.items()}

    def part(self, value: NDArray[Any] | Blocks, key: str) -> Part:
        """An array that is in the order of the shard."""
        return Part(value, key, self.counts)


def save_shard_lane(
    pipeline: Pipeline,
    lane: Lane,
    prefix: str,
    records: tuple[str, ...],
    read: Callable[[Pipeline, Lane, Int64s], Mapping[str, Blocks]],
) -> dict[str, Any]:
    """The arrays of one group: those that are the same on all ranks, and parts. `read`: local rows -> values, state."""
    group, tracker = lane.group, lane.planner.tracker
    assert isinstance(group, OwnedGroup)
    with pipeline.lock:
        changed = tracker.changed_rows()
        seen = tracker.seen_rows()
        columns = {name: tracker.records[name][seen] for name in records}
    dealt = _Dealt(group, group.group_rows(changed))
    values = read(pipeline, lane, changed[dealt.order])
    return {
        **{prefix + name: value for name, value in table_arrays(lane).items()},
        **dealt.parts(prefix, "changed", {}),
        **{prefix + name: dealt.part(blocks, prefix + "changed") for name, blocks in values.items()},
        **_Dealt(group, group.group_rows(seen)).parts(prefix, "seen", columns),
    }


def save_shard_watched(pipeline: Pipeline, lane: Lane, prefix: str) -> dict[str, Any]:
    """What is known of watched rows. Sums that wait are told by their rows, since entries have other numbers in all
    shards together."""
    own, group = save_own_watched(pipeline, lane), lane.group
    if own is None:
        return {}
    assert isinstance(group, OwnedGroup)
    prefix += WATCHED
    watched = _Dealt(group, own.rows).parts(prefix, "row", own.columns)
    saved: dict[str, Any] = {prefix + "interval": own.interval, **watched}
    if own.summed is not None:
        saved |= _Dealt(group, own.rows[own.summed]).parts(prefix, SUMMED_ROWS, own.of_sums)
    return saved
