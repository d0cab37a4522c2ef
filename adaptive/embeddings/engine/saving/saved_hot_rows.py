"""Hot rows as flat arrays for checkpoints, next to those of `row_arrays`.

The arrays contain update sizes, answers of the skip rule, and accumulated updates (deferred). Tables with the same
`skip` settings restore all of it, and training continues as it would have. Other tables ignore these arrays. Names,
after the group's prefix, of n rows in ascending order:

    hot.interval (1,) of `SkipConfig`                  hot.row (n,), hot.<column> (n,) of the hot set's entries
                                                       hot.order (n,) their order in the hot set

    if updates are deferred, of the m rows with an accumulated sum:
    hot.summed (m,) these rows, ascending              hot.raw_values (m, D), hot.raw_states (m, T): without
    hot.sums (m, D), hot.squares (m, S)                the sum
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.embeddings.engine.saving.saved_arrays import check_arrays, expected_hot_rows
from adaptive.embeddings.engine.tiered_group import TieredGroup
from adaptive.embeddings.planning.hot_set import COLUMNS
from adaptive.embeddings.planning.skipping import Skipper
from adaptive.embeddings.tiers.device import HotSums
from adaptive.errors import CheckpointError
from adaptive.storage.arrays import Stored, whole

Arrays = dict[str, NDArray[Any]]
HOT = "hot."
OF_SUMS = ("sums", "squares", "raw_values", "raw_states")  # columns of hot rows with an accumulated sum


def save_hot_rows(pipeline: Pipeline, tiered: TieredGroup, prefix: str) -> Arrays:
    """Return copies of the state of a group's hot rows. The caller holds the lock."""
    skipper = tiered.skipper
    if skipper is None:
        return {}
    prefix += HOT
    hot = skipper.hot
    columns, sums = hot.columns(), tiered.device.export_sums(hot.num_entries)
    rows = columns["row"]
    order = np.argsort(rows)
    columns["order"] = np.arange(len(rows), dtype=np.int32)
    saved = {name: np.array(column[order]) for name, column in columns.items()}
    saved["interval"] = np.array([hot.config.interval], np.int64)
    if skipper.defers:
        summed = rows[sums.entries]
        weights, state = pipeline.values(tiered, summed, with_deferred=False)
        order = np.argsort(summed)
        of_sums = zip(("summed", *OF_SUMS), (summed, sums.sums, sums.squares, weights, state), strict=True)
        saved |= {name: np.array(column[order]) for name, column in of_sums}
    return {prefix + name: array for name, array in saved.items()}


def check_hot_rows(tiered: TieredGroup, arrays: Mapping[str, NDArray[Any] | Stored], prefix: str) -> Arrays:
    """Return a group's arrays of hot rows; empty if they have other `skip` settings.

    Raises:
        CheckpointError: if the arrays are not valid for these tables.
    """
    prefix, skipper = prefix + HOT, tiered.skipper
    if skipper is None:
        return {}
    part = {name.removeprefix(prefix): whole(value) for name, value in arrays.items() if name.startswith(prefix)}
    if set(part) != _expected_names(skipper):
        return {}
    last_row = int(whole(arrays[prefix.removesuffix(HOT) + "table_starts"])[-1]) - 1
    check_arrays(part, expected_hot_rows(tiered, part, last_row), prefix)
    if part["interval"].tolist() != [skipper.hot.config.interval]:
        return {}
    rows, most = len(part["row"]), skipper.hot.capacity
    if rows > most:
        raise CheckpointError(
            f"skip.hot_rows: expected room for at least {rows} hot rows of width {tiered.group.embedding_dim}, got "
            f"{most}. Set it to its value in the run that saved this checkpoint."
        )
    return part


def _expected_names(skipper: Skipper) -> set[str]:
    names = {"interval", "order", *COLUMNS}
    if skipper.defers:
        names |= {"summed", *OF_SUMS}
    return names


def by_entry(part: Arrays) -> Arrays:
    """Return hot rows in the order of the hot set, `summed` by their entries in it."""
    if not part:
        return part
    order = np.lexsort((part["row"], part["order"]))
    one_each = {name: array for name, array in part.items() if name not in ("interval", "order", "summed", *OF_SUMS)}
    hot_rows = {name: column[order] for name, column in one_each.items()}
    if "summed" in part:
        by_row = np.argsort(hot_rows["row"])
        entries = by_row[np.searchsorted(hot_rows["row"], part["summed"], sorter=by_row)]
        order = np.argsort(entries)
        hot_rows |= {"summed": entries[order], **{name: part[name][order] for name in OF_SUMS}}
    return {name: np.ascontiguousarray(value) for name, value in hot_rows.items()}


def load_hot_rows(tiered: TieredGroup, part: Arrays) -> None:
    """Restore hot rows in a group that has just loaded its rows and has no hot ones."""
    if not part:
        return
    skipper = tiered.skipper
    assert skipper is not None
    skipper.restore(part)
    if skipper.defers:
        rows = part["row"][part["summed"]]
        tiered.put_on_host(rows, part["raw_values"], part["raw_states"])
        tiered.device.import_sums(HotSums(part["summed"], part["sums"], part["squares"]))
