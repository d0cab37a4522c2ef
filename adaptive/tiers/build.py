"""Makes the tiers and the planner of every group."""

from collections.abc import Sequence
from pathlib import Path

import torch

from adaptive.config import TierConfig
from adaptive.errors import ConfigError
from adaptive.rows.optim import RowOptimizer
from adaptive.tiers.device import CpuDevice, DeviceTier
from adaptive.tiers.distinct import DistinctFinder
from adaptive.tiers.host import HostTier, MemoryHost
from adaptive.tiers.host_file import FileHost
from adaptive.tiers.layout import Group
from adaptive.tiers.pipeline import Lane
from adaptive.tiers.planner import Planner
from adaptive.tiers.referee import Referee
from adaptive.tiers.sizing import row_bytes
from adaptive.tiers.torch_device import TorchDevice


def choose_device(wanted: str) -> torch.device:
    """The torch device a setting means.

    Raises:
        ConfigError: if `cuda` is asked for and there is none.
    """
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("tier.device=cuda: torch finds no CUDA device here; use cpu or auto")
    return torch.device(wanted.removesuffix("-torch"))


def build_lanes(
    groups: Sequence[Group], slots: Sequence[int], tier: TierConfig, optimizer: RowOptimizer, referee: Referee
) -> list[Lane]:
    """One lane for each group."""
    lanes = []
    for group, num_slots in zip(groups, slots, strict=True):
        host = _make_host(group, optimizer, tier.host, in_place=referee.policy.misses == "host")
        planner = Planner(group, num_slots, tier, referee, row_bytes(group, optimizer))
        device = _make_device(host, num_slots, tier, optimizer)
        lanes.append(Lane(group, host, device, planner, DistinctFinder(group), DistinctFinder(group)))
    return lanes


def _make_host(group: Group, optimizer: RowOptimizer, host: str, *, in_place: bool) -> HostTier:
    if host == "memory":
        return MemoryHost(group, optimizer)
    return FileHost(group, optimizer, Path(host.removeprefix("mmap:")), in_place=in_place)


def _make_device(host: HostTier, num_slots: int, tier: TierConfig, optimizer: RowOptimizer) -> DeviceTier:
    device = choose_device(tier.device)
    if device.type == "cpu" and tier.device != "cpu-torch":
        return CpuDevice(host, num_slots, optimizer, poison=tier.poison)
    return TorchDevice(host, num_slots, optimizer, device, poison=tier.poison)
