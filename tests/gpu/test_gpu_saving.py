"""Rows that were trained on a GPU can be loaded anywhere."""

import pytest
from support.gpu_helpers import HostTrainee
from support.helpers import random_batches, snapshot, train_more

from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import Adam
from adaptive.policies.lru import LRU

pytestmark = pytest.mark.gpu


def test_saved_on_the_gpu_and_loaded_on_the_cpu(device: str) -> None:
    tables = [TableConfig(name="t", num_embeddings=60, embedding_dim=8)]
    batches = random_batches(tables, 6)

    def opened(where: str) -> TieredEmbeddingBag:
        tier = TierConfig(device_rows="70%", device=where, poison=True)  # type: ignore[arg-type]
        return TieredEmbeddingBag(tables, tier, policy=LRU, optimizer=Adam())

    on_gpu, on_cpu, trainee = opened(device), opened("cpu"), HostTrainee(tables)
    train_more(on_gpu, trainee, batches, 2)
    on_cpu.rows.load_state_arrays(on_gpu.rows.state_arrays())
    snapshot(on_cpu, trainee).assert_equals(snapshot(on_gpu, trainee))
    on_gpu.rows.flush()
    snapshot(on_gpu, trainee).assert_equals(snapshot(on_cpu, trainee))
    on_gpu.rows.load_state_arrays(on_cpu.rows.state_arrays())
    snapshot(on_gpu, trainee).assert_equals(snapshot(on_cpu, trainee))
