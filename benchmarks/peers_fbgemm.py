"""FBGEMM's table-batched embeddings, and TorchRec's collection above them on the CPU: backward updates rows."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch
from benchmarks.variants import EPS, Embeddings, NotAvailable, Setup

KINDS = {"sgd": "EXACT_SGD", "adagrad": "EXACT_ADAGRAD", "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD"}


class Fbgemm(Embeddings):
    """`SplitTableBatchedEmbeddingBagsCodegen`, in memory of the CPU, without bounds checks.

    Raises:
        NotAvailable: if FBGEMM is not installed, does not load, or does not have the optimizer on the CPU.
    """

    name = "FBGEMM, table-batched"

    def __init__(self, setup: Setup) -> None:
        ops = _import_ops()
        if setup.optimizer not in KINDS:
            raise NotAvailable(f"FBGEMM has no {setup.optimizer} on the CPU")
        place = (ops.EmbeddingLocation.HOST, ops.ComputeDevice.CPU)
        self._shape = (len(setup.tables), setup.dim)
        self._ops = ops.SplitTableBatchedEmbeddingBagsCodegen(
            [(table.num_embeddings, setup.dim, *place) for table in setup.tables],
            optimizer=getattr(ops.OptimType, KINDS[setup.optimizer]),
            learning_rate=setup.rate,
            eps=EPS,
            bounds_check_mode=ops.BoundsCheckMode.NONE,
            device=torch.device("cpu"),
        )

    @torch.no_grad()
    def load(self, weights: Iterable[NDArray[np.float32]]) -> None:
        for part, table in zip(self._ops.split_embedding_weights(), weights, strict=True):
            part.copy_(torch.from_numpy(table))

    def prepare(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(batch.ids), torch.from_numpy(batch.offsets)

    def pool(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        pooled: Tensor = self._ops(*inputs)
        return pooled.view(len(pooled), *self._shape)

    def update(self) -> None:
        pass


class FbgemmOnGpu(Fbgemm):
    """Rows in device memory, or, with a share in per cent, in host memory under FBGEMM's cache.

    The cache takes that share of the rows, evicts the least recently used ones, and fetches the next batch's rows on
    another stream while one is trained. Its optimizer state is always in device memory.
    """

    def __init__(self, setup: Setup, share: int | None, device: torch.device, value: float) -> None:
        ops = _import_ops()
        if setup.optimizer not in KINDS or device.type != "cuda":
            raise NotAvailable(f"FBGEMM's cache needs a GPU and an optimizer among {', '.join(KINDS)}")
        place = ops.EmbeddingLocation.DEVICE if share is None else ops.EmbeddingLocation.MANAGED_CACHING
        cache = {} if share is None else {
            "cache_algorithm": ops.CacheAlgorithm.LRU, "cache_load_factor": share / 100, "prefetch_pipeline": True,
            "uvm_host_mapped": True,  # pinned: managed memory can hang a card
        }  # fmt: skip
        self._device, self._shape = device, (len(setup.tables), setup.dim)
        self._stream = torch.cuda.Stream() if share is not None else None  # type: ignore[no-untyped-call]
        self._latest: dict[str, Any] = {}  # the batch prepared last, with its successor as `next`
        self._ops = ops.SplitTableBatchedEmbeddingBagsCodegen(
            [(table.num_embeddings, setup.dim, place, ops.ComputeDevice.CUDA) for table in setup.tables],
            optimizer=getattr(ops.OptimType, KINDS[setup.optimizer]),
            learning_rate=setup.rate,
            eps=EPS,
            stochastic_rounding=False,
            bounds_check_mode=ops.BoundsCheckMode.NONE,
            device=torch.device("cuda", torch.cuda.current_device()),
            **cache,
        )
        for part in self._ops.split_embedding_weights():
            part.fill_(value)

    def prepare(self, batch: Batch) -> Any:
        one = {"inputs": [tensor.to(self._device) for tensor in super().prepare(batch)]}
        if self._latest.get("is_trained", True):
            self._prefetch(one)  # of a new turn, before the clock starts
        self._latest["next"] = one
        self._latest = one
        return one

    def _prefetch(self, one: dict[str, Any]) -> None:
        if self._stream is not None:
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                self._ops.prefetch(*one["inputs"], forward_stream=current)

    def pool(self, inputs: Any) -> Tensor:
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        pooled = super().pool(inputs["inputs"])
        inputs["is_trained"] = True
        if (following := inputs.get("next")) is not None:
            self._prefetch(following)
        return pooled


class TorchRec(Embeddings):
    """`FusedEmbeddingBagCollection`.

    Raises:
        NotAvailable: if TorchRec is not installed, does not load, or does not have the optimizer.
    """

    name = "TorchRec, fused collection"

    def __init__(self, setup: Setup) -> None:
        _import_ops()
        try:
            import torchrec
            from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
        except (ImportError, OSError) as error:
            raise NotAvailable(f"torchrec cannot be imported: {error}") from error
        kinds: dict[str, Any] = {
            "sgd": torch.optim.SGD,
            "adagrad": torch.optim.Adagrad,
            "rowwise_adagrad": torchrec.optim.RowWiseAdagrad,
        }
        if setup.optimizer not in kinds:
            raise NotAvailable(f"TorchRec's fused collection has no {setup.optimizer} on the CPU")
        options: dict[str, Any] = {"lr": setup.rate} | ({} if setup.optimizer == "sgd" else {"eps": EPS})
        self._shape = (len(setup.tables), setup.dim)
        self._keys = [table.name for table in setup.tables]
        self._sparse = torchrec.KeyedJaggedTensor
        self._collection = FusedEmbeddingBagCollection(
            tables=[
                torchrec.EmbeddingBagConfig(
                    name=table.name, num_embeddings=table.num_embeddings, embedding_dim=setup.dim,
                    feature_names=[table.name],
                )
                for table in setup.tables
            ],
            optimizer_type=kinds[setup.optimizer],
            optimizer_kwargs=options,
            device=torch.device("cpu"),
        )  # fmt: skip

    @torch.no_grad()
    def load(self, weights: Iterable[NDArray[np.float32]]) -> None:
        for key, table in zip(self._keys, weights, strict=True):
            self._collection.embedding_bags[key].weight.copy_(torch.from_numpy(table))

    def prepare(self, batch: Batch) -> Any:
        ids, offsets = torch.from_numpy(batch.ids), torch.from_numpy(batch.offsets)
        return self._sparse(keys=self._keys, values=ids, offsets=offsets)

    def pool(self, inputs: Any) -> Tensor:
        pooled: Tensor = self._collection(inputs).values()
        return pooled.view(len(pooled), *self._shape)

    def update(self) -> None:
        pass


def _import_ops() -> Any:
    """FBGEMM's names, in one place.

    Raises:
        NotAvailable: if it is not installed or does not load with this torch.
    """
    try:
        from fbgemm_gpu import split_table_batched_embeddings_ops_common as common
        from fbgemm_gpu import split_table_batched_embeddings_ops_training as training
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
    except (ImportError, OSError) as error:
        raise NotAvailable(f"fbgemm_gpu cannot be imported: {error}") from error

    class Names:
        EmbeddingLocation = common.EmbeddingLocation
        BoundsCheckMode = common.BoundsCheckMode
        CacheAlgorithm = common.CacheAlgorithm
        ComputeDevice = training.ComputeDevice
        SplitTableBatchedEmbeddingBagsCodegen = training.SplitTableBatchedEmbeddingBagsCodegen
        OptimType = EmbOptimType

    return Names
