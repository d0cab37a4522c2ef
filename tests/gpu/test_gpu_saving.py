"""Rows that were trained on a GPU go on anywhere."""

import pytest
from support.gpu_helpers import HostTrainee
from support.helpers import random_batches, snapshot, train_more

from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import Adam
from adaptive.policies.lru import LRU

pytestmark = pytest.mark.gpu


def test_saved_there_and_loaded_here(device: str) -> None:
    tables = [TableConfig(name="t", num_embeddings=60, embedding_dim=8)]
    batches = random_batches(tables, 6)

    def opened(where: str) -> TieredEmbeddingBag:
        tier = TierConfig(device_rows="70%", device=where, poison=True)  # type: ignore[arg-type]
        return TieredEmbeddingBag(tables, tier, policy=LRU, optimizer=Adam())

    there, here, trainee = opened(device), opened("cpu"), HostTrainee(tables)
    train_more(there, trainee, batches, 2)
    here.rows.load_state_arrays(there.rows.state_arrays())
    snapshot(here, trainee).assert_equals(snapshot(there, trainee))
    there.rows.flush()
    snapshot(there, trainee).assert_equals(snapshot(here, trainee))
    there.rows.load_state_arrays(here.rows.state_arrays())
    snapshot(there, trainee).assert_equals(snapshot(here, trainee))
