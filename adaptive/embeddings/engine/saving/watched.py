"""Watched rows as flat arrays for checkpoints, next to those of `row_arrays`.

The arrays contain update sizes, answers of the skip rule, and accumulated updates (deferred). Tables with the same
`skip` settings restore all of it, and training continues as it would have. Other tables ignore these arrays. Names,
after the group's prefix, of n rows in ascending order:

    watched.interval (1,) of `SkipConfig`              watched.row (n,), watched.<column> (n,) of the hot set's entries
                                                       watched.entry (n,) their order in the hot set

    if updates are deferred, of the m rows with an accumulated sum:
    watched.summed (m,) these rows, ascending          watched.raw_values (m, D), watched.raw_states (m, T): without
    watched.sums (m, D), watched.squares (m, S)        the sum
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.engine.lane import Lane
from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.embeddings.engine.saving.gathering import RowOrder, select_owned
from adaptive.embeddings.engine.saving.saved_arrays import check_arrays, expected_watched
from adaptive.embeddings.planning.hot_set import COLUMNS
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.sizing import HOT_SHARE
from adaptive.embeddings.planning.skipping import Skipper
from adaptive.embeddings.tiers.device import WatchedValues
from adaptive.errors import CheckpointError
from adaptive.storage.arrays import Stored, whole
from adaptive.storage.shards import Part

Arrays = dict[str, NDArray[Any]]
WATCHED = "watched."
OF_SUMS = ("sums", "squares", "raw_values", "raw_states")  # columns of watched rows with an accumulated sum


def save_watched(pipeline: Pipeline, lane: Lane, prefix: str) -> dict[str, NDArray[Any] | Part]:
    """Return copies of the state of a lane's watched rows. The caller holds the lock."""
    skipper = lane.skipper
    if skipper is None:
        return {}
    prefix += WATCHED
    hot = skipper.hot
    columns, watched = hot.columns(), lane.device.export_watched(hot.num_entries)
    owned_rows = columns.pop("row")
    rows = lane.group.group_rows(owned_rows)
    columns["entry"] = np.arange(len(rows), dtype=np.int32)
    sums: dict[str, Part] = {}
    if skipper.defers:
        weights, state = pipeline.values(lane, owned_rows[watched.waiting], with_waiting=False)
        of_sums = dict(zip(OF_SUMS, (watched.sums, watched.squares, weights, state), strict=True))
        sums = RowOrder(lane.group, rows[watched.waiting]).parts(prefix, "summed", of_sums)
    interval = np.array([hot.config.interval], np.int64)
    columns = {name: np.array(column) for name, column in columns.items()}
    return {prefix + "interval": interval, **RowOrder(lane.group, rows).parts(prefix, "row", columns), **sums}


def check_watched(lane: Lane, arrays: Mapping[str, NDArray[Any] | Stored], prefix: str) -> Arrays:
    """Return a lane's arrays of watched rows; empty if they have other `skip` settings.

    Raises:
        CheckpointError: if the arrays are not valid for these tables.
    """
    prefix, skipper = prefix + WATCHED, lane.skipper
    if skipper is None:
        return {}
    part = {name.removeprefix(prefix): whole(value) for name, value in arrays.items() if name.startswith(prefix)}
    if set(part) != _expected_names(skipper):
        return {}
    last_row = int(whole(arrays[prefix.removesuffix(WATCHED) + "table_starts"])[-1]) - 1
    check_arrays(part, expected_watched(lane, part, last_row), prefix)
    if part["interval"].tolist() != [skipper.hot.config.interval]:
        return {}
    rows, most = len(part["row"]), skipper.hot.capacity
    if rows > HOT_SHARE * most and lane.group.undivided is lane.group:
        raise CheckpointError(
            f"skip.hot_rows: expected room for at least {rows} watched rows of width {lane.group.embedding_dim}, got "
            f"{most}. Set it to its value in the run that saved this checkpoint."
        )
    return part


def _expected_names(skipper: Skipper) -> set[str]:
    names = {"interval", "entry", *COLUMNS}
    if skipper.defers:
        names |= {"summed", *OF_SUMS}
    return names


def select_watched(group: Group, part: Arrays) -> Arrays:
    """Select this rank's watched rows in the order of the hot set, `summed` by its entries."""
    if not part:
        return part
    names = [name for name in part if name not in ("interval", "row", "summed", *OF_SUMS)]
    rows, *columns = select_owned(group, part["row"], *(part[name] for name in names))
    watched: Arrays = {"row": rows, **dict(zip(names, columns, strict=True))}
    order = np.lexsort((rows, watched.pop("entry")))
    watched = {name: column[order] for name, column in watched.items()}
    if "summed" in part:
        summed, *sums = select_owned(group, part["summed"], *(part[name] for name in OF_SUMS))
        by_row = np.argsort(watched["row"])
        entries = by_row[np.searchsorted(watched["row"], summed, sorter=by_row)]
        order = np.argsort(entries)
        watched |= {"summed": entries[order], **{n: column[order] for n, column in zip(OF_SUMS, sums, strict=True)}}
    return {name: np.ascontiguousarray(value) for name, value in watched.items()}


def load_watched(lane: Lane, part: Arrays) -> None:
    """Restore watched rows in a lane that has just loaded its rows and watches none."""
    if not part:
        return
    skipper = lane.skipper
    assert skipper is not None
    if (needed := len(part["row"])) > skipper.hot.capacity:  # another number of ranks divides them differently
        skipper.grow(needed)
        lane.device.watch(needed if skipper.defers else 0)
    skipper.restore(part)
    if skipper.defers:
        rows = part["row"][part["summed"]]
        lane.put_on_host(rows, part["raw_values"], part["raw_states"])
        lane.device.import_watched(WatchedValues(part["summed"], part["sums"], part["squares"]))
