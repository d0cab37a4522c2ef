"""How many slots each group gets: the one dial, `device_rows`, spelt out."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TierConfig, parse_size
from adaptive.errors import ConfigError
from adaptive.policy import Policy
from adaptive.rows.optim import RowOptimizer
from adaptive.tiers.layout import Group

AUTO_SHARE = "10%"


@dataclass(frozen=True)
class Sizes:
    """Slots of each group, and one sentence for the user."""

    slots: tuple[int, ...]
    text: str


def row_bytes(group: Group, optimizer: RowOptimizer) -> int:
    """Bytes of a row with its state."""
    return 4 * (group.embedding_dim + optimizer.state_width(group.embedding_dim))


def choose_slots(groups: Sequence[Group], tier: TierConfig, optimizer: RowOptimizer, policy: Policy) -> Sizes:
    """Slots per group: of every group the same share, whatever the unit of `device_rows`.

    Raises:
        ConfigError: if the policy needs another size than the one given.
    """
    wanted, reason = tier.device_rows, "as set"
    if policy.device_rows is not None:
        if tier.device_rows not in ("auto", policy.device_rows):
            raise ConfigError(
                f"tier.device_rows={tier.device_rows}: policy {type(policy).__name__} needs {policy.device_rows}; "
                f"leave it at auto or choose another policy"
            )
        wanted, reason = policy.device_rows, f"policy {type(policy).__name__} needs {policy.device_rows}"
    num_rows = sum(group.num_rows for group in groups)
    if wanted == "auto":
        slots = [_auto(group, tier.held_rows) for group in groups]
        reason = "auto: 10% of the rows"
        if sum(slots) > sum(-(-group.num_rows // 10) for group in groups):
            reason = f"auto: what the look-ahead must hold (about {tier.held_rows:,} rows)"
    else:
        slots = _shared_out(groups, wanted, optimizer)
    size = sum(n * row_bytes(group, optimizer) for n, group in zip(slots, groups, strict=True))
    text = f"device tier: {sum(slots):,} of {num_rows:,} rows, {size / 2**20:.1f} MiB ({reason})"
    return Sizes(tuple(slots), text)


def _auto(group: Group, held_rows: int) -> int:
    """A group may have to hold all of them, as far as it has that many rows."""
    share = parse_size(AUTO_SHARE, row_bytes=1, num_rows=group.num_rows)
    return max(share, min(group.num_rows, held_rows))


def _shared_out(groups: Sequence[Group], wanted: str, optimizer: RowOptimizer) -> list[int]:
    """The same share of every group; at least one slot each, if any is wanted."""
    if wanted.endswith("%"):
        return [parse_size(wanted, row_bytes=1, num_rows=group.num_rows) for group in groups]
    num_rows = sum(group.num_rows for group in groups)
    all_bytes = sum(row_bytes(group, optimizer) * group.num_rows for group in groups)
    if wanted[-1].isdigit():
        share = parse_size(wanted, row_bytes=1, num_rows=num_rows) / num_rows
    else:
        share = min(1.0, parse_size(wanted, row_bytes=1, num_rows=2**62) / all_bytes)
    return [min(group.num_rows, max(int(share * group.num_rows), 1)) if share else 0 for group in groups]


def hot_rows(group: Group, skip: SkipConfig, optimizer: RowOptimizer) -> int:
    """Rows of a group watched for saturation."""
    wanted = "5%" if skip.hot_rows == "auto" else skip.hot_rows
    size = parse_size(wanted, row_bytes=row_bytes(group, optimizer), num_rows=group.num_rows)
    return max(1, size)


def held_rows(sample: Sequence[Batch], depth: int) -> int:
    """Rows that `depth` + 1 batches like those of the sample may hold: the largest batch's, times the batches.

    Counted per feature; features that share a table count double. The true need is smaller where batches share rows.
    """
    largest = 0
    for batch in sample:
        bounds = batch.offsets[:: batch.num_samples]
        parts = [batch.ids[first:last] for first, last in itertools.pairwise(bounds)]
        largest = max(largest, sum(len(np.unique(part)) for part in parts))
    return largest * (depth + 1)
