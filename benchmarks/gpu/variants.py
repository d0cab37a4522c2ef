"""Variants that are timed on the GPU: our tiers, and their alternatives.

Letters: B samples, F features, D width.
"""

import gc
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TierConfig
from adaptive.embeddings.engine.statistics import Statistics, StatisticsCollector
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.plugins import load_policy_class
from adaptive.system import available_bytes
from adaptive.training import dense_graph
from benchmarks.gpu.accelerator import Accelerator
from benchmarks.gpu.torchrec_pipeline import TorchRecPipeline
from benchmarks.gpu.workloads import RECORD_BYTES, TORCH_COPIES, Workload, in_threads
from benchmarks.peers_fbgemm import FbgemmOnGpu
from benchmarks.peers_torch import EmbeddingBags, Spans, torch_optimizer
from benchmarks.variants import Block, Embeddings, NotAvailable, Ours, Setup, joined, row_optimizer

Transfer = Literal["auto", "direct", "staged"]
Finder = Literal["host", "device"]  # of lookups

# As module:Class, so that policies are found where the package is not installed.
POLICIES = {
    "lru": "adaptive.policies.lru:LRU",
    "lfu": "adaptive.policies.lfu:LFU",
    "scratchpipe": "adaptive.policies.scratchpipe:ScratchPipe",
    "slipstream": "adaptive.policies.slipstream:Slipstream",
    "hybrid": "adaptive.policies.hybrid:Hybrid",
    "device": "adaptive.policies.device:Device",
}
BLOCK_ROWS = 1 << 16
STORED = 0.01  # every value of every row before training
SPARE = 1.1  # memory that must be free, over what is counted


@dataclass(frozen=True)
class Spec:
    """A variant. What is 0 stays as the settings have it."""

    kind: str  # a policy of POLICIES, or one of TITLES
    share: int = 100  # per cent of the rows on the device, for policies that take any
    transfer: Transfer = "auto"  # see `TierConfig`
    lookups: Finder = "host"
    trainer: int = 0  # 1: whole steps by `Trainer.train`, as the command trains
    plan_threads: int = 0
    tracker_threads: int = 0  # that divide the books of a batch
    programs: int = 0  # of a copy between the tiers
    graph: int = 0  # 1: the model's passes are CUDA graphs, in an own loop
    eager: int = 0  # 1: `Trainer` launches the dense part's operations one by one

    @staticmethod
    def of(text: str) -> "Spec":
        """Return the variant named as in `lru:10:plan_threads=6`: kind, per cent on the device, other fields.

        Raises:
            SystemExit: for anything else.
        """
        kind, *rest = text.split(":")
        share = int(rest.pop(0)) if rest and rest[0].isdigit() else DEVICE.share
        known: dict[str, Any] = {field.name: field.default for field in fields(Spec)[2:]}
        changes: dict[str, Any] = {}
        for one in rest:
            name, _, value = one.partition("=")
            if name not in known:
                raise SystemExit(f"variant {text}: expected NAME=VALUE with a name among {', '.join(known)}, got {one}")
            changes[name] = int(value) if isinstance(known[name], int) else value
        if kind not in POLICIES and kind not in TITLES:
            raise SystemExit(f"variant {text}: expected one of {', '.join([*POLICIES, *TITLES])}, got {kind}")
        return Spec(kind, share, **changes)

    @property
    def changes(self) -> dict[str, Any]:
        """Fields besides kind and share that are not their default."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)[2:]}
        return {name: value for name, (value, default) in values.items() if value != default}

    @property
    def is_ours(self) -> bool:
        return self.kind in POLICIES

    @property
    def is_staged(self) -> bool:
        return self.is_ours and self.kind not in ("hybrid", "device")

    @property
    def title(self) -> str:
        parts = [TITLES.get(self.kind, self.kind)]
        parts += [f"{self.share}%"] if self.is_staged or self.kind in CACHED else []
        return ", ".join(parts + [f"{name}={value}" for name, value in self.changes.items()])

    def memory_bytes(self, workload: Workload) -> tuple[int, int]:
        """(host, device) that it takes, about."""
        rows = workload.num_rows
        if self.kind in CACHED:
            return rows * workload.row_bytes, rows * workload.row_bytes * self.share // 100
        if not self.is_ours:
            everything = rows * 4 * workload.dim * TORCH_COPIES.get(workload.optimizer, 1)
            return (everything, 0) if self.kind == "torch_host" else (0, everything)
        share = {"hybrid": 0, "device": 100}.get(self.kind, self.share)
        return rows * (workload.row_bytes + RECORD_BYTES), rows * workload.row_bytes * share // 100


TITLES = {
    "torch": "torch on the GPU, one EmbeddingBag a table",
    "torch_host": "torch sparse on the CPU, dense part on the GPU",
    "fbgemm": "FBGEMM on the GPU",
    "fbgemm_cached": "FBGEMM, rows on the host under its cache, next batch prefetched",
    "torchrec": TorchRecPipeline.name,
}
CACHED = ("fbgemm_cached", "torchrec")
DEVICE = Spec("device")  # the reference: all rows in device memory


def missing_memory(workload: Workload, spec: Spec, accelerator: Accelerator) -> str:
    """Return the memory that is missing, as text; empty if the variant fits."""
    host, device = (size * SPARE for size in spec.memory_bytes(workload))
    if not accelerator.is_gpu:
        host, device = host + device, 0.0
    for name, needed, free in (("host", host, available_bytes()), ("device", device, accelerator.free_bytes())):
        if needed > free:
            return f"expected {needed / 1e9:.1f} GB of free {name} memory, got {free / 1e9:.1f} GB"
    return ""


def open_variant(spec: Spec, workload: Workload, accelerator: Accelerator) -> Embeddings:
    """Return the variant, with every value of every row being `STORED`.

    Raises:
        NotAvailable: if it does not fit in memory, or has no such optimizer.
    """
    gc.collect()  # earlier variants may have reference cycles
    short = missing_memory(workload, spec, accelerator)
    if short:
        raise NotAvailable(short)
    setup = workload.setup()
    if spec.is_ours:
        return Tiers(setup, spec, accelerator)
    if spec.kind == "torchrec":
        return TorchRecPipeline(setup, spec.share, accelerator.device, STORED)
    if spec.kind.startswith("fbgemm"):
        share = spec.share if spec.kind == "fbgemm_cached" else None
        return FbgemmOnGpu(setup, share, accelerator.device, STORED)
    return (BagsOnDevice if spec.kind == "torch" else BagsOnHost)(setup, accelerator.device)


class Tiers(Ours):
    """`TieredEmbeddingBag` on the accelerator, with every row stored on the host."""

    def __init__(self, setup: Setup, spec: Spec, accelerator: Accelerator) -> None:
        policy = load_policy_class(POLICIES[spec.kind])
        wanted = policy.device_rows or f"{spec.share}%"
        ways: dict[str, Any] = {"transfer": spec.transfer, "lookups": spec.lookups, "device": accelerator.tier}
        ways |= {"plan_threads": spec.plan_threads} if spec.plan_threads else {}
        tier = TierConfig.model_validate({"device_rows": wanted, "when_full": "reduce_lookahead", **ways})
        skip = SkipConfig(rule="adaptive.policies.rules.defer:Defer") if spec.kind == "slipstream" else None
        optimizer = row_optimizer(setup.optimizer)
        self.title, self.by_trainer = spec.title, bool(spec.trainer)
        self.bag = TieredEmbeddingBag(setup.tables, tier, policy=policy, optimizer=optimizer, skip=skip)
        self._depth = 0
        self._running = None
        self._taken: list[Statistics] = []  # by a recorder
        if spec.trainer:
            self._keep_statistics()
        if spec.tracker_threads:
            for tiered in self.bag.runtime.pipeline.tiered_groups:
                tiered.planner.tracker.threads = spec.tracker_threads
        self._restore = ExitStack()  # of what is set until `close`: the reference makes no copies and has no `Trainer`
        if spec.programs and accelerator.is_gpu:
            from adaptive.kernels.rows.gpu import move

            self._set(move, "COPY_PROGRAMS", spec.programs)
        if spec.eager:
            self._set(dense_graph, "graphs_of", lambda device: None)
        self._store_every_row()

    def _set(self, module: ModuleType, name: str, value: object) -> None:
        self._restore.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, value)

    def _keep_statistics(self) -> None:
        """Keep what a recorder takes, for `statistics`."""
        collector, take = self.bag.statistics, StatisticsCollector.take

        def kept() -> Statistics:
            self._taken.append(take(collector))
            return self._taken[-1]

        collector.take = kept  # type: ignore[method-assign]

    def statistics(self) -> Statistics:
        last, taken = self.bag.statistics.take(), self._taken
        if not taken:
            return last
        self._taken = []
        return replace(
            last,
            batches=sum(one.batches for one in taken),
            counts=np.sum([one.counts for one in taken], axis=0),
            times_ms={name: sum(one.times_ms.get(name, 0.0) for one in taken) for name in last.times_ms},
        )

    def close(self) -> None:
        self._restore.close()
        super().close()

    def _store_every_row(self) -> None:
        """Do what loading a checkpoint of all rows does, without arrays of their size."""
        (tiered,) = self.bag.runtime.pipeline.tiered_groups
        weights = np.full((BLOCK_ROWS, tiered.host.weights.shape[1]), STORED, np.float32)
        state = np.zeros((BLOCK_ROWS, tiered.host.state.shape[1]), np.float32)

        def store(first: int) -> None:
            rows = np.arange(first, min(first + BLOCK_ROWS, tiered.group.num_rows))
            tiered.host.write(rows, weights[: len(rows)], state[: len(rows)])

        in_threads(store, range(0, tiered.group.num_rows, BLOCK_ROWS))
        tiered.planner.tracker.store_on_host(np.arange(tiered.group.num_rows))

    def look_ahead(self, depth: int) -> None:
        """Set the depth from the next `stream` on."""
        self._depth = depth


class BagsOnDevice(EmbeddingBags):
    """`nn.EmbeddingBag(sparse=True)` for each table."""

    name = TITLES["torch"]

    def __init__(self, setup: Setup, device: torch.device) -> None:
        self._device = device
        self._tables = nn.ModuleList(
            nn.EmbeddingBag(rows, setup.dim, mode="sum", sparse=True, _weight=_stored(rows, setup.dim, device))
            for rows in (table.num_embeddings for table in setup.tables)
        )
        self._optimizer = torch_optimizer(self._tables.parameters(), setup)

    def prepare(self, batch: Batch) -> Spans:
        return [(ids.to(self._device), starts.to(self._device)) for ids, starts in super().prepare(batch)]


class BagsOnHost(BagsOnDevice):
    """The same on the CPU; pooled vectors cross the link, and so do their gradients."""

    name = TITLES["torch_host"]

    def __init__(self, setup: Setup, device: torch.device) -> None:
        super().__init__(setup, torch.device("cpu"))
        self._target = device

    def pool(self, inputs: Spans) -> Block:
        return joined(super().pool(inputs)).to(self._target)


def _stored(rows: int, dim: int, device: torch.device) -> Tensor:
    return torch.full((rows, dim), STORED, device=device)
