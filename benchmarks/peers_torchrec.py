"""TorchRec's `DistributedModelParallel` on gloo: an `EmbeddingBagCollection` sharded by table, or by row.

Its sharder refuses rows on the CPU; by a plan made by hand they run.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.config import TableConfig
from benchmarks.variants import NotAvailable

VALUE = 0.01  # of all weights at first: a shard of rows does not know which rows it has


class ShardedCollection:
    """Tables of one width, updated by SGD inside backward.

    Args:
        tables: features are called like them.
        by: "table" or "row".

    Raises:
        NotAvailable: if TorchRec is not installed or does not load.
    """

    def __init__(self, tables: Sequence[TableConfig], by: str, rate: float) -> None:
        try:
            import torchrec
            from fbgemm_gpu.split_embedding_configs import EmbOptimType
            from torchrec.distributed import embeddingbag, sharding_plan
            from torchrec.distributed.model_parallel import DistributedModelParallel
            from torchrec.distributed.types import ShardingPlan
        except (ImportError, OSError) as error:
            raise NotAvailable(f"torchrec cannot be imported: {error}") from error

        class Sharder(embeddingbag.EmbeddingBagCollectionSharder):  # type: ignore[misc, name-defined]
            def sharding_types(self, compute_device_type: str) -> list[str]:
                return ["table_wise", "row_wise"]

        size = torch.distributed.get_world_size()
        collection = torchrec.EmbeddingBagCollection(
            tables=[
                torchrec.EmbeddingBagConfig(
                    name=table.name,
                    num_embeddings=table.num_embeddings,
                    embedding_dim=table.embedding_dim,
                    feature_names=[table.name],
                    init_fn=lambda weight: torch.nn.init.constant_(weight, VALUE),
                )
                for table in tables
            ],
            device=torch.device("meta"),
        )
        options = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": rate}
        sharder: Any = Sharder(fused_params=options)
        largest_first = sorted(tables, key=lambda table: -table.num_embeddings)
        places = {table.name: place % size for place, table in enumerate(largest_first)}
        by_table, by_row = sharding_plan.table_wise, sharding_plan.row_wise
        rules = {
            name: by_table(rank=place, compute_kernel="fused") if by == "table" else by_row(compute_kernel="fused")
            for name, place in places.items()
        }
        plan = sharding_plan.construct_module_sharding_plan(
            collection, rules, sharder=sharder, local_size=size, world_size=size, device_type="cpu"
        )
        model = nn.Module()
        model.add_module("bags", collection)
        self._keys, self._make = [table.name for table in tables], torchrec.KeyedJaggedTensor
        wrapped = DistributedModelParallel(
            model, device=torch.device("cpu"), plan=ShardingPlan({"bags": plan}), sharders=[sharder]
        )
        self._collection = wrapped.module.bags
        self.order = list(range(len(tables)))

    def prepare(self, batch: Batch) -> Any:
        ids, offsets = torch.from_numpy(batch.ids), torch.from_numpy(batch.offsets)
        return self._make(keys=self._keys, values=ids, offsets=offsets)

    def pool(self, inputs: Any) -> Tensor:
        """(B, F * D), features in the order `order` of the tables: those of one rank together."""
        pooled = self._collection(inputs).wait()
        self.order = [self._keys.index(key) for key in pooled.keys()]  # noqa: SIM118 (it is no dictionary)
        found: Tensor = pooled.values()
        return found
