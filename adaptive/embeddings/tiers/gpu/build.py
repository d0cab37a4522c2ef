"""Makes the slots of every group on a torch device, and chooses which way their rows take (`gpu.transfer`).

`tier.transfer = "auto"` is direct on a GPU if the host tier lies in memory and pinning all of it takes at most half of
the memory that is free, and staged otherwise. If the system does not let so much memory be pinned, rows are staged too,
and where every row has a slot of its own: rows come once and never leave, and pinning takes seconds and all memory.

`tier.lookups = "auto"` has a GPU find what batches look up (`gpu.lookups`) where only distinct rows are needed here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from adaptive.config import TierConfig
from adaptive.embeddings.planning.sizing import Sizes, shrunk
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

WORKS: Final = "the GPU path works here"
_ROWS, _WIDTH = 1000, 32


def launched(device: torch.device) -> str:
    """Copy rows of pinned host memory to the device, with the kernel that training uses; what came out."""
    host = whole_pages(_ROWS, _WIDTH)
    host[:] = np.random.default_rng(0).standard_normal(host.shape, np.float32)
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)  # where Triton launches
        pinned = Pinned(host, device)
        try:
            rows = torch.arange(_ROWS - 1, -1, -2, device=device)
            slots = torch.arange(len(rows), device=device)
            there = torch.zeros((len(rows), _WIDTH), device=device)
            none = torch.empty((_ROWS, 0), device=device)
            row_kernels(device).fetch(there, none, slots, pinned.tensor, none, rows)
            found, expected = there.cpu().numpy(), host[rows.cpu().numpy()]
        finally:
            pinned.close()
    except Exception as error:  # compilers, drivers and torch raise anything
        return f"failed: {type(error).__name__}: {error}"
    return WORKS if np.array_equal(found.view(np.int32), expected.view(np.int32)) else "failed: rows arrived changed"


MOST_PINNED = 0.5  # share of the free memory


def build_devices(
    hosts: Sequence[HostTier],
    sizes: Sizes,
    tier: TierConfig,
    optimizer: RowOptimizer,
    policy: Policy,
    mover: Mover,
    *,
    finds: bool = False,
) -> tuple[list[TorchDevice], Sizes]:
    """A device tier for each host tier, with fewer slots than wanted if memory runs out, and the sizes they have.

    `finds`: the device itself finds what batches look up, where `tier.lookups` says so.

    Raises:
        ConfigError: if rows cannot cross as `tier.transfer` says.
        DeviceMemoryError: if the device's memory does not hold what the look-ahead must.
    """
    groups = [host.group for host in hosts]
    fits = all(slots >= group.num_rows for slots, group in zip(sizes.slots, groups, strict=True))
    choice = choose_transfer(hosts, tier, mover.device, lands=policy.misses == "host", fits=fits)
    while True:
        try:
            devices = []
            for host, num_slots in zip(hosts, sizes.slots, strict=True):
                kernels = row_kernels(mover.device)
                if mover.device.type == "cuda":
                    launch_once(kernels, mover.device, host.group.embedding_dim, optimizer)
                transfer = choice.transfer(host, mover, kernels, optimizer)
                searcher = _searcher(host, tier, mover) if finds else None
                work = mover, kernels, transfer, searcher
                devices.append(TorchDevice(host, num_slots, optimizer, *work, poison=tier.poison))
            return devices, replace(sizes, text=f"{sizes.text}; {choice.text}")
        except torch.OutOfMemoryError:
            devices.clear()
        sizes = shrunk(sizes, groups, tier, optimizer, policy)


def launch_once(kernels: RowKernels, device: torch.device, width: int, optimizer: RowOptimizer) -> None:
    """Launch each kernel on one row, as training usually does.

    Triton compiles a kernel at its first launch, which two threads must not make at once. Rows that wait or drift are
    the training thread's alone.
    """
    slot, segments, vectors = (
        torch.arange(count, dtype=kind, device=device)
        for count, kind in ((1, torch.int64), (2, torch.int64), (1, torch.int32))
    )
    weights, gradients = torch.zeros((2, 1, width), device=device)
    state, none = torch.zeros((1, optimizer.state_width(width)), device=device), torch.empty(0, device=device)
    settings = [float(value) for value in optimizer.settings()]
    corrections, norms = torch.from_numpy(optimizer.corrections()).to(device), torch.empty(1, device=device)
    kernels.initial_rows(weights, state, slot, slot, segments, slot, norms, 0.0)
    for move in (kernels.fetch, kernels.write_back):
        move(weights, state, slot, gradients, state.clone(), slot)
    kernels.pool(weights, None, slot, vectors, vectors[:0], segments[:0], none, gradients, 1)
    kernels.pool(weights, None, slot, vectors, vectors, segments, none, gradients)
    if optimizer.kept != 1:
        kernels.decay(weights, slot, optimizer.kept)
    rule = optimizer.kind, settings, corrections, norms
    kernels.update(weights, state, slot, segments, vectors, none, gradients, *rule, hot=vectors[:0])


@dataclass(frozen=True)
class TransferChoice:
    """What was chosen for all host tiers: their memory as the device sees it, if rows are read and written in place."""

    pinned: dict[int, tuple[Pinned, Pinned]]  # by id of the host tier: weights, state; empty: staged
    lands: bool  # rows on the host are used in place
    text: str  # for the user

    def transfer(self, host: HostTier, mover: Mover, kernels: RowKernels, optimizer: RowOptimizer) -> Transfer:
        """The transfer of one host tier's rows."""
        if id(host) not in self.pinned:
            return StagedTransfer(host, mover, kernels, optimizer)
        pair = self.pinned[id(host)]
        rows = RowArrays(pair[0].tensor, pair[1].tensor)
        return DirectTransfer(host, mover, kernels, optimizer, rows, lands=self.lands, close=lambda: _close(pair))


def choose_transfer(
    hosts: Sequence[HostTier], tier: TierConfig, device: torch.device, *, lands: bool, fits: bool = False
) -> TransferChoice:
    """Choose between direct and staged, and pin the host tiers for direct. `fits`: every row has a slot of its own.

    Raises:
        ConfigError: if direct is asked for and cannot be.
    """
    wanted, reason = _wanted(hosts, tier, device, fits)
    if wanted == "staged":
        return TransferChoice({}, lands, f"rows cross in pinned buffers{reason}")
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
        return TransferChoice({}, lands, f"rows cross in pinned buffers: the tables' memory cannot be pinned ({error})")
    return TransferChoice(pinned, lands, "rows are read and written in place in pinned host memory")


def _wanted(hosts: Sequence[HostTier], tier: TierConfig, device: torch.device, fits: bool) -> tuple[str, str]:
    in_memory = tier.host == "memory"
    if tier.transfer == "direct" and not in_memory:
        raise ConfigError(f"tier.transfer=direct needs tier.host=memory, found {tier.host}; use auto or staged")
    if tier.transfer != "auto":
        return tier.transfer, ""
    size = sum(sum(host.num_bytes) for host in hosts)
    if not in_memory or device.type != "cuda":
        return "staged", ""
    if fits:
        return "staged", ": every row has a slot, so each crosses once at most"
    if size > MOST_PINNED * available_bytes():
        return "staged", f": pinning {size / 2**30:.1f} GiB would take more than half of the free memory"
    return "direct", ""


def device_finds(tier: TierConfig, device: torch.device, hindrance: str) -> bool:
    """Whether the device may be asked what batches look up. `hindrance`: why not; empty: nothing stands against it.

    Raises:
        ConfigError: if it is asked for and cannot be.
    """
    if device.type == "cpu" and tier.device != "cpu-torch":
        hindrance = f"the device tier of tier.device={tier.device} is main memory here"
    if tier.lookups == "device" and hindrance:
        raise ConfigError(
            f"tier.lookups=device: only distinct rows come back from the device, but {hindrance}; use auto or host"
        )
    return not hindrance and (tier.lookups == "device" or (tier.lookups == "auto" and device.type == "cuda"))


def _searcher(host: HostTier, tier: TierConfig, mover: Mover) -> DeviceSearcher:
    if tier.lookups == "device":
        return DeviceSearcher(host.group, mover, least=1, least_per_bag=0)
    return DeviceSearcher(host.group, mover, least=MANY_LOOKUPS, least_per_bag=LONG_BAGS)


def _close(pair: tuple[Pinned, Pinned]) -> None:
    for pinned in pair:
        pinned.close()


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on a GPU; None where the device tier is ordinary memory.

    The tiers are made before the model, so what model, activations and gradients will take is not known yet: a share
    of what is free is kept for them (`tier.reserve`). Running out later is no disaster: slots are given back.
    """
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    kept_by_torch: int = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + kept_by_torch
