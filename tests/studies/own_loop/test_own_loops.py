"""Recordings, comparisons and simulations of custom loops equal those of runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.builders import batch_of
from support.skip_rules import LeaveOut

from adaptive import (
    Batch,
    Counter,
    Recording,
    SkipConfig,
    TableConfig,
    TierConfig,
    TieredEmbeddingBag,
    compare_policies,
    evaluate,
    simulate_policies,
)
from adaptive.errors import CheckpointError, ConfigError, OutputError
from adaptive.policies.lru import LRU
from adaptive.policy import Policy
from adaptive.training.runs import evaluate_run
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import EvalRecord, IntervalRecord, RunRecord

TABLES = [
    TableConfig(name="user", num_embeddings=60, embedding_dim=4),
    TableConfig(name="item", num_embeddings=30, embedding_dim=4),
]


def batches(count: int, seed: int = 0) -> list[Batch]:
    random = np.random.default_rng(seed)
    result = []
    for _ in range(count):
        ids = random.zipf(1.4, (16, 2)) % [60, 30]
        result.append(batch_of(ids, ids[:, 0] % 2 == 0))
    return result


def train(*, count: int = 10, seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    embeddings = TieredEmbeddingBag(TABLES, TierConfig(device_rows="80%"), seed=seed, **options)
    head = torch.nn.Linear(8, 1)
    return embeddings, head, batches(count, seed)


def step(embeddings: TieredEmbeddingBag, head: torch.nn.Module, planned: Any) -> tuple[Any, Any]:
    logits = head(embeddings.stack(planned).flatten(1)).squeeze(1)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, planned.labels)
    loss.backward()
    embeddings.step()
    return loss, logits


@pytest.mark.nightly
def test_a_recording_equals_the_record_of_a_run(tmp_path: Path) -> None:
    embeddings, head, data = train()
    with Recording(embeddings, tmp_path / "run", log_every=4) as record:
        for planned in record.batches(embeddings.look_ahead(data, depth=2)):
            with record.timed("forward"):
                loss, logits = step(embeddings, head, planned)
            record.step(planned, loss, logits)
        record.evaluation(evaluate(embeddings, Flat(head), batches(2, 9)))
        summary = record.summary()
    records = read_metrics(tmp_path / "run/metrics.jsonl")
    assert [type(record) for record in records] == [RunRecord, *[IntervalRecord] * 3, EvalRecord]
    intervals = [record for record in records if isinstance(record, IntervalRecord)]
    assert [interval.step for interval in intervals] == [4, 8, 10]
    assert sum(interval.tables["user"].lookups for interval in intervals) == 160
    assert intervals[0].time_ms["forward"] > 0
    assert summary["steps"] == 10 and summary["samples"] == 160 and summary["eval_samples"] == 32
    assert summary["hit_rate"] == pytest.approx(
        sum(t.lookup_hits for interval in intervals for t in interval.tables.values()) / 320
    )
    run_json = json.loads((tmp_path / "run/run.json").read_text())
    assert run_json["own_loop"] and run_json["status"] == "finished" and run_json["summary"]["steps"] == 10
    assert list((tmp_path / "run/tensorboard").iterdir())
    with pytest.raises(CheckpointError, match=r"got a recording of a Python training loop .*tensorboard .*run"):
        evaluate_run(tmp_path / "run")
    with pytest.raises(OutputError, match="expected an empty directory"):
        Recording(embeddings, tmp_path / "run")
    embeddings.close()


class Flat(torch.nn.Module):
    def __init__(self, head: torch.nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(pooled.flatten(1)).squeeze(1)
        return result


def test_recording_changes_nothing_and_records_the_end(tmp_path: Path) -> None:
    plain, head, data = train()
    for planned in plain.look_ahead(data):
        step(plain, head, planned)
    embeddings, head, data = train()

    def fails() -> None:
        with Recording(embeddings, tmp_path / "run", tensorboard=False) as record:
            for planned in record.batches(embeddings.look_ahead(data)):
                record.step(planned, *step(embeddings, head, planned))
            raise KeyError("mine")

    with pytest.raises(KeyError):
        fails()
    assert np.array_equal(plain.rows.table_weights("user"), embeddings.rows.table_weights("user"))
    run_json = json.loads((tmp_path / "run/run.json").read_text())
    assert run_json["status"] == "stopped" and "KeyError" in run_json["error"]
    assert not (tmp_path / "run/tensorboard").exists()


def test_invalid_arguments_of_a_recording_are_reported(tmp_path: Path) -> None:
    embeddings, _, data = train()
    with pytest.raises(ConfigError, match="log_every: expected a whole number above 0, got 0"):
        Recording(embeddings, tmp_path / "run", log_every=0)
    with Recording(embeddings, tmp_path / "run", tensorboard=False) as record:
        (planned,) = record.batches(embeddings.look_ahead(data[:1]))
        with pytest.raises(ConfigError, match=r"expected logits of shape \(16,\), got \(16, 1\)"):
            record.step(planned, 0.5, torch.zeros(16, 1))


class Freezing(LRU):
    """Skip the updates of every second row."""

    def __init__(self) -> None:
        self.rule = LeaveOut(lambda rows: rows.rows % 2 == 0)


def scored(*, seed: int, policy: str | type[Policy], skip: Any = None, **rest: Any) -> Any:
    embeddings, head, data = train(count=16, seed=seed, policy=policy, skip=skip, **rest)
    for planned in embeddings.look_ahead(data, depth=1):
        step(embeddings, head, planned)
    held_out = batches(4, seed + 50)
    with torch.no_grad():
        logits = [head(embeddings.stack(embeddings.read(batch)).flatten(1)).squeeze(1) for batch in held_out]
    return embeddings, torch.cat(logits), np.concatenate([batch.labels for batch in held_out])


def test_comparison_checks_bits_and_judges_skipping() -> None:
    skip = SkipConfig(interval=2, min_accesses=1, hot_rows="100%", feedback_delay=2)
    lines: list[str] = []
    result = compare_policies(
        scored,
        {"lru": {"policy": "lru"}, "lfu": {"policy": "lfu"}, "freezing": {"policy": Freezing, "skip": skip}},
        seeds=2,
        auc_budget=0.5,
        on_progress=lines.append,
    )
    assert result["control"] == "lru" and result["seeds"] == [0, 1] and not result["problems"]
    assert lines == [f"seed {seed}, {label}" for seed in (0, 1) for label in ("lru", "lfu", "freezing")]
    lru, lfu, freezing = result["policies"]
    assert lru["exact"] and lfu["exact"] and lfu["reason"] == "equal to the control bit for bit"
    assert not freezing["exact"] and freezing["skipped_update_share"] > 0 and freezing["auc_difference_ci"]
    assert freezing["verdict"] == "within"
    assert lru["steps"] == 16 and 0 < lru["hit_rate"] < 1
    assert "lfu" in result["table"]


def test_failing_or_inexact_trainings_are_reported() -> None:
    def wrong(*, seed: int, policy: str, skip: Any = None) -> Any:
        if policy == "hybrid":
            raise RuntimeError("mine")
        return scored(seed=seed + (policy == "lfu"), policy=policy, skip=skip)

    result = compare_policies(wrong, ["lru", "lfu", "hybrid"], seeds=1)
    assert any("hybrid, seed 0: RuntimeError: mine" in problem for problem in result["problems"])
    assert [policy["verdict"] for policy in result["policies"]] == ["within", "differs", "failed"]
    with pytest.raises(ConfigError, match="expected policies and seeds, got 0 and 1"):
        compare_policies(wrong, [], seeds=1)


def test_simulation_counts_equal_those_of_training() -> None:
    data = batches(30)
    result = simulate_policies(data, TABLES, ["lru", "lfu"], ["80%"], depth=1)
    for run in result["runs"]:
        tier = TierConfig(device_rows="80%")
        with TieredEmbeddingBag(TABLES, tier, policy=run["policy"]) as embeddings:
            for planned in embeddings.look_ahead(data, depth=1):
                embeddings.stack(planned).sum().backward()  # type: ignore[no-untyped-call]
                embeddings.step()
            counts = embeddings.statistics.counts()
        assert run["hit_rate"] == counts[Counter.LOOKUP_HITS] / counts[Counter.LOOKUPS]
    repeated = simulate_policies(lambda: iter(data), TABLES, ["lru"], ["80%"], depth=1)
    assert repeated["runs"][0]["hit_rate"] == result["runs"][0]["hit_rate"]
    assert "lru" in result["table"]


def test_invalid_arguments_of_a_simulation_are_reported() -> None:
    with pytest.raises(ConfigError, match=r"expected a list of batches, or a function .*, got an iterator"):
        simulate_policies(iter(batches(2)), TABLES)  # type: ignore[arg-type]
    wide = TableConfig(name="wide", num_embeddings=5, embedding_dim=8)
    with pytest.raises(ConfigError, match=r"expected tables of one width, got 4 .*, 8 "):
        simulate_policies(batches(2), [*TABLES, wide])
