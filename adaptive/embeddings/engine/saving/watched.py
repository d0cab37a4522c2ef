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

from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.embeddings.engine.saving.saved_arrays import check_arrays, expected_watched
from adaptive.embeddings.engine.tiered_group import TieredGroup
from adaptive.embeddings.planning.hot_set import COLUMNS
from adaptive.embeddings.planning.skipping import Skipper
from adaptive.embeddings.tiers.device import WatchedValues
from adaptive.errors import CheckpointError
from adaptive.storage.arrays import Stored, whole

Arrays = dict[str, NDArray[Any]]
WATCHED = "watched."
OF_SUMS = ("sums", "squares", "raw_values", "raw_states")  # columns of watched rows with an accumulated sum


def save_watched(pipeline: Pipeline, tiered: TieredGroup, prefix: str) -> Arrays:
    """Return copies of the state of a group's watched rows. The caller holds the lock."""
    skipper = tiered.skipper
    if skipper is None:
        return {}
    prefix += WATCHED
    hot = skipper.hot
    columns, watched = hot.columns(), tiered.device.export_watched(hot.num_entries)
    rows = columns["row"]
    order = np.argsort(rows)
    columns["entry"] = np.arange(len(rows), dtype=np.int32)
    saved = {name: np.array(column[order]) for name, column in columns.items()}
    saved["interval"] = np.array([hot.config.interval], np.int64)
    if skipper.defers:
        summed = rows[watched.entries]
        weights, state = pipeline.values(tiered, summed, with_deferred=False)
        order = np.argsort(summed)
        of_sums = zip(("summed", *OF_SUMS), (summed, watched.sums, watched.squares, weights, state), strict=True)
        saved |= {name: np.array(column[order]) for name, column in of_sums}
    return {prefix + name: array for name, array in saved.items()}


def check_watched(tiered: TieredGroup, arrays: Mapping[str, NDArray[Any] | Stored], prefix: str) -> Arrays:
    """Return a group's arrays of watched rows; empty if they have other `skip` settings.

    Raises:
        CheckpointError: if the arrays are not valid for these tables.
    """
    prefix, skipper = prefix + WATCHED, tiered.skipper
    if skipper is None:
        return {}
    part = {name.removeprefix(prefix): whole(value) for name, value in arrays.items() if name.startswith(prefix)}
    if set(part) != _expected_names(skipper):
        return {}
    last_row = int(whole(arrays[prefix.removesuffix(WATCHED) + "table_starts"])[-1]) - 1
    check_arrays(part, expected_watched(tiered, part, last_row), prefix)
    if part["interval"].tolist() != [skipper.hot.config.interval]:
        return {}
    rows, most = len(part["row"]), skipper.hot.capacity
    if rows > most:
        raise CheckpointError(
            f"skip.hot_rows: expected room for at least {rows} watched rows of width {tiered.group.embedding_dim}, got "
            f"{most}. Set it to its value in the run that saved this checkpoint."
        )
    return part


def _expected_names(skipper: Skipper) -> set[str]:
    names = {"interval", "entry", *COLUMNS}
    if skipper.defers:
        names |= {"summed", *OF_SUMS}
    return names


def by_entry(part: Arrays) -> Arrays:
    """Return watched rows in the order of the hot set, `summed` by their entries in it."""
    if not part:
        return part
    order = np.lexsort((part["row"], part["entry"]))
    one_each = {name: array for name, array in part.items() if name not in ("interval", "entry", "summed", *OF_SUMS)}
    watched = {name: column[order] for name, column in one_each.items()}
    if "summed" in part:
        by_row = np.argsort(watched["row"])
        entries = by_row[np.searchsorted(watched["row"], part["summed"], sorter=by_row)]
        order = np.argsort(entries)
        watched |= {"summed": entries[order], **{name: part[name][order] for name in OF_SUMS}}
    return {name: np.ascontiguousarray(value) for name, value in watched.items()}


def load_watched(tiered: TieredGroup, part: Arrays) -> None:
    """Restore watched rows in a group that has just loaded its rows and watches none."""
    if not part:
        return
    skipper = tiered.skipper
    assert skipper is not None
    skipper.restore(part)
    if skipper.defers:
        rows = part["row"][part["summed"]]
        tiered.put_on_host(rows, part["raw_values"], part["raw_states"])
        tiered.device.import_watched(WatchedValues(part["summed"], part["sums"], part["squares"]))
