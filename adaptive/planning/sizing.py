"""How many slots each group gets for a setting of `tier.device_rows`."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TierConfig, parse_size
from adaptive.errors import ConfigError, DeviceMemoryError
from adaptive.optim import RowOptimizer
from adaptive.planning.layout import Group
from adaptive.policy import Policy

AUTO_SHARE = "10%"
LEAST_HOT_ROWS = 100_000
RESERVE_SHARE = 0.2  # of a GPU's free memory, for model, activations and gradients
RESERVE_LEAST = 1 << 30
SHRINK = 0.1  # share of the slots given up when the device's memory runs out


@dataclass(frozen=True)
class Sizes:
    """Slots of each group, and one sentence for the user."""

    slots: tuple[int, ...]
    text: str


def row_bytes(group: Group, optimizer: RowOptimizer) -> int:
    """Bytes of a row with its state."""
    return 4 * (group.embedding_dim + optimizer.state_width(group.embedding_dim))


def choose_slots(
    groups: Sequence[Group],
    tier: TierConfig,
    optimizer: RowOptimizer,
    policy: Policy,
    room: int | None = None,
) -> Sizes:
    """Slots per group: of every group the same share, whatever the unit of `device_rows`.

    Args:
        groups: the tables.
        tier: settings.
        optimizer: of the rows; its state takes memory too.
        policy: may fix its size.
        room: bytes free on a GPU, for `device_rows = "auto"`; None: the device tier is ordinary memory.

    Raises:
        ConfigError: if the policy needs another size than the one given.
        DeviceMemoryError: if what the look-ahead must hold is more than there is room for.
    """
    wanted, reason = tier.device_rows, "as set"
    if policy.device_rows is not None:
        if tier.device_rows not in ("auto", policy.device_rows):
            raise ConfigError(
                f"tier.device_rows={tier.device_rows}: policy {type(policy).__name__} needs {policy.device_rows}; "
                f"leave it at auto or choose another policy"
            )
        wanted, reason = policy.device_rows, f"policy {type(policy).__name__} needs {policy.device_rows}"
    if wanted != "auto":
        slots = _shared_out(groups, wanted, optimizer)
    elif room is None:
        slots = [_auto(group, tier.held_rows) for group in groups]
        reason = "auto: 10% of the rows"
        if sum(slots) > sum(-(-group.num_rows // 10) for group in groups):
            reason = f"auto: what the look-ahead must hold (about {tier.held_rows:,} rows)"
    else:
        slots, reason = _auto_on_gpu(groups, tier, optimizer, room)
    return _sizes(groups, slots, optimizer, reason)


def _sizes(groups: Sequence[Group], slots: Sequence[int], optimizer: RowOptimizer, reason: str) -> Sizes:
    num_rows, size = sum(group.num_rows for group in groups), _bytes(groups, slots, optimizer)
    text = f"device tier: {sum(slots):,} of {num_rows:,} rows, {size / 2**20:.1f} MiB ({reason})"
    return Sizes(tuple(slots), text)


def _bytes(groups: Sequence[Group], slots: Sequence[int], optimizer: RowOptimizer) -> int:
    return sum(n * row_bytes(group, optimizer) for n, group in zip(slots, groups, strict=True))


def _auto_on_gpu(
    groups: Sequence[Group], tier: TierConfig, optimizer: RowOptimizer, room: int
) -> tuple[list[int], str]:
    """As many slots as there is room for beside the reserve, but no fewer than look-ahead must hold."""
    kept = reserve_bytes(tier.reserve, room)
    share = (room - kept) / _bytes(groups, [group.num_rows for group in groups], optimizer)
    fitting = [min(group.num_rows, int(share * group.num_rows)) for group in groups]
    floors = [least_slots(group, tier.held_rows) for group in groups]
    slots = [max(fit, floor) for fit, floor in zip(fitting, floors, strict=True)]
    if _bytes(groups, slots, optimizer) > room:
        raise DeviceMemoryError(
            f"the look-ahead must hold about {tier.held_rows:,} rows, {_gib(_bytes(groups, floors, optimizer))}; "
            f"{_gib(room)} are free on the GPU: lower batch_size or depth"
        )
    if slots != fitting:
        return slots, f"auto: what the look-ahead must hold (about {tier.held_rows:,} rows)"
    if sum(slots) == sum(group.num_rows for group in groups):
        return slots, f"auto: all rows fit into the {_gib(room)} that are free on the GPU"
    return slots, f"auto: {_gib(room)} are free on the GPU, {_gib(kept)} are left to model and batches"


def reserve_bytes(reserve: str, free: int) -> int:
    """Of `free` bytes, those that are not for slots. auto: 20 %, but 1 GiB at least, but half at most."""
    if reserve == "auto":
        return min(max(int(RESERVE_SHARE * free), RESERVE_LEAST), free // 2)
    return parse_size(reserve, row_bytes=1, num_rows=free)


def least_slots(group: Group, held_rows: int) -> int:
    """The fewest slots a group can work with: the rows that look-ahead must hold, as far as known."""
    return min(group.num_rows, max(held_rows, 1))


def shrunk(sizes: Sizes, groups: Sequence[Group], tier: TierConfig, optimizer: RowOptimizer, policy: Policy) -> Sizes:
    """Sizes with a tenth fewer slots, after the device's memory ran out.

    Raises:
        DeviceMemoryError: if fewer slots would not hold the rows that must be held.
    """
    floors = [least_slots(group, tier.held_rows) for group in groups]
    slots = [max(int((1 - SHRINK) * n), min(n, floor)) for n, floor in zip(sizes.slots, floors, strict=True)]
    if policy.device_rows is not None or sum(slots) == sum(sizes.slots):
        raise DeviceMemoryError(
            f"out of GPU memory with {sum(sizes.slots):,} device rows, {_gib(_bytes(groups, sizes.slots, optimizer))}, "
            f"and fewer will not do: lower batch_size or depth, or choose another policy or GPU"
        )
    return resized(groups, slots, optimizer)


def resized(groups: Sequence[Group], slots: Sequence[int], optimizer: RowOptimizer) -> Sizes:
    """Sizes with fewer slots than were wanted, after the device's memory ran out."""
    return _sizes(groups, slots, optimizer, "fewer than wanted: out of GPU memory")


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def _auto(group: Group, held_rows: int) -> int:
    """Slots of a group under `auto`: a share of its rows, and room for all held rows, which may all be its own."""
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
    """Rows of a group that are watched, so that their updates can be skipped.

    5 % are plenty of millions of rows and too few of some thousands, hence the minimum; see docs/skipping.md.
    """
    if skip.hot_rows == "auto":
        return max(group.num_rows // 20, min(group.num_rows, LEAST_HOT_ROWS))
    return max(1, parse_size(skip.hot_rows, row_bytes=row_bytes(group, optimizer), num_rows=group.num_rows))


def watched_bytes(
    groups: Sequence[Group], skip: SkipConfig, optimizer: RowOptimizer, *, snapshots: bool, sums: bool
) -> int:
    """Bytes on the device of what is kept of watched rows: snapshots, sums of deferred gradients with their squares."""

    def values(dim: int) -> int:
        return snapshots * dim + sums * (dim + optimizer.squares_width(dim))

    return sum(4 * values(group.embedding_dim) * hot_rows(group, skip, optimizer) for group in groups)


def held_rows(sample: Sequence[Batch], depth: int) -> int:
    """Rows that `depth` + 1 batches like those of the sample may hold: the largest batch's times `depth` + 1.

    Counted per feature; features that share a table count double. The true need is smaller where batches share rows.
    """
    largest = 0
    for batch in sample:
        bounds = batch.offsets[:: batch.num_samples]
        parts = [batch.ids[first:last] for first, last in itertools.pairwise(bounds)]
        largest = max(largest, sum(len(np.unique(part)) for part in parts))
    return largest * (depth + 1)
