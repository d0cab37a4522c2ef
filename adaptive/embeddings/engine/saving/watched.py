"""Watched rows as flat arrays, for checkpoints, beside those of `adaptive.embeddings.engine.saving.row_arrays`.

What is known of watched rows: verdicts, snapshots, visits, and gradients that wait. Tables that watch and
defer as the saved ones did restore all of it, and training goes on as it would have. Other tables ignore it: they know
nothing of movement. Names, after the group's prefix:

    watched.interval (1,) of `SkipConfig`              watched.<column> (n,) of the hot set's entries, in order
    watched.snapshots (n, D) if movement is watched

    if updates are deferred, m rows with a sum that waits:
    watched.visits, watched.waiting (n,)               watched.summed (m,) entries
    watched.sums (m, D), watched.squares (m, S)        watched.raw_values (m, D), watched.raw_states (m, T): before
                                                       the sum is applied
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.engine.pipeline import Lane, Pipeline
from adaptive.embeddings.engine.saved_arrays import check_arrays, expected_watched
from adaptive.embeddings.planning.hot_set import COLUMNS
from adaptive.embeddings.planning.sizing import HOT_SHARE
from adaptive.embeddings.planning.skipping import Skipper
from adaptive.embeddings.tiers.device import WatchedValues
from adaptive.errors import CheckpointError
from adaptive.kernels.planning.books import ON_HOST
from adaptive.storage.arrays import Stored, whole

Arrays = dict[str, NDArray[Any]]
WATCHED = "watched."
SUMMED_ROWS = "summed_rows"  # in shards, in the place of `summed`: the rows themselves
OF_SUMS = ("sums", "squares", "raw_values", "raw_states")  # of watched rows whose gradient waits


def save_watched(pipeline: Pipeline, lane: Lane, prefix: str) -> Arrays:
    """Copies of what is known of a lane's watched rows; nothing where none are watched. The caller holds the lock."""
    skipper = lane.planner.skipper
    if skipper is None:
        return {}
    hot, book = skipper.hot, skipper.deferral
    columns, kept = hot.columns(), lane.device.kept(hot.num_entries)
    found = {"interval": np.array([hot.config.interval], np.int64), **columns}
    if skipper.watches_movement:
        found["snapshots"] = kept.snapshots
    if book is not None:
        weights, state = pipeline.values(lane, columns["row"][kept.waiting], with_waiting=False)
        visits, waiting = book.visits[: hot.num_entries].copy(), book.waiting[: hot.num_entries].copy()
        found |= {"visits": visits, "waiting": waiting, "summed": kept.waiting, "sums": kept.sums}
        found |= {"squares": kept.squares, "raw_values": weights, "raw_states": state}
    return {prefix + WATCHED + name: value for name, value in found.items()}


@dataclass(frozen=True)
class OwnWatched:
    """What `save_watched` gives of the rows that one rank owns, taken apart. Of n entries m have a sum that waits."""

    interval: NDArray[np.int64]  # (1,)
    rows: NDArray[np.int64]  # (n,) of the undivided group
    columns: Arrays  # (n, ...)
    summed: NDArray[np.int64] | None  # (m,) entries; None: updates are not deferred
    of_sums: Arrays  # (m, ...)


def save_own_watched(pipeline: Pipeline, lane: Lane) -> OwnWatched | None:
    """The same of one of several ranks; None where none are watched."""
    with pipeline.lock:
        found = {name.removeprefix(WATCHED): value for name, value in save_watched(pipeline, lane, "").items()}
    if not found:
        return None
    interval, summed, rows = found.pop("interval"), found.pop("summed", None), lane.group.group_rows(found.pop("row"))
    of_sums = {name: found.pop(name) for name in OF_SUMS if name in found}
    return OwnWatched(interval, rows, found, summed, of_sums)


def watched_part(lane: Lane, arrays: Mapping[str, NDArray[Any] | Stored], prefix: str) -> Arrays:
    """The arrays of a lane's watched rows, or none if the saved tables did not watch and defer as this lane does.

    Raises:
        CheckpointError: if they are not what `save_watched` makes for these tables.
    """
    prefix, skipper = prefix + WATCHED, lane.planner.skipper
    if skipper is None:
        return {}
    found = {name.removeprefix(prefix): whole(value) for name, value in arrays.items() if name.startswith(prefix)}
    if SUMMED_ROWS in found and "row" in found:
        found["summed"] = _entries_of(found.pop(SUMMED_ROWS), found["row"])
    if set(found) != _names(skipper):
        return {}
    last_row = int(whole(arrays[prefix.removesuffix(WATCHED) + "table_starts"])[-1]) - 1
    check_arrays(found, expected_watched(lane, found, last_row), prefix)
    if found["interval"].tolist() != [skipper.hot.config.interval]:
        return {}
    _check_together(lane, found, prefix)
    return {name: np.ascontiguousarray(value) for name, value in found.items()}


def _entries_of(rows: NDArray[Any], watched: NDArray[Any]) -> NDArray[np.int64]:
    """(m,) the entries of rows (m,) among those watched (n,), which ascend."""
    if not np.isin(rows, watched).all():
        raise CheckpointError("the checkpoint has gradients that wait of rows that are not watched")
    return np.searchsorted(watched, rows).astype(np.int64)


def _names(skipper: Skipper) -> set[str]:
    names = {"interval", *COLUMNS}
    if skipper.watches_movement:
        names |= {"snapshots"}
    if skipper.deferral is not None:
        names |= {"visits", "waiting", "summed", "sums", "squares", "raw_values", "raw_states"}
    return names


def _check_together(lane: Lane, part: Arrays, prefix: str) -> None:
    """Check what several arrays of a lane's watched rows say together."""
    assert lane.planner.skipper is not None
    rows, most = part["row"], lane.planner.skipper.hot.capacity
    if len(rows) > HOT_SHARE * most and lane.group.undivided is lane.group:
        raise CheckpointError(
            f"the checkpoint watches {len(rows)} rows of width {lane.group.embedding_dim}, there is room for {most}: "
            "raise skip.hot_rows to what it was"
        )
    # A snapshot is NaN where a batch that was to take it went without a backward pass.
    if "snapshots" in part and np.isinf(part["snapshots"]).any():
        raise CheckpointError(f"checkpoint array {prefix}snapshots: expected finite values or NaN, got infinite ones")


def load_watched(lane: Lane, part: Arrays) -> None:
    """Restore watched rows in a lane whose rows have just been loaded and which watches none yet."""
    if not part:
        return
    planner, none = lane.planner, np.zeros((0, lane.host.weights.shape[1]), np.float32)
    assert planner.skipper is not None
    if (needed := len(part["row"])) > planner.skipper.hot.capacity:  # on other ranks they lay otherwise
        planner.skipper.grow(needed)
        lane.device.watch(needed, snapshots=planner.skipper.watches_movement, sums=planner.skipper.deferral is not None)
    planner.skipper.restore(part)
    book = planner.skipper.deferral
    no_squares = np.zeros((0, lane.device.squares_width), np.float32)
    kept = WatchedValues(part.get("snapshots", none), np.zeros(0, np.int64), none, no_squares)
    if book is not None:
        book.restore(part["visits"], part["waiting"])
        rows = part["row"][part["summed"]]
        lane.host.write(rows, part["raw_values"], part["raw_states"])
        planner.tracker.codes[rows] = ON_HOST
        kept = WatchedValues(kept.snapshots, part["summed"], part["sums"], part["squares"])
    lane.device.keep(kept)
