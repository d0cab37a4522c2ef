"""Placement never changes the numbers on a GPU: tiers, look-ahead, optimizers, widths."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from support.gpu_helpers import EXAMPLES, HostTrainee, train_on
from support.helpers import LFU, Trained, random_batches, train_slowly
from support.key_cases import Rows, drawn_batches, key_table, rows_by_key, train_more_on
from test_invariance import OPTIMIZERS, Case, cases

from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import RowOptimizer
from adaptive.policies.device import Device
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lru import LRU
from adaptive.policy import Policy

pytestmark = pytest.mark.gpu

ONE_TIER = TierConfig(device_rows="100%", poison=True)
# Of an array's norm: another processor may round a root, or a product and a sum, differently.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2**-7}


def assert_near(result: Trained, expected: Trained, optimizer: RowOptimizer, dtype: str = "float32") -> None:
    """Equal up to rounding, and finite."""
    for name, weights in expected.weights.items():
        for array, wanted in ((result.weights[name], weights), (result.state[name], expected.state[name])):
            assert np.linalg.norm(array - wanted) <= TOLERANCE[dtype] * np.linalg.norm(wanted), name
    np.testing.assert_allclose(result.losses, expected.losses, rtol=TOLERANCE[dtype])


def check(device: str, case: Case) -> None:
    def run(policy: type[Policy], tier: TierConfig, depth: int) -> Trained:
        return train_on(device, case.tables, case.batches, case.optimizer, policy, tier, depth)

    single = run(LRU, ONE_TIER, 0)
    run(case.policy, case.tier, case.depth).assert_equals(single)
    assert_near(single, train_slowly(case.tables, case.batches, case.optimizer), case.optimizer, case.tables[0].dtype)


@pytest.mark.smoke
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(case=cases(optimizers=OPTIMIZERS, plan_threads=(1, 2)))
def test_placement_never_changes_the_numbers_on_the_gpu(device: str, case: Case) -> None:
    check(device, case)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
@pytest.mark.parametrize("width", [1, 3, 63, pytest.param(64, marks=pytest.mark.smoke), 128, 257, 1024, 1040])
def test_any_width(device: str, width: int, optimizer: RowOptimizer) -> None:
    tables = [TableConfig(name="t", num_embeddings=50, embedding_dim=width)]
    batches = random_batches(tables, 5, samples=6)

    def run(policy: type[Policy], share: str, depth: int) -> Trained:
        tier = TierConfig(device_rows=share, poison=True, when_full="reduce_lookahead")
        return train_on(device, tables, batches, optimizer, policy, tier, depth)

    single = run(Device, "100%", 0)
    run(LFU, "60%", 2).assert_equals(single)
    run(Hybrid, "0", 2).assert_equals(single)
    assert_near(single, train_slowly(tables, batches, optimizer), optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
def test_rows_looked_up_ten_thousand_times(device: str, optimizer: RowOptimizer) -> None:
    tables = [TableConfig(name="t", num_embeddings=4, embedding_dim=8)]
    batches = random_batches(tables, 3, samples=5000, max_bag=8)
    tier = TierConfig(device_rows="100%", poison=True)
    single = train_on(device, tables, batches, optimizer, LRU, tier, 0)
    train_on(device, tables, batches, optimizer, LRU, tier, 2).assert_equals(single)
    train_on(device, tables, batches, optimizer, Hybrid, TierConfig(device_rows="0"), 2).assert_equals(single)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
def test_keys_that_come_and_go(device: str, optimizer: RowOptimizer) -> None:
    """Initial values follow from keys on the GPU, too, and slots of expired keys are used again."""
    tables = [key_table("user", num_embeddings=12, expire=4), key_table("item", num_embeddings=40, embedding_dim=17)]
    batches = drawn_batches(tables, 3, count=40)

    def run(where: str, policy: type[Policy], share: str, depth: int) -> tuple[Rows, list[float]]:
        tier = TierConfig.model_validate({"device_rows": share, "device": where, "when_full": "reduce_lookahead"})
        with TieredEmbeddingBag(tables, tier, policy=policy, optimizer=optimizer) as embeddings:
            trainee = HostTrainee(tables)
            train_more_on(embeddings, trainee, batches, depth)
            return rows_by_key(embeddings), trainee.losses

    rows, losses = run(device, LRU, "100%", 0)
    assert run(device, LFU, "80%", 3) == (rows, losses)
    assert run(device, Hybrid, "0", 2) == (rows, losses)
    on_cpu, losses_on_cpu = run("cpu", LRU, "100%", 0)
    assert [list(of_table) for of_table in rows.values()] == [list(of_table) for of_table in on_cpu.values()]
    np.testing.assert_allclose(losses, losses_on_cpu, rtol=TOLERANCE["bfloat16"])
