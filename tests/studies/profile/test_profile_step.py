"""Stages and rates of a small training; movement of rows by hand."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.helpers import featured
from support.toy import ToyData
from support.toy_runs import all_weights, assert_equal

from adaptive.batch import Batch
from adaptive.config import OptimizerConfig, TierConfig, TrainConfig
from adaptive.data.dataset import DataShape, Feature
from adaptive.embeddings.planning.layout import make_groups
from adaptive.errors import ConfigError
from adaptive.studies.profile import LeftOut
from adaptive.studies.profile.movement import MovementLength, left_out, movement, profile_movement
from adaptive.studies.profile.step_profile import (
    LOOK_AHEAD,
    TRAINING,
    StagedTrainer,
    StepLength,
    measured_machine,
    profile_step,
)
from adaptive.studies.simulate.simulation import simulate_group
from adaptive.studies.step_model import Machine, hidden_share
from adaptive.training.components import build, dense_flops, study_tables
from adaptive.training.trainer import Trainer

MACHINE = Machine(link=1e9, device=1e9, host=1e8, dense_ms=1.0)
SMALL = {
    "batch_size": 64,
    "data_options": {"synthetic": {"rows": 100_000, "num_train": 4_000, "num_eval": 0}},
    "model_options": {"bottom_mlp": "16", "top_mlp": "8-1"},
}


def case(policy: str, rows: str = "20%", **more: object) -> tuple[str, TrainConfig]:
    return policy, TrainConfig(policy=policy, tier=TierConfig(device_rows=rows), **SMALL, **more)  # type: ignore[arg-type]


def test_every_policy_has_stages_and_rates() -> None:
    counts: list[int] = []
    result = profile_step([case("hybrid", "auto"), case("lfu")], StepLength(1, 5), on_progress=counts.append)
    assert counts == list(range(1, 25))
    for profile, misses in zip(result, ("host", "prefetch"), strict=True):
        assert profile.misses == misses and profile.batch_size == 64
        assert set(profile.training_ms) == set(TRAINING) and set(profile.look_ahead_ms) == set(LOOK_AHEAD)
        assert all(ms > 0 for ms in profile.training_ms.values())
        assert profile.counts["lookups"] == 64 * 26
        assert profile.serial_ms > 0 and profile.step_ms > 0
    assert result[0].hit_rate == 0 and result[1].hit_rate > 0.5
    machine = measured_machine(result, value_bytes=64, row_bytes=68, plan_factor=1.5)
    assert machine.name == "here" and machine.measured is not None
    rates = machine.measured
    assert -1 <= rates.overlap_staged <= 1 and rates.device > 0 and rates.plan_factor == 1.5
    of_step, stages = result[0].counts, result[0].training_ms
    touched = (of_step["lookups"] + 2 * 64 * 26) * 64 + 2 * of_step["unique_rows"] * 68
    assert rates.host == pytest.approx(1e3 * touched / (stages["embedding"] + stages["row_update"]))
    with pytest.raises(ConfigError, match="Give --policies hybrid and one that prefetches"):
        measured_machine(result[:1], value_bytes=64, row_bytes=68, plan_factor=1.0)


FEATURES = (Feature("user", 60), Feature("item", 90), Feature("items", 90))
HISTORIES = DataShape(FEATURES, 0, ("user", "item", "item"), sequences={"items": 4})


def batch_of_histories(seed: int, size: int = 24) -> Batch:
    """Histories of 0 to 4 items; weights of samples."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(60, size=size), rng.integers(90, size=size)
    items = [rng.integers(90, size=length) for length in rng.integers(0, 5, size)]
    extras = {"weight": rng.random(size, np.float32)}
    return Batch.of(user=user, item=item, items=items, labels=rng.integers(2, size=size), extras=extras)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("dlrm", {"bottom_mlp": "4", "top_mlp": "6-1", "dropout": 0.2}),
        ("din", {"attention_mlp": "5"}),
    ],
)
def test_a_profile_trains_what_a_run_trains(model: str, options: dict[str, Any]) -> None:
    """Every loss and every kind of vectors, bit for bit."""
    shape, batches = HISTORIES, [batch_of_histories(seed) for seed in range(5)]
    config = TrainConfig.model_validate({"model": model, "model_options": {"embedding_dim": 4, **options}})
    weights = []
    for trainer in (Trainer, StagedTrainer):
        parts = build(config, shape)
        with parts.embeddings:
            trainer(parts.embeddings, parts.model, parts.optimizer).train(batches)
            weights.append(all_weights(parts))
    assert_equal(*weights)


@pytest.mark.parametrize("model", ["dlrm", "din"])
def test_the_vectors_of_a_step_are_those_that_the_model_gets(model: str) -> None:
    class Histories(ToyData):
        features, tables, num_dense, sequences = HISTORIES.features, HISTORIES.tables, 0, HISTORIES.sequences

        def __init__(self) -> None:
            self._num_train = 4 * 24

        def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
            return (batch_of_histories(0) for _ in range(4))

    options = {"embedding_dim": 16, "bottom_mlp": "16", "top_mlp": "8-1"} if model == "dlrm" else {}
    config = TrainConfig(model=model, model_options=options, batch_size=24, tier=TierConfig(device_rows="90%"))
    (step,) = profile_step([("lru", config)], StepLength(1, 12), dataset=Histories())
    lookups = len(batch_of_histories(0).ids)
    assert step.counts["lookups"] == lookups and step.vectors == (3 * 24 if model == "dlrm" else lookups)
    group = make_groups(study_tables(config, Histories(), 16), 0)[0]
    (run,) = simulate_group([("lru", config)], ["90%"], MACHINE, (Histories(), group)).runs
    touched = 64 * lookups + 2 * 64 * step.vectors + 2 * 68 * step.counts["unique_rows"]
    assert run.step_ms.hybrid == pytest.approx(
        1e3 * (touched / MACHINE.host + 2 * 64 * step.vectors / MACHINE.link) + 1
    )


def test_operations_of_a_model_of_sequences_are_those_of_all_its_steps() -> None:
    config = TrainConfig(model="din", model_options={"embedding_dim": 4, "attention_mlp": "5", "deep_mlp": "6"})
    attention = 16 * 5 + 5 * 1
    deep = ((2 + 2 * 2) * 4 + 2) * 6 + 6 * 1  # two features; sum and product, interest and product; their dot products
    assert dense_flops(config, HISTORIES) == 6 * (4 * attention + deep)


def test_a_stop_omits_the_remaining_policies() -> None:
    result = profile_step([case("hybrid", "auto"), case("lfu")], StepLength(1, 5), is_stopped=lambda: True)
    assert result == []


@pytest.mark.parametrize(("step", "hidden"), [(10.0, 0.0), (12.0, -0.5), (8.0, 0.5), (6.0, 1.0), (5.0, 1.0)])
def test_hidden_time_by_stage(step: float, hidden: float) -> None:
    assert hidden_share(train_ms=6.0, look_ms=4.0, hidden_ms=10.0 - step) == hidden


def test_movement_equals_a_case_worked_by_hand() -> None:
    previous = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]], np.float32)
    after = np.array([[3.0, 4.5], [1.0, 0.0], [0.0, 0.5], [0.0, 0.0]], np.float32)
    assert movement(previous, after).tolist() == [0.1, 0.0, 1.0, 0.0]
    # rows 0 and 1 rest, 2 is watched and moves, 3 is not watched; two features of one table
    batch = featured([[0], [0], [2], [0]], [[1], [3], [2], [2]])
    resting = np.array([True, True, False, False])
    watched = np.array([True, True, True, False])
    result = left_out([(np.array([0, 0, 2, 0, 1, 3, 2, 2]), batch)], resting, watched)
    assert result == LeftOut(all=0.25, most=0.25, any=0.75, hot=0.25, updates=0.5)


def test_watched_rows_move_less_at_a_lower_rate() -> None:
    middle = []
    for lr in (0.05, 0.001):
        rate = OptimizerConfig(name="sgd", lr=lr)
        config = TrainConfig(policy="lru", tier=TierConfig(device_rows="20%"), optimizer=rate, **SMALL)  # type: ignore[arg-type]
        result = profile_movement(config, MovementLength(30, 10))
        assert [point.steps for point in result.points] == [10, 20, 30] and not result.was_stopped
        assert 0 < result.watched_rows < 2_000
        middle.append(result.points[-1].bands["hottest"][2])
        for point in result.points:
            assert point.below == sorted(point.below) and point.judged_rows <= result.watched_rows
            for dropped in point.dropped:
                assert dropped.all <= dropped.most <= dropped.any and dropped.hot <= dropped.most
    assert middle[0] > 5 * middle[1] > 0


def test_movement_requires_updates_that_reach_rows() -> None:
    _, config = case("slipstream")
    with pytest.raises(ConfigError, match="expected a policy that skips nothing"):
        profile_movement(config, MovementLength(10, 5))
