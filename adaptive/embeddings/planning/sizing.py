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
AUTO_LEAST = 100_000  # rows of a group, if those of the batches in flight are not known
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
    """Choose the slots of each group.

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
        floors = [least_slots(group, tier.held_rows or AUTO_LEAST) for group in groups]
        slots, reason = list(map(max, shares, floors)), "auto: 10% of the rows"
        if slots != shares:
            reason = _held_reason(tier) if tier.held_rows else f"auto: 10%, at least {AUTO_LEAST:,} of each width"
    else:
        slots, reason = _auto_on_gpu(groups, tier, optimizer, room)
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
    reserve = reserve_bytes(room)
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


def reserve_bytes(free: int) -> int:
    """Bytes of `free` that are not for slots: 20%, at least 1 GiB, at most half."""
    return min(max(int(RESERVE_SHARE * free), RESERVE_LEAST), free // 2)


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


def _cost(costs: Sequence[int], slots: Sequence[int]) -> int:
    return sum(cost * n for cost, n in zip(costs, slots, strict=True))


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def share_out(groups: Sequence[Group], costs: Sequence[int], budget: int) -> list[int]:
    """Return the slots of each group.

    Half of the budget goes by features, so that a small group gets what batches look up in it, and at most all of its
    rows. The rest goes by the rows without a slot.

    Args:
        groups: the tables.
        costs: of one slot of each group.
        budget: for all slots together.
    """
    rows, features = [group.num_rows for group in groups], [len(group.features) for group in groups]
    budget = min(budget, _cost(costs, rows))
    slots, half, weight = [0] * len(groups), budget / 2, _cost(costs, features)
    for n in sorted(range(len(groups)), key=lambda n: rows[n] / features[n]):  # those that get all their rows first
        slots[n] = min(rows[n], int(features[n] * half / weight))
        half, weight = half - costs[n] * slots[n], weight - costs[n] * features[n]
    missing = [most - n for most, n in zip(rows, slots, strict=True)]
    share = min(1.0, (budget - _cost(costs, slots)) / max(_cost(costs, missing), 1))
    slots = [n + int(share * more) for n, more in zip(slots, missing, strict=True)]
    if budget:
        slots = [max(n, 1) for n in slots]
    for n, cost in enumerate(costs):  # what rounding left
        slots[n] += max(0, min(rows[n] - slots[n], (budget - _cost(costs, slots)) // cost))
    return slots


def least_device_rows(groups: Sequence[Group], needed: Sequence[int]) -> int:
    """Return about the fewest `device_rows` with which each group gets as many slots as needed."""
    ones, budget = [1] * len(groups), sum(needed)
    while any(n < need for n, need in zip(share_out(groups, ones, budget), needed, strict=True)):
        budget += 1 + budget // 64  # it is advice: exact for few rows, and a few percent above for many
    return budget


def _shared_out(groups: Sequence[Group], wanted: str, optimizer: RowOptimizer) -> list[int]:
    """Return the slots of each group for `tier.device_rows`, if it is not auto."""
    if wanted.endswith("%"):
        budget = sum(parse_size(wanted, row_bytes=1, num_rows=group.num_rows) for group in groups)
    else:
        budget = parse_size(wanted, row_bytes=1, num_rows=2**62)
    in_bytes = not wanted.endswith("%") and not wanted[-1].isdigit()
    return share_out(groups, [row_bytes(group, optimizer) if in_bytes else 1 for group in groups], budget)


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
