"""Makes the tiers and the planner of every group."""

from collections.abc import Sequence
from pathlib import Path

import torch

from adaptive.config import TierConfig
from adaptive.errors import ConfigError
from adaptive.optim import RowOptimizer
from adaptive.planning.layout import Group
from adaptive.planning.lookups import DistinctFinder
from adaptive.planning.planner import Planner
from adaptive.planning.policy_calls import Referee
from adaptive.planning.sizing import Sizes, row_bytes
from adaptive.tiers.cpu_device import CpuDevice
from adaptive.tiers.device import DeviceTier
from adaptive.tiers.gpu.build import build_devices
from adaptive.tiers.host import HostTier, MemoryHost
from adaptive.tiers.host_file import FileHost
from adaptive.tiers.mover import Mover
from adaptive.tiers.pipeline import Lane


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
    groups: Sequence[Group], sizes: Sizes, tier: TierConfig, optimizer: RowOptimizer, referee: Referee, mover: Mover
) -> tuple[list[Lane], Sizes]:
    """One lane for each group, and the sizes for which there was memory.

    Raises:
        ConfigError: if the host tier cannot be as set.
        DeviceMemoryError: if the device's memory does not hold what the look-ahead must.
    """
    policy = referee.policy
    in_place = policy.misses == "host"
    own_pages = tier.transfer == "direct" or (tier.transfer == "auto" and mover.device.type == "cuda")
    hosts = [_make_host(group, optimizer, tier.host, in_place=in_place, own_pages=own_pages) for group in groups]
    if mover.device.type == "cpu" and tier.device != "cpu-torch":
        devices: Sequence[DeviceTier] = [
            CpuDevice(host, number, optimizer, poison=tier.poison)
            for host, number in zip(hosts, sizes.slots, strict=True)
        ]
    else:
        devices, sizes = build_devices(hosts, sizes, tier, optimizer, policy, mover)
    lanes = [
        Lane(
            host.group,
            host,
            device,
            Planner(host.group, device.num_slots, tier, referee, row_bytes(host.group, optimizer)),
            DistinctFinder(host.group),
        )
        for host, device in zip(hosts, devices, strict=True)
    ]
    return lanes, sizes


def _make_host(group: Group, optimizer: RowOptimizer, host: str, *, in_place: bool, own_pages: bool) -> HostTier:
    if host == "memory":
        return MemoryHost(group, optimizer, own_pages=own_pages)
    return FileHost(group, optimizer, Path(host.removeprefix("mmap:")), in_place=in_place)
