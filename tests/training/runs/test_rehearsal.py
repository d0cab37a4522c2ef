"""Kernels are compiled before the first step of a run."""

import io
from pathlib import Path

import pytest

from adaptive.config import TierConfig, TrainConfig
from adaptive.data.dataset import shape_of
from adaptive.training.components import first_batches, open_data
from adaptive.training.runs import rehearsal
from adaptive.training.telemetry.record import sum_tables


def config(policy: str = "slipstream", **values: object) -> TrainConfig:
    data = {"synthetic": {"num_train": 4_000, "num_eval": 100}}
    return TrainConfig(policy=policy, data="synthetic", data_options=data, batch_size=256, **values)  # type: ignore[arg-type]


def test_a_rehearsal_evicts_rows_and_defers_updates():
    run = config(skip={})
    dataset = open_data(run)
    totals = rehearsal.train_little(run, shape_of(dataset), first_batches(run, dataset))
    counts = sum_tables(list(totals.tables.values()))
    assert counts.evicted > 0 and counts.written_back > 0 and counts.deferred_updates > 0


def test_kernels_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A marker says for which settings all kernels are in the cache. Custom code is not called."""
    called: list[str] = []
    monkeypatch.setattr(rehearsal, "compile_marker", lambda name: tmp_path / name)
    monkeypatch.setattr(rehearsal, "train_little", lambda config, shape, sample: called.append(config.policy))
    in_files = TierConfig(host=f"mmap:{tmp_path}/rows", device_rows="5%")  # compiles nothing else
    for policy, tier in (
        ("lfu", TierConfig()),
        ("lfu", in_files),
        ("lru", TierConfig()),
        ("a.module:Policy", in_files),
    ):
        run = config(policy, tier=tier)
        dataset = open_data(run)
        assert rehearsal.rehearse(run, dataset, first_batches(run, dataset), io.StringIO()) == 0, "nothing to compile"
    assert called == ["lfu", "lru"] and len(list(tmp_path.iterdir())) == 2
