"""A recording of a custom loop has the records of a run, and changes nothing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.builders import batch_of

from adaptive import Batch, Recording, TableConfig, TierConfig, TieredEmbeddingBag, evaluate
from adaptive.errors import CheckpointError, ConfigError, OutputError
from adaptive.training.runs import evaluate_run
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import EvalRecord, IntervalRecord, RunRecord

TABLES = [
    TableConfig(name="user", num_embeddings=60, embedding_dim=4),
    TableConfig(name="item", num_embeddings=30, embedding_dim=4),
]


def batches(count: int, seed: int = 0) -> list[Batch]:
    random = np.random.default_rng(seed)
    drawn = [random.zipf(1.4, (16, 2)) % [60, 30] for _ in range(count)]
    return [batch_of(ids, ids[:, 0] % 2 == 0) for ids in drawn]


class Head(torch.nn.Linear):
    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        return super().forward(pooled.flatten(1)).squeeze(1)


def make() -> tuple[TieredEmbeddingBag, Head]:
    torch.manual_seed(0)
    return TieredEmbeddingBag(TABLES, TierConfig(device_rows="80%"), seed=0), Head(8, 1)


def step(embeddings: TieredEmbeddingBag, head: Head, planned: Any) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(planned.dense, embeddings.stack(planned))
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, planned.labels)
    loss.backward()  # type: ignore[no-untyped-call]
    embeddings.step()
    return loss, logits


def test_a_recording_equals_the_record_of_a_run(tmp_path: Path) -> None:
    plain, head = make()
    for planned in plain.look_ahead(batches(10)):
        step(plain, head, planned)
    embeddings, head = make()
    with Recording(embeddings, tmp_path / "run", log_every=4) as record:
        for planned in record.batches(embeddings.look_ahead(batches(10), depth=2)):
            with record.timed("forward"):
                loss, logits = step(embeddings, head, planned)
            record.step(planned, loss, logits)
        record.evaluation(evaluate(embeddings, head, batches(2, 9)))
    assert np.array_equal(plain.rows.table_weights("user"), embeddings.rows.table_weights("user"))
    records = read_metrics(tmp_path / "run/metrics.jsonl")
    assert [type(record) for record in records] == [RunRecord, *[IntervalRecord] * 3, EvalRecord]
    intervals = [record for record in records if isinstance(record, IntervalRecord)]
    assert [interval.step for interval in intervals] == [4, 8, 10]
    assert sum(interval.tables["user"].lookups for interval in intervals) == 160
    assert intervals[0].time_ms["forward"] > 0
    run_json = json.loads((tmp_path / "run/run.json").read_text())
    assert run_json["own_loop"] and run_json["status"] == "finished"
    assert run_json["summary"] == {"steps": 10, "samples": 160}
    assert list((tmp_path / "run/tensorboard").iterdir())
    with pytest.raises(CheckpointError, match=r"got a recording of a Python training loop .*tensorboard .*run"):
        evaluate_run(tmp_path / "run")
    with pytest.raises(OutputError, match="expected an empty directory"):
        Recording(embeddings, tmp_path / "run")


def test_an_error_of_the_loop_is_recorded(tmp_path: Path) -> None:
    embeddings, head = make()

    def fail() -> None:
        with Recording(embeddings, tmp_path / "run") as record:
            for planned in record.batches(embeddings.look_ahead(batches(2))):
                record.step(planned, *step(embeddings, head, planned))
                raise KeyError("mine")

    with pytest.raises(KeyError):
        fail()
    run_json = json.loads((tmp_path / "run/run.json").read_text())
    assert run_json["status"] == "stopped" and "KeyError" in run_json["error"]


def test_invalid_arguments_of_a_recording_are_reported(tmp_path: Path) -> None:
    embeddings, _ = make()
    with pytest.raises(ConfigError, match="log_every: expected a whole number above 0, got 0"):
        Recording(embeddings, tmp_path / "run", log_every=0)
    with Recording(embeddings, tmp_path / "run") as record:
        (planned,) = record.batches(embeddings.look_ahead(batches(1)))
        with pytest.raises(ConfigError, match=r"expected logits of shape \(16,\), got \(16, 1\)"):
            record.step(planned, 0.5, torch.zeros(16, 1))
