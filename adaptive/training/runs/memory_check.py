"""Do the first batches fit the device tier? Told before anything is trained."""

from collections.abc import Sequence

import numpy as np

from adaptive.batch import Batch
from adaptive.config import TrainConfig
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.planning.lookups import DistinctFinder
from adaptive.embeddings.planning.use_trace import Trace
from adaptive.errors import DeviceMemoryError
from adaptive.policy import arranges
from adaptive.training.build import ComponentsOutline


def rows_in_flight(config: TrainConfig, components: ComponentsOutline, batches: Sequence[Batch]) -> int:
    """Device rows that hold what these batches ask for, each beside the `depth` before it."""
    most = 0
    for group in make_groups(components.tables, config.seed):
        finder = DistinctFinder(group)
        rows = [finder.find(batch).rows.copy() for batch in batches]
        seen = np.unique(np.concatenate([np.empty(0, np.int64), *rows]))  # memory by rows seen, not by rows there are
        trace = Trace(len(seen))
        for one in rows:
            trace.add(np.searchsorted(seen, one))
        most += trace.most_held(config.depth)
    return most


def refuse_too_few(config: TrainConfig, components: ComponentsOutline, batches: Sequence[Batch], needed: int) -> None:
    """Say what a run would say within its first batches. A policy that arranges its inputs has batches of its own.

    Raises:
        DeviceMemoryError: if rows are fetched ahead and more are needed than the device tier has room for.
    """
    embeddings = components.embeddings
    there, policy = embeddings.device_rows, embeddings.policy
    may_do = arranges(policy) or policy.misses == "host" or config.tier.when_full == "reduce_lookahead"
    if may_do or needed <= there:
        return
    raise DeviceMemoryError(
        f"{needed:,} device rows are needed to hold the rows of {config.depth + 1} of the first {len(batches)} "
        f"batches, {there:,} are there: raise device_rows to at least {needed}, or lower the batch size, or lower "
        f"depth (now {config.depth}), or set tier.when_full=reduce_lookahead; adaptive-train simulate tells what all "
        "batches need"
    )
