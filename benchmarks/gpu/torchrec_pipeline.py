"""TorchRec's prefetching pipeline: rows on the host under FBGEMM's cache, trained by a loop of its own.

One rank. Its state is always in device memory. On the CPU, for a rehearsal, its fused tables without a cache take part.
"""

import importlib
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, nn
from torch.nn import functional

from adaptive.batch import Batch
from benchmarks.peers_fbgemm import KINDS
from benchmarks.variants import EPS, Block, Embeddings, NotAvailable, Setup

NAMES = {
    "fbgemm_gpu.split_embedding_configs": ("EmbOptimType",),
    "fbgemm_gpu.split_table_batched_embeddings_ops_common": ("CacheAlgorithm",),
    "torchrec": ("EmbeddingBagCollection", "EmbeddingBagConfig", "KeyedJaggedTensor"),
    "torchrec.distributed.embeddingbag": ("EmbeddingBagCollectionSharder",),
    "torchrec.distributed.sharding_plan": ("construct_module_sharding_plan", "table_wise"),
    "torchrec.distributed.train_pipeline": ("PrefetchTrainPipelineSparseDist", "TrainPipelineSparseDist"),
    "torchrec.distributed.types": ("CacheParams", "ShardingEnv"),
    "torchrec.streamable": ("Pipelineable",),
}


class TorchRecPipeline(Embeddings):
    """`PrefetchTrainPipelineSparseDist` over a sharded collection in `FUSED_UVM_CACHING`.

    Raises:
        NotAvailable: if TorchRec or FBGEMM is not installed or does not load, or has no such optimizer.
    """

    name = "TorchRec, rows on the host under FBGEMM's cache, its prefetching pipeline"

    def __init__(self, setup: Setup, share: int, device: torch.device, value: float) -> None:
        """share: per cent of the rows in the cache. value: of every value of every row."""
        names = _import()
        if setup.optimizer not in KINDS:
            raise NotAvailable(f"TorchRec's fused tables have no {setup.optimizer}")
        self._device, self._names, self._shape = device, names, (len(setup.tables), setup.dim)
        self._keys = [table.name for table in setup.tables]
        names.Pipelineable.register(Inputs)
        self._folder = tempfile.TemporaryDirectory()
        distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{self._folder.name}/group",
            rank=0,
            world_size=1,
        )
        try:
            self._collection = self._shard(setup, share)
        except BaseException:
            self.close()
            raise
        with torch.no_grad():
            for weights in self._weights().values():
                weights.fill_(value)

    def _shard(self, setup: Setup, share: int) -> nn.Module:
        names, on_gpu = self._names, self._device.type == "cuda"
        collection = names.EmbeddingBagCollection(
            tables=[
                names.EmbeddingBagConfig(
                    name=table.name,
                    num_embeddings=table.num_embeddings,
                    embedding_dim=setup.dim,
                    feature_names=[table.name],
                )
                for table in setup.tables
            ],
            device=torch.device("meta"),
        )
        # Pinned, since managed memory can hang a card.
        options: dict[str, Any] = {"uvm_host_mapped": True} if on_gpu else {}
        options |= {"optimizer": getattr(names.EmbOptimType, KINDS[setup.optimizer]), "learning_rate": setup.rate}
        sharder = names.EmbeddingBagCollectionSharder(fused_params=options | {"eps": EPS})
        kernel = "fused_uvm_caching" if on_gpu else "fused"
        plan = names.construct_module_sharding_plan(
            collection,
            dict.fromkeys(self._keys, names.table_wise(rank=0, compute_kernel=kernel)),
            sharder=sharder,
            local_size=1,
            world_size=1,
            device_type=self._device.type,
        )
        for sharding in plan.values() if on_gpu else ():
            algorithm = names.CacheAlgorithm.LRU
            sharding.cache_params = names.CacheParams(algorithm, load_factor=share / 100, prefetch_pipeline=True)
            sharding.stochastic_rounding = False
        group = names.ShardingEnv.from_process_group(distributed.group.WORLD)
        sharded: nn.Module = sharder.shard(collection, plan, group, self._device)
        return sharded

    def prepare(self, batch: Batch) -> Any:
        """Return the batch in pinned memory; the pipeline sends it two steps ahead."""
        ids, offsets = torch.from_numpy(batch.ids), torch.from_numpy(batch.offsets)
        sparse = self._names.KeyedJaggedTensor(keys=self._keys, values=ids, offsets=offsets)
        inputs = Inputs(torch.from_numpy(batch.dense), torch.from_numpy(batch.labels), sparse)
        return inputs.pin_memory() if self._device.type == "cuda" else inputs

    def pipeline(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        """Return what trains a batch at each call of `progress`, with this dense part."""
        whole = WholeModel(self._collection, model, self._shape)
        kind = "Prefetch" if self._device.type == "cuda" else ""
        return getattr(self._names, f"{kind}TrainPipelineSparseDist")(whole, optimizer, self._device)

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        weights = self._weights()
        columns = [weights[key].cpu()[torch.from_numpy(ids[:, i])] for i, key in enumerate(self._keys)]
        return torch.stack(columns, 1).numpy()

    def _weights(self) -> dict[str, Tensor]:
        """Return table -> rows, after what is in the cache has been written back."""
        weights: dict[str, Tensor] = {}
        lookups: Any = self._collection
        for lookup in lookups._lookups:
            lookup.flush()
            for tables in lookup._emb_modules:
                names = [table.name for table in tables.config.embedding_tables]
                weights |= zip(names, tables.split_embedding_weights(), strict=True)
        return weights

    def close(self) -> None:
        distributed.destroy_process_group()
        self._folder.cleanup()

    def load(self, weights: Iterable[NDArray[np.float32]]) -> None:
        raise AssertionError("every row has the same value")

    def pool(self, inputs: Any) -> Block:
        raise AssertionError("its pipeline pools")

    def update(self) -> None:
        raise AssertionError("its pipeline updates")


@dataclass
class Inputs:
    """A batch, with the methods that TorchRec's pipelines call."""

    dense: Tensor
    labels: Tensor
    sparse: Any

    def _parts(self) -> Iterator[Any]:
        return iter((self.dense, self.labels, self.sparse))

    def to(self, device: torch.device, non_blocking: bool = False) -> "Inputs":
        return Inputs(*(part.to(device, non_blocking=non_blocking) for part in self._parts()))

    def pin_memory(self) -> "Inputs":
        return Inputs(*(part.pin_memory() for part in self._parts()))

    def record_stream(self, stream: Any) -> None:
        for part in self._parts():
            part.record_stream(stream)


class WholeModel(nn.Module):
    """Collection, dense part and loss: what TorchRec traces."""

    def __init__(self, collection: nn.Module, model: nn.Module, shape: tuple[int, int]) -> None:
        super().__init__()
        self.collection, self.model, self.shape = collection, model, shape

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        logits = self.model(inputs.dense, self.collection(inputs.sparse).values().view(-1, *self.shape))
        return functional.binary_cross_entropy_with_logits(logits, inputs.labels), logits


def _import() -> SimpleNamespace:
    """Return TorchRec's names, in one place.

    Raises:
        NotAvailable: if it is not installed or does not load with this torch.
    """
    try:
        modules = {importlib.import_module(module): names for module, names in NAMES.items()}
    except (ImportError, OSError) as error:
        raise NotAvailable(f"torchrec cannot be imported: {error}") from error
    return SimpleNamespace(**{name: getattr(module, name) for module, names in modules.items() for name in names})
