"""Lookups that the GPU searches itself: the same numbers as if the host did."""

import pytest
from support.gpu_helpers import Training, assert_same, train_on
from support.helpers import Trained, random_batches
from test_invariance import OPTIMIZERS

from adaptive.config import TableConfig, TierConfig
from adaptive.optim import Adam, RowOptimizer
from adaptive.policies.lru import LRU

pytestmark = pytest.mark.gpu

TABLES = [
    TableConfig(name="a", num_embeddings=3000, embedding_dim=16, features=("x", "y")),
    TableConfig(name="b", num_embeddings=3, embedding_dim=16),
    TableConfig(name="c", num_embeddings=700, embedding_dim=8, pooling="none"),
    TableConfig(name="d", num_embeddings=900, embedding_dim=8),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
def test_placement_never_changes_numbers_of_long_bags(device: str, optimizer: RowOptimizer) -> None:
    """Bags of up to 40 lookups, weighted; some rows come hundreds of times; batch sizes differ."""
    sizes = (40, 3, 64, 1, 64, 20)
    batches = [
        random_batches(TABLES, 1, seed=n, samples=size, max_bag=40, weighted=True)[0] for n, size in enumerate(sizes)
    ]

    def run(lookups: str, share: str, depth: int) -> Trained:
        tier = {"lookups": lookups, "device_rows": share, "when_full": "reduce_lookahead", "poison": True}
        settings = TierConfig.model_validate(tier | {"device": device})
        return train_on(device, TABLES, batches, optimizer, LRU, settings, depth)

    single = run("host", "100%", 0)
    for share, depth in (("100%", 0), ("95%", 1), ("100%", 3)):
        run("device", share, depth).assert_equals(single)


@pytest.mark.parametrize("lookups", ["host", "device"])
def test_repeats_are_equal_wherever_lookups_are_searched(device: str, lookups: str) -> None:
    expected = Training(device, LRU, Adam(), lookups="host").run()
    assert_same(Training(device, LRU, Adam(), lookups=lookups).run(), expected)
