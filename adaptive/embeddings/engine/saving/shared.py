"""`adaptive.embeddings.engine.saving.row_arrays` for several ranks: the arrays of one process, put together from rows
that each rank owns, on all of them (`RowStore.state_arrays`). All ranks call these functions together.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.engine.pipeline import Lane, Pipeline
from adaptive.embeddings.engine.saved_arrays import table_arrays
from adaptive.embeddings.engine.saving.gathering import Gatherer, select_owned
from adaptive.embeddings.engine.saving.watched import OF_SUMS, WATCHED, save_own_watched
from adaptive.embeddings.planning.layout import Group
from adaptive.storage.arrays import Blocks

Arrays = dict[str, NDArray[Any]]
Floats = NDArray[np.float32]
Int64s = NDArray[np.int64]


def gatherer_of(pipeline: Pipeline) -> Gatherer | None:
    """What puts rows of several ranks together; None if this rank has all rows."""
    ranks = pipeline.exchange.ranks
    return None if ranks.size == 1 else Gatherer(ranks)


def save_shared_lane(
    pipeline: Pipeline, lane: Lane, prefix: str, records: tuple[str, ...], block_rows: int, gatherer: Gatherer
) -> dict[str, NDArray[Any] | Blocks]:
    """The arrays of one group, of all ranks; values and state as `Blocks`, to be read on all in the same order."""
    group, tracker = lane.group, lane.planner.tracker
    with pipeline.lock:
        changed = tracker.changed_rows()
        seen = tracker.seen_rows()
        columns = {name: tracker.records[name][seen] for name in records}
    own = group.group_rows(changed)
    order = np.argsort(own)
    changed, own = changed[order], own[order]
    everyones, _ = gatherer.merged(own, {})
    all_seen, columns = gatherer.merged(group.group_rows(seen), columns)

    def block(column: int, width: int) -> Blocks:
        def read(places: Int64s) -> Floats:
            with pipeline.lock:
                return pipeline.values(lane, changed[places])[column]

        return Blocks(
            np.dtype(np.float32),
            (len(everyones), width),
            lambda: gatherer.blocks(own, everyones, block_rows, read),
        )

    return {
        **{prefix + name: value for name, value in table_arrays(lane).items()},
        prefix + "changed": everyones,
        prefix + "weights": block(0, lane.host.weights.shape[1]),
        prefix + "state": block(1, lane.host.state.shape[1]),
        prefix + "seen": all_seen,
        **{prefix + name: column for name, column in columns.items()},
    }


def save_shared_watched(pipeline: Pipeline, lane: Lane, prefix: str, gatherer: Gatherer) -> Arrays:
    """What is known of the watched rows of all ranks; entries in order of rows."""
    own = save_own_watched(pipeline, lane)
    if own is None:
        return {}
    everyones, columns = gatherer.merged(own.rows, own.columns)
    merged: Arrays = {"interval": own.interval, "row": everyones, **columns}
    if own.summed is not None:
        of_rows, sums = gatherer.merged(own.rows[own.summed], own.of_sums)
        merged |= {"summed": np.searchsorted(everyones, of_rows), **sums}
    return {prefix + WATCHED + name: value for name, value in merged.items()}


def own_watched(group: Group, part: Arrays) -> Arrays:
    """Of the watched rows of all ranks those that this rank owns, by their local numbers; entries numbered anew."""
    if not part or group.undivided is group:
        return part
    of_entries = {name: value for name, value in part.items() if name not in ("interval", "row", "summed", *OF_SUMS)}
    entries = np.arange(len(part["row"]))
    rows, mine, *columns = select_owned(group, part["row"], entries, *of_entries.values())
    found = {"interval": part["interval"], "row": rows, **dict(zip(of_entries, columns, strict=True))}
    if "summed" in part:
        kept = np.flatnonzero(np.isin(part["summed"], mine))
        found["summed"] = np.searchsorted(mine, part["summed"][kept])
        found |= {name: part[name][kept] for name in OF_SUMS}
    return {name: np.ascontiguousarray(value) for name, value in found.items()}
