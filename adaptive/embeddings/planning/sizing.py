"""Numbers of slots of each group, from the setting `tier.device_rows`."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TierConfig, parse_size
from adaptive.embeddings.planning.layout import Group
from adaptive.errors import ConfigError, DeviceMemoryError
from adaptive.optim import RowOptimizer
from adaptive.policy import Policy

AUTO_SHARE = "10%"
LEAST_HOT_ROWS = 100_000
RESERVE_SHARE = 0.2  # of a GPU's free memory, for model, activations and gradients
RESERVE_LEAST = 1 << 30
GIVEN_UP: Final = 0.1  # least share of the device rows that an error for a full GPU takes away


@dataclass(frozen=True)
class Sizes:
    """Slots of each group, and a sentence about them for the user."""

    slots: tuple[int, ...]
    text: str


def row_bytes(group: Group, optimizer: RowOptimizer) -> int:
    """Bytes of a row with its optimizer state."""
    return group.vector_bytes + optimizer.state_bytes(group.embedding_dim)


def choose_slots(
    groups: Sequence[Group],
    tier: TierConfig,
    optimizer: RowOptimizer,
    policy: Policy,
    room: int | None = None,
) -> Sizes:
    """Choose the slots of each group: the same share of every group.

    Args:
        groups: the tables.
        tier: settings.
        optimizer: of the rows, whose state takes memory, too.
        policy: which may allow a single size only.
        room: free bytes on a GPU, for `device_rows = "auto"`; None: the device tier is ordinary memory.

    Raises:
        ConfigError: if the policy needs another size than the one set.
        DeviceMemoryError: if the rows of the batches in flight do not fit.
    """
    wanted, reason = tier.device_rows, "as set"
    if policy.device_rows is not None:
        if tier.device_rows not in ("auto", policy.device_rows):
            raise ConfigError(
                f"tier.device_rows: expected {policy.device_rows} for policy {type(policy).__name__}, got "
                f"{tier.device_rows}. Leave it at auto, or choose another policy."
            )
        wanted, reason = policy.device_rows, f"policy {type(policy).__name__} needs {policy.device_rows}"
    if wanted != "auto":
        slots = _shared_out(groups, wanted, optimizer)
    elif room is None:
        shares = [parse_size(AUTO_SHARE, row_bytes=1, num_rows=group.num_rows) for group in groups]
        slots = [max(share, min(g.num_rows, tier.held_rows)) for share, g in zip(shares, groups, strict=True)]
        reason = "auto: 10% of the rows"
        if sum(slots) > sum(-(-group.num_rows // 10) for group in groups):
            reason = _held_reason(tier)
    else:
        slots, reason = _auto_on_gpu(groups, tier, optimizer, room)
    return resized(groups, slots, optimizer, reason)


def resized(groups: Sequence[Group], slots: Sequence[int], optimizer: RowOptimizer, reason: str) -> Sizes:
    """Describe these slots of each group; `reason` is text for the user."""
    num_rows, size = sum(group.num_rows for group in groups), _bytes(groups, slots, optimizer)
    text = f"device tier: {sum(slots):,} of {num_rows:,} rows, {size / 2**20:.1f} MiB ({reason})"
    return Sizes(tuple(slots), text)


def _held_reason(tier: TierConfig) -> str:
    return f"auto: the batches in flight need about {tier.held_rows:,} rows"


def _bytes(groups: Sequence[Group], slots: Sequence[int], optimizer: RowOptimizer) -> int:
    return sum(n * row_bytes(group, optimizer) for n, group in zip(slots, groups, strict=True))


def _auto_on_gpu(
    groups: Sequence[Group], tier: TierConfig, optimizer: RowOptimizer, room: int
) -> tuple[list[int], str]:
    """As many slots as fit next to the reserve, but no fewer than the batches in flight need."""
    reserve = reserve_bytes(tier.reserve, room)
    share = (room - reserve) / _bytes(groups, [group.num_rows for group in groups], optimizer)
    fitting = [min(group.num_rows, int(share * group.num_rows)) for group in groups]
    floors = [least_slots(group, tier.held_rows) for group in groups]
    slots = [max(fit, floor) for fit, floor in zip(fitting, floors, strict=True)]
    if _bytes(groups, slots, optimizer) > room:
        raise DeviceMemoryError(
            f"expected {_gib(_bytes(groups, floors, optimizer))} of free GPU memory for the batches in flight (about "
            f"{tier.held_rows:,} rows), got {_gib(room)}. Lower batch_size or depth."
        )
    if slots != fitting:
        return slots, _held_reason(tier)
    if sum(slots) == sum(group.num_rows for group in groups):
        return slots, f"auto: all rows fit in the {_gib(room)} of free GPU memory"
    return slots, f"auto: {_gib(room)} of GPU memory are free, of which {_gib(reserve)} are left to model and batches"


def reserve_bytes(reserve: str, free: int) -> int:
    """Bytes of `free` that are not for slots. auto: 20%, at least 1 GiB, at most half."""
    if reserve == "auto":
        return min(max(int(RESERVE_SHARE * free), RESERVE_LEAST), free // 2)
    return parse_size(reserve, row_bytes=1, num_rows=free)


def least_slots(group: Group, held_rows: int) -> int:
    """Fewest slots that a group can work with: the rows of the batches in flight."""
    return min(group.num_rows, max(held_rows, 1))


def out_of_memory(
    error: RuntimeError, when: str, groups: Sequence[Group], slots: Sequence[int], optimizer: RowOptimizer
) -> DeviceMemoryError:
    """Return the error for a full GPU. It says about how many device rows would fit."""
    cause, size, now = str(error).splitlines()[0], _bytes(groups, slots, optimizer), sum(slots)
    asked = re.search(r"Tried to allocate ([0-9.]+) ([KMG])iB", cause)
    missing = float(asked[1]) * 1024 ** (1 + "KMG".index(asked[2])) if asked else 0.0
    fewer = int(now * (1 - max(GIVEN_UP, 2 * missing / size))) if size else 0  # twice: more will be asked for
    advice = f"Set device_rows to {fewer} (now {now}), or lower" if fewer > 0 else "Lower"
    return DeviceMemoryError(f"out of GPU memory {when}: {cause}. {advice} batch_size or depth.")


@dataclass(frozen=True)
class Need:
    """Slots that one group needs."""

    least: int  # for the rows of the batches in flight, counted
    wanted: int  # for any batches like these: rows of the largest one, times the batches in flight


def shared_by_need(
    groups: Sequence[Group], slots: Sequence[int], needs: Sequence[Need], costs: Sequence[int], *, may_grow: bool
) -> list[int] | None:
    """Rebalance slots across groups by need; None if there are too few.

    Each group first gets its least, then a share of what it wants; a group of which batches want half of the rows
    gets all. The rest is shared in proportion to the rows without a slot.

    Args:
        groups: the tables.
        slots: current ones of each group.
        needs: of each group.
        costs: of one slot of each group; the total cost stays the same.
        may_grow: allow as many slots as are wanted.
    """
    rows = [group.num_rows for group in groups]
    least = [min(need.least, n) for need, n in zip(needs, rows, strict=True)]
    wanted = [n if 2 * need.wanted >= n else need.wanted for need, n in zip(needs, rows, strict=True)]
    wanted = [max(pair) for pair in zip(least, wanted, strict=True)]
    budget = _cost(costs, slots)
    if may_grow:
        budget = max(budget, _cost(costs, [max(pair) for pair in zip(slots, wanted, strict=True)]))
    if _cost(costs, least) > budget:
        return None
    shared = least
    for goal in (wanted, rows):
        missing = [most - n for most, n in zip(goal, shared, strict=True)]
        cost = _cost(costs, missing)
        share = min(1.0, (budget - _cost(costs, shared)) / cost) if cost else 0.0
        shared = [n + int(share * more) for n, more in zip(shared, missing, strict=True)]
        shared = _filled_up(shared, goal, costs, budget)
    return shared


def _cost(costs: Sequence[int], slots: Sequence[int]) -> int:
    return sum(cost * n for cost, n in zip(costs, slots, strict=True))


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def _shared_out(groups: Sequence[Group], wanted: str, optimizer: RowOptimizer) -> list[int]:
    """The same share of every group, at least one slot each unless the size is 0."""
    if wanted.endswith("%"):
        return [parse_size(wanted, row_bytes=1, num_rows=group.num_rows) for group in groups]
    rows = [group.num_rows for group in groups]
    costs = [1 if wanted[-1].isdigit() else row_bytes(group, optimizer) for group in groups]
    budget = min(parse_size(wanted, row_bytes=1, num_rows=2**62), _cost(costs, rows))
    share = budget / _cost(costs, rows)
    slots = [min(n, max(int(share * n), 1)) if share else 0 for n in rows]
    return _filled_up(slots, rows, costs, budget)


def _filled_up(slots: Sequence[int], most: Sequence[int], costs: Sequence[int], budget: int) -> list[int]:
    """Spend the part of the budget that is left by rounding."""
    filled = list(slots)
    for number, (cost, limit) in enumerate(zip(costs, most, strict=True)):
        filled[number] += max(0, min(limit - filled[number], (budget - _cost(costs, filled)) // cost))
    return filled


def hot_rows(group: Group, skip: SkipConfig, optimizer: RowOptimizer) -> int:
    """Number of hot rows of a group.

    5% is plenty of millions of rows and too few of some thousands, hence the minimum (docs/explanation/skipping.md).
    """
    if skip.hot_rows == "auto":
        return max(group.num_rows // 20, min(group.num_rows, LEAST_HOT_ROWS))
    return max(1, parse_size(skip.hot_rows, row_bytes=row_bytes(group, optimizer), num_rows=group.num_rows))


def sums_bytes(groups: Sequence[Group], skip: SkipConfig, optimizer: RowOptimizer) -> int:
    """Bytes on the device for hot rows whose updates are deferred: sums of gradients and squares."""

    def values(group: Group) -> int:
        dim, rows = group.embedding_dim, hot_rows(group, skip, optimizer)
        return rows * (dim + optimizer.squares_width(dim))

    return sum(4 * values(group) for group in groups)


def held_rows(sample: Sequence[Batch], depth: int) -> int:
    """Upper bound for the rows of `depth` + 1 batches like those of a sample.

    It is the largest batch's number of rows times `depth` + 1, counted per feature, so that features that share a table
    count double. The true need is smaller if batches share rows.
    """
    largest = 0
    for batch in sample:
        bounds = batch.offsets[:: batch.num_samples]
        parts = [batch.ids[first:last] for first, last in itertools.pairwise(bounds)]
        largest = max(largest, sum(len(np.unique(part)) for part in parts))
    return largest * (depth + 1)
