"""What buffers take, and what crosses in them beside rows: counted for `memory()` and the byte counters."""

from collections.abc import Iterable

from adaptive.counters import Counter
from adaptive.planning.plan import Int64s
from adaptive.tiers.sent import SentPlan

Bytes = tuple[int, int]  # of pinned memory on the host, of device memory


def added(parts: Iterable[Bytes]) -> Bytes:
    """Bytes of all parts."""
    pinned = device = 0
    for part in parts:
        pinned, device = pinned + part[0], device + part[1]
    return pinned, device


def counted(plan: SentPlan) -> SentPlan:
    """The plan, its own bytes counted as sent to the device: each table's share is that of its look-ups."""
    plan.tally[:, Counter.BYTES_H2D] += shared_out(plan.parcel.size, plan.tally[:, Counter.LOOKUPS])
    return plan


def shared_out(total: int, weights: Int64s) -> Int64s:
    """Whole shares (n,) of `total` in proportion to weights (n,) >= 0; what does not divide goes to the largest."""
    shares: Int64s = total * weights // max(int(weights.sum()), 1)
    shares[weights.argmax()] += total - int(shares.sum())
    return shares
