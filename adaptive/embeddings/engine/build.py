"""Builds an engine from tables and settings: tiers, planners and the pipeline."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.engine.pipeline import Pipeline, thread_needed
from adaptive.embeddings.engine.tiered_group import TieredGroup
from adaptive.embeddings.planning.books import books_bytes
from adaptive.embeddings.planning.key_tables import GroupKeys, key_bytes
from adaptive.embeddings.planning.layout import Group, Share, make_groups
from adaptive.embeddings.planning.lookups import DistinctFinder
from adaptive.embeddings.planning.planner import Planner
from adaptive.embeddings.planning.policy_calls import PolicyCaller
from adaptive.embeddings.planning.sizing import Sizes, choose_slots, hot_rows, row_bytes, sums_bytes
from adaptive.embeddings.planning.skipping import hot_set_bytes
from adaptive.embeddings.tiers.cpu_device import CpuDevice
from adaptive.embeddings.tiers.device import DeviceTier
from adaptive.embeddings.tiers.gpu.build import build_devices, free_bytes, least_searched
from adaptive.embeddings.tiers.host import HostTier, MemoryHost
from adaptive.embeddings.tiers.host_file import FileHost
from adaptive.embeddings.tiers.mover import Mover
from adaptive.embeddings.tiers.streams import streams_of
from adaptive.errors import ConfigError
from adaptive.optim import RowOptimizer
from adaptive.policy import Calibrates, Policy
from adaptive.system import available_bytes

MEMORY = ("host_weights", "host_state", "device_weights", "device_state", "bookkeeping", "sums")


@dataclass(frozen=True)
class SizedEngine:
    """Arguments of the tables, and the sizes that follow; allocates no memory for rows."""

    tables: tuple[TableConfig, ...]
    tier: TierConfig
    groups: tuple[Group, ...]
    policy_caller: PolicyCaller
    device: torch.device
    optimizer: RowOptimizer
    sizes: Sizes
    skip: SkipConfig | None  # None: no update is skipped or deferred

    @property
    def policy(self) -> Policy:
        return self.policy_caller.policy

    @property
    def drops_updates(self) -> bool:
        return self.skip is not None and self.policy_caller.leaves_out

    @property
    def defers(self) -> bool:
        return self.skip is not None and self.policy_caller.defers

    @property
    def num_rows(self) -> int:
        return sum(group.num_rows for group in self.groups)

    @property
    def device_rows(self) -> int:
        return sum(self.sizes.slots)

    def memory(self) -> dict[str, int]:
        """Return bytes by name like `StatisticsCollector.memory`, without buffers."""
        caller, totals = self.policy_caller, dict.fromkeys(MEMORY, 0)
        for group, slots in zip(self.groups, self.sizes.slots, strict=True):
            sizes = group.vector_bytes, self.optimizer.state_bytes(group.embedding_dim)
            parts = [rows * size for rows in (group.num_rows, slots) for size in sizes]
            of_books = books_bytes(group.num_rows, slots, keeps_norms=caller.scores, by_accesses=caller.by_accesses)
            parts.append(of_books + key_bytes(group))
            if self.skip is not None:
                parts[-1] += hot_set_bytes(hot_rows(group, self.skip, self.optimizer), group.num_rows)
            for name, size in zip(MEMORY, parts, strict=False):
                totals[name] += size
        if self.skip is not None and caller.defers:
            totals["sums"] = sums_bytes(self.groups, self.skip, self.optimizer)
        return totals


def size_engine(
    tables: Sequence[TableConfig],
    tier: TierConfig,
    policy: Policy,
    optimizer: RowOptimizer,
    skip: SkipConfig | None,
    seed: int,
    share: Share | None = None,
) -> SizedEngine:
    """Choose the sizes of everything that `build_pipeline` creates.

    Raises:
        ConfigError: for tables, sizes or combinations that cannot work.
        DeviceMemoryError: if the device's memory is too small for the rows of the batches in flight.
    """
    policy_caller = PolicyCaller(policy)
    groups, device = make_groups(tables, seed, share), choose_device(tier.device)
    if tier.plan_threads == 0 and (reason := thread_needed(tier, policy, on_cpu=device.type == "cpu")):
        raise ConfigError(
            f"tier.plan_threads=0: expected rows in memory, a CPU, and a policy that arranges "
            f"batches by inputs alone or not at all, got {reason}. Set tier.plan_threads to auto."
        )
    policy_caller.begin(type(optimizer).__name__.lower())
    skip = skip if policy_caller.skips else None
    refuse_with_keys(tables, policy)
    room = free_bytes(device)
    if room is not None and skip is not None and policy_caller.defers:
        room = max(0, room - sums_bytes(groups, skip, optimizer))
    sizes = choose_slots(groups, tier, optimizer, policy, room)
    return SizedEngine(tuple(tables), tier, groups, policy_caller, device, optimizer, sizes, skip)


def build_pipeline(sized: SizedEngine) -> tuple[Pipeline, Sizes]:
    """Create the tiers, with rows at their initial values, and the pipeline.

    Returns the pipeline and the sizes that fit into memory. Call `begin_hot_sets` for rules.

    Raises:
        ConfigError: for combinations that cannot work.
        DeviceMemoryError: if the device's memory is too small for the rows of the batches in flight.
    """
    policy_caller = sized.policy_caller
    mover = Mover(streams_of(sized.device))
    needed = _lookups_needed(sized.groups, sized.policy, sized.skip)
    pools_on_host = sized.policy.misses == "host"
    least = least_searched(sized.tier, mover.device, needed, pools_on_host=pools_on_host)
    tiered_groups, sizes = _build_tiered_groups(sized, mover, least)
    pipeline = Pipeline(tiered_groups, policy_caller, sized.tier, sized.skip, mover, sized.optimizer)
    pipeline.use_rate(sized.optimizer.lr)
    return pipeline, sizes


def refuse_with_keys(tables: Sequence[TableConfig], policy: Policy) -> None:
    """Refuse policies that tables with keys do not support yet.

    Raises:
        ConfigError: for a policy that calibrates.
    """
    keyed = [table for table in tables if table.keys is not None]
    if keyed and isinstance(policy, Calibrates):
        raise ConfigError(
            f"table {keyed[0].name!r}: expected a policy that supports keys, got {type(policy).__name__}, which "
            "chooses rows by a sample before any key has one. Choose another policy."
        )


def _lookups_needed(groups: Sequence[Group], policy: Policy, skip: SkipConfig | None) -> str:
    """Return why the host needs a batch's lookups; empty if distinct rows suffice."""
    if policy.misses == "host":
        return f"policy {type(policy).__name__} leaves rows on the host, where they are pooled and updated"
    if skip is not None:
        return "the host selects deferred and skipped updates by their lookups (skip=null or rule=off: there are none)"
    if any(group.has_keys for group in groups):
        return "keys get rows when their batch is planned"
    return ""


def begin_hot_sets(pipeline: Pipeline, skip: SkipConfig, optimizer: RowOptimizer) -> None:
    """Begin to follow the hottest rows of every group. Call it again if device memory ran out."""
    policy_caller = pipeline.policy_caller
    for tiered in pipeline.tiered_groups:
        capacity = hot_rows(tiered.group, skip, optimizer)
        tiered.planner.begin_hot_set(capacity, skip)
        tiered.device.begin_sums(capacity if policy_caller.defers else 0)


def choose_device(wanted: str) -> torch.device:
    """Return the torch device for `tier.device`.

    Raises:
        ConfigError: for `cuda` without a CUDA device.
    """
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "tier.device=cuda: expected a CUDA device, got none from torch. Set tier.device to cpu or auto."
        )
    return torch.device(wanted.removesuffix("-torch"))


def _build_tiered_groups(
    sized: SizedEngine, mover: Mover, least: tuple[float, float] | None
) -> tuple[list[TieredGroup], Sizes]:
    """Create the tiers of each group; return them with the sizes that fit into memory."""
    groups, sizes, tier, optimizer = sized.groups, sized.sizes, sized.tier, sized.optimizer
    policy_caller = sized.policy_caller
    in_place = policy_caller.policy.misses == "host"
    own_pages = tier.transfer == "direct" or (tier.transfer == "auto" and mover.device.type == "cuda")
    hosts = [_make_host(group, optimizer, tier.host, in_place=in_place, own_pages=own_pages) for group in groups]
    devices: Sequence[DeviceTier]
    if mover.device.type == "cpu" and tier.device != "cpu-torch":
        slots = zip(hosts, sizes.slots, strict=True)
        devices = [CpuDevice(host, num_slots, poison=tier.poison) for host, num_slots in slots]
    else:
        devices, sizes = build_devices(
            hosts, sizes, tier, optimizer, policy_caller.policy, mover, least=least, updates_all=sized.skip is None
        )
    keys = [GroupKeys(group) if group.has_keys else None for group in groups]
    for host, of_group in zip(hosts, keys, strict=True):
        host.row_keys = None if of_group is None else of_group.row_keys
    tiered_groups = [
        TieredGroup(
            host.group,
            host,
            device,
            Planner(host.group, device.num_slots, tier, policy_caller, row_bytes(host.group, optimizer)),
            DistinctFinder(host.group),
            of_group,
        )
        for host, device, of_group in zip(hosts, devices, keys, strict=True)
    ]
    return tiered_groups, sizes


def _make_host(group: Group, optimizer: RowOptimizer, host: str, *, in_place: bool, own_pages: bool) -> HostTier:
    if host == "memory":
        try:
            return MemoryHost(group, optimizer, own_pages=own_pages)
        except (MemoryError, OSError) as error:
            size = row_bytes(group, optimizer)
            raise ConfigError(
                f"tier.host=memory: expected {group.num_rows * size / 2**30:,.1f} GiB of memory for "
                f"{group.num_rows:,} rows of {size:,} bytes, got {available_bytes() / 2**30:,.1f} GiB available. Store "
                'rows in files: set tier.host="mmap:DIR" (--set tier.host=mmap:DIR), which uses disk for trained rows '
                "only."
            ) from error
    return FileHost(group, optimizer, Path(host.removeprefix("mmap:")), in_place=in_place)
