"""Look-ups that the GPU finds itself: the numbers are those of look-ups found by the host; no step waits for them."""

import pytest
from support.gpu_helpers import Training, assert_same, train_on, waiting_is_an_error
from support.helpers import Trained, random_batches
from test_invariance import OPTIMIZERS

from adaptive.config import TableConfig, TierConfig
from adaptive.optim import Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policies.lru import LRU

pytestmark = pytest.mark.gpu

WARM_UP = 4  # steps in which kernels are compiled, buffers made
TABLES = [
    TableConfig(name="a", num_embeddings=3000, embedding_dim=16, features=("x", "y")),
    TableConfig(name="b", num_embeddings=3, embedding_dim=16),
    TableConfig(name="c", num_embeddings=700, embedding_dim=8, pooling="none"),
    TableConfig(name="d", num_embeddings=900, embedding_dim=8),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: type(one).__name__)
def test_placement_never_changes_the_numbers_of_long_bags(device: str, optimizer: RowOptimizer) -> None:
    """Bags of up to 40 look-ups, weighted; some rows come hundreds of times; from batch to batch sizes differ."""
    sizes = (40, 3, 64, 1, 64, 20)
    batches = [
        random_batches(TABLES, 1, seed=n, samples=size, max_bag=40, weighted=True)[0] for n, size in enumerate(sizes)
    ]

    def run(lookups: str, share: str, depth: int) -> Trained:
        tier = {
            "device": device,
            "lookups": lookups,
            "device_rows": share,
            "when_full": "reduce_lookahead",
            "poison": True,
        }
        return train_on(device, TABLES, batches, optimizer, LRU, TierConfig.model_validate(tier), depth)

    single = run("host", "100%", 0)
    for share, depth in (("100%", 0), ("95%", 1), ("100%", 3)):
        run("device", share, depth).assert_equals(single)


@pytest.mark.parametrize("lookups", ["host", "device"])
def test_repeats_are_equal_whoever_finds_look_ups(device: str, lookups: str) -> None:
    expected = Training(device, LRU, Adam(), lookups="host").run()
    assert_same(Training(device, LRU, Adam(), lookups=lookups).run(), expected)


def test_no_host_waits_in_a_step(device: str) -> None:
    """Not in the look-ahead thread either, but for the events that it waits for by intention."""
    training = Training(device, LRU, RowwiseAdagrad(), lookups="device")
    running = training.open()
    with running.embeddings:
        steps = running.train(training.batches(), training.depth)
        for _ in range(WARM_UP):
            next(steps)
        with waiting_is_an_error(device):
            done = sum(1 for _ in steps)
    assert done == training.num_batches - WARM_UP
