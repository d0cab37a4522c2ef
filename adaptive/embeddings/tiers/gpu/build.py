"""Construction of device tiers on a torch device, and the choice of `gpu.transfer`.

`tier.transfer = "auto"` is direct on a GPU if the host tier is in memory and pinning all of it takes at most half of
the free memory, and staged otherwise. Rows are also staged if the system does not allow so much memory to be pinned, or
if every row has a slot: rows are then fetched once and never evicted, and pinning takes seconds and all memory.

If the host needs only distinct rows, lookups are sent to the device as soon as the host has found them, or, by
`tier.lookups`, the device itself searches them (`gpu.lookups`).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final

import numpy as np
import torch

from adaptive.config import TierConfig
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.sizing import Sizes, out_of_memory
from adaptive.embeddings.tiers.gpu.buffers import ROW_DTYPES
from adaptive.embeddings.tiers.gpu.device import TorchDevice
from adaptive.embeddings.tiers.gpu.lookups import LONG_BAGS, MANY_LOOKUPS, DeviceSearcher
from adaptive.embeddings.tiers.gpu.pinned import Pinned
from adaptive.embeddings.tiers.gpu.transfer import DirectTransfer, RowArrays, StagedTransfer, Transfer
from adaptive.embeddings.tiers.host import HostTier, whole_pages
from adaptive.embeddings.tiers.mover import Mover
from adaptive.errors import ConfigError
from adaptive.kernels.rows.choose import RowKernels, row_kernels
from adaptive.optim import RowOptimizer
from adaptive.policy import Policy
from adaptive.system import available_bytes

PinnedPair = tuple[Pinned, Pinned]  # weights and state of a host tier

WORKS: Final = "the GPU path works here"
MOST_PINNED: Final = 0.5  # share of the free memory
_ROWS, _WIDTH = 1000, 32


def check_copy(device: torch.device) -> str:
    """Copy pinned rows with the kernel that training uses; return WORKS or the failure."""
    host = whole_pages(_ROWS, _WIDTH)
    host[:] = np.random.default_rng(0).standard_normal(host.shape, np.float32)
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)  # where Triton launches
        pinned = Pinned(host, device)
        try:
            rows = torch.arange(_ROWS - 1, -1, -2, device=device)
            slots = torch.arange(len(rows), device=device)
            weights, no_state = torch.zeros((len(rows), _WIDTH), device=device), torch.empty((_ROWS, 0), device=device)
            row_kernels(device).copy_rows(weights, no_state, slots, pinned.tensor, no_state, rows)
            result, expected = weights.cpu().numpy(), host[rows.cpu().numpy()]
        finally:
            pinned.close()
    except Exception as error:  # compilers, drivers and torch raise anything
        return f"failed: {type(error).__name__}: {error}"
    return WORKS if np.array_equal(result.view(np.int32), expected.view(np.int32)) else "failed: copied rows differ"


def build_devices(
    hosts: Sequence[HostTier],
    sizes: Sizes,
    tier: TierConfig,
    optimizer: RowOptimizer,
    policy: Policy,
    mover: Mover,
    *,
    least: tuple[float, float] | None = None,
    updates_all: bool = True,
) -> tuple[list[TorchDevice], Sizes]:
    """Return a device tier for each host tier, and their sizes with the way rows cross in their text.

    least, updates_all: see `least_searched` and `DeviceSearcher`.

    Raises:
        ConfigError: if rows cannot cross as `tier.transfer` says.
        DeviceMemoryError: if the slots do not fit in the device's memory.
    """
    groups = [host.group for host in hosts]
    fits = all(slots >= group.num_rows for slots, group in zip(sizes.slots, groups, strict=True))
    pinned, text = choose_transfer(hosts, tier, mover.device, fits=fits)
    pairs: Sequence[PinnedPair | None] = pinned or [None] * len(hosts)
    devices: list[TorchDevice] = []
    try:
        for host, num_slots, pair in zip(hosts, sizes.slots, pairs, strict=True):
            kernels = row_kernels(mover.device)
            if mover.device.type == "cuda":
                launch_once(kernels, mover.device, host.group, host.optimizer)
            transfer = _make_transfer(pair, policy, host, mover, kernels)
            sent = {"updates_all": updates_all, "sends_inputs": not devices}
            searcher = None  # keys get rows in batch order, so lookups of rows cross with the plan
            if least is not None and not host.group.has_keys:
                searcher = DeviceSearcher(host.group, mover, *least, **sent)
            work = mover, kernels, transfer, searcher
            devices.append(TorchDevice(host, num_slots, *work, poison=tier.poison))
    except torch.OutOfMemoryError as error:
        raise out_of_memory(error, "while tables were created", groups, sizes.slots, optimizer) from error
    return devices, replace(sizes, text=f"{sizes.text}; {text}")


def launch_once(kernels: RowKernels, device: torch.device, group: Group, optimizer: RowOptimizer) -> None:
    """Launch each kernel on one row, as training usually does.

    Triton compiles a kernel at its first launch, which must not happen in two threads at once. The kernel for deferral
    is left out: only the training thread launches it.
    """
    slot, segments, vectors = (
        torch.arange(count, dtype=kind, device=device)
        for count, kind in ((1, torch.int64), (2, torch.int64), (1, torch.int32))
    )
    width = group.embedding_dim
    gradients = torch.zeros((1, width), device=device)
    weights, none = gradients.to(ROW_DTYPES[group.dtype]), torch.empty(0, device=device)
    state = torch.zeros((1, optimizer.state_width(width)), device=device)
    settings = [float(value) for value in optimizer.settings()]
    corrections, norms = torch.from_numpy(optimizer.corrections()).to(device), torch.empty((1, 1), device=device)
    row_keys = slot if group.has_keys else None
    kernels.initial_rows(weights, state, slot, slot, segments, slot, norms[0], 0.0, row_keys=row_keys)
    kernels.copy_rows(weights, state, slot, weights.clone(), state.clone(), slot)
    kernels.pool(weights, None, slot, vectors, vectors[:0], segments[:0], none, gradients, 1)
    kernels.pool(weights, None, slot, vectors, vectors, segments, none, gradients)
    keys = slot if group.rounds_stochastically else None
    if optimizer.decay_factor != 1:
        kernels.decay(weights, slot, optimizer.decay_factor, keys)
    rule = optimizer.kind, settings, corrections, norms
    kernels.update(weights, state, slot, segments, vectors, none, gradients, *rule, hot=vectors[:0], keys=keys)


def _make_transfer(
    pair: PinnedPair | None, policy: Policy, host: HostTier, mover: Mover, kernels: RowKernels
) -> Transfer:
    if pair is None:
        return StagedTransfer(host, mover, kernels)
    weights, state = (pinned.tensor for pinned in pair)
    rows = RowArrays(weights.view(ROW_DTYPES[host.dtype]), state)
    release = partial(_close, pair)
    return DirectTransfer(host, mover, kernels, rows, used_in_place=policy.misses == "host", release=release)


def choose_transfer(
    hosts: Sequence[HostTier], tier: TierConfig, device: torch.device, *, fits: bool = False
) -> tuple[list[PinnedPair], str]:
    """Choose between direct and staged, and pin the host tiers for direct.

    fits: every row has a slot. Returns the pinned tables of all host tiers, none for staged, and the choice as text.

    Raises:
        ConfigError: if direct is set and impossible.
    """
    wanted, reason = _wanted(hosts, tier, device, fits)
    if wanted == "staged":
        return [], f"rows cross in pinned buffers{reason}"
    pinned: list[PinnedPair] = []
    try:
        for host in hosts:
            pinned.append((Pinned(host.weights, device), Pinned(host.state, device)))
    except MemoryError as error:
        for pair in pinned:
            _close(pair)
        if tier.transfer == "direct":
            raise ConfigError(
                f"tier.transfer=direct: expected host memory that can be pinned, got {error}. Set it to auto or staged"
            ) from None
        return [], f"rows cross in pinned buffers: the tables' memory cannot be pinned ({error})"
    return pinned, "rows are read and written in place in pinned host memory"


def _wanted(hosts: Sequence[HostTier], tier: TierConfig, device: torch.device, fits: bool) -> tuple[str, str]:
    in_memory = tier.host == "memory"
    if tier.transfer == "direct" and not in_memory:
        raise ConfigError(
            f"tier.transfer=direct: expected tier.host=memory, got {tier.host}. Set tier.transfer to auto or staged"
        )
    if tier.transfer != "auto":
        return tier.transfer, ""
    size = sum(sum(host.num_bytes) for host in hosts)
    if not in_memory or device.type != "cuda":
        return "staged", ""
    if fits:
        return "staged", ": every row has a slot, so each crosses at most once"
    if size > MOST_PINNED * available_bytes():
        return "staged", f": pinning {size / 2**30:.1f} GiB would take more than half of the free memory"
    return "direct", ""


def least_searched(
    tier: TierConfig, device: torch.device, hindrance: str, *, pools_on_host: bool = False
) -> tuple[float, float] | None:
    """Return the fewest lookups, in a batch and in a bag on average, for which the device searches.

    None: lookups stay on the host.

    Args:
        tier: settings.
        device: of the tier.
        hindrance: the reason why the host needs lookups; empty: it does not.
        pools_on_host: it needs all of them.

    Raises:
        ConfigError: if the device is set to search and cannot.
    """
    if device.type == "cpu" and tier.device != "cpu-torch":
        hindrance, pools_on_host = f"tier.device={tier.device} is main memory here", True
    if tier.lookups == "device" and hindrance:
        raise ConfigError(
            f"tier.lookups=device: expected a run in which the host needs only distinct rows, got one in which "
            f"{hindrance}. Set tier.lookups to auto or host"
        )
    if pools_on_host:
        return None
    if tier.lookups == "device":
        return 1, 0
    searches = not hindrance and tier.lookups == "auto" and device.type == "cuda"
    return (MANY_LOOKUPS, LONG_BAGS) if searches else (inf, 0)


def _close(pair: PinnedPair) -> None:
    for pinned in pair:
        pinned.close()


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated on a GPU; None for ordinary memory.

    The tiers are made before the model, so the size of model, activations and gradients is not known yet: a share of
    the free memory is reserved for them (`sizing.reserve_bytes`).
    """
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    cached_by_torch: int = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + cached_by_torch
