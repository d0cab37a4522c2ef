"""Which way rows take between the host tier and a device; see `adaptive.tiers.transfer`.

`tier.transfer = "auto"` is direct on a GPU if the host tier lies in memory and pinning all of it takes at most half of
the memory that is free, and staged otherwise. If the system does not let so much memory be pinned, rows are staged too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from adaptive.config import TierConfig
from adaptive.errors import ConfigError
from adaptive.optim import RowOptimizer
from adaptive.tiers.host import HostTier
from adaptive.tiers.mover import Mover
from adaptive.tiers.pinned import Pinned, available_bytes
from adaptive.tiers.torch_rows import RowKernels
from adaptive.tiers.transfer import Direct, RowArrays, Staged, Transfer

MOST_PINNED = 0.5  # share of the free memory


@dataclass(frozen=True)
class Ways:
    """What was chosen for all host tiers: their memory as the device sees it, if rows are read and written in place."""

    pinned: dict[int, tuple[Pinned, Pinned]]  # by id of the host tier: weights, state; empty: staged
    lands: bool  # rows on the host are used in place
    text: str  # for the user

    def transfer(self, host: HostTier, mover: Mover, kernels: RowKernels, optimizer: RowOptimizer) -> Transfer:
        """The way of one host tier's rows."""
        if id(host) not in self.pinned:
            return Staged(host, mover, kernels, optimizer)
        pair = self.pinned[id(host)]
        rows = RowArrays(pair[0].tensor, pair[1].tensor)
        return Direct(host, mover, kernels, optimizer, rows, lands=self.lands, close=lambda: _close(pair))


def choose_ways(hosts: Sequence[HostTier], tier: TierConfig, device: torch.device, *, lands: bool) -> Ways:
    """Pin the host tiers, if that is the way.

    Raises:
        ConfigError: if it is asked for and cannot be.
    """
    wanted, reason = _wanted(hosts, tier, device)
    if wanted == "staged":
        return Ways({}, lands, f"rows cross in pinned buffers{reason}")
    pinned: dict[int, tuple[Pinned, Pinned]] = {}
    try:
        for host in hosts:
            pinned[id(host)] = Pinned(host.weights, device), Pinned(host.state, device)
    except MemoryError as error:
        for pair in pinned.values():
            _close(pair)
        if tier.transfer == "direct":
            found = f"host memory cannot be pinned ({error})"
            raise ConfigError(f"tier.transfer=direct: {found}; use auto or staged") from None
        return Ways({}, lands, f"rows cross in pinned buffers: the tables' memory cannot be pinned ({error})")
    return Ways(pinned, lands, "rows are read and written in place in pinned host memory")


def _wanted(hosts: Sequence[HostTier], tier: TierConfig, device: torch.device) -> tuple[str, str]:
    in_memory = tier.host == "memory"
    if tier.transfer == "direct" and not in_memory:
        raise ConfigError(f"tier.transfer=direct needs tier.host=memory, found {tier.host}; use auto or staged")
    if tier.transfer != "auto":
        return tier.transfer, ""
    size = sum(sum(host.num_bytes) for host in hosts)
    if not in_memory or device.type != "cuda":
        return "staged", ""
    if size > MOST_PINNED * available_bytes():
        return "staged", f": pinning {size / 2**30:.1f} GiB would take more than half of the free memory"
    return "direct", ""


def _close(pair: tuple[Pinned, Pinned]) -> None:
    for pinned in pair:
        pinned.close()
