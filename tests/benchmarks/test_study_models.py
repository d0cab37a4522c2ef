"""Studies of models of sequences: data, runs that are not repeated, tables."""

import gzip
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from benchmarks import study_events, study_sequences
from benchmarks.study_runs import Runs
from benchmarks.study_sets import data_of


def zipped(path: Path, lines: list[list[int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(" ".join(map(str, line)) + "\n" for line in lines).encode()))


def test_sequences_of_sessions_are_read_as_sequences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTIVE_DATA", str(tmp_path))
    zipped(tmp_path / "diginetica-sessions/derived/all_train_seq.lines.txt.gz", [[1, 2, 3], [4], [5, 6, 7]])
    data = data_of("diginetica-sequences", tmp_path)
    dataset = open_dataset(data["data"], DataOptions.model_validate(data["data_options"]))
    (batch,) = dataset.train(100)
    assert [feature.name for feature in dataset.features] == ["target", "history"]
    assert dataset.tables == ("target", "target") and dataset.sequences == {"history": 20}
    assert batch.labels.tolist() == [1, 0] * 3 and np.diff(batch.offsets)[6:].tolist() == [1, 1, 2, 2, 1, 1]
    assert sum(batch.num_samples for batch in dataset.evaluation(100)) == 2


def test_models_of_sequences_are_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ADAPTIVE_DATA", str(tmp_path))  # real sets are not there
    small = partial(study_events.write_stream, most=5)
    monkeypatch.setattr(study_events, "write_stream", lambda path, samples: small(path, samples=400))
    monkeypatch.setattr("sys.argv", ["study", "--runs", str(tmp_path / "runs.jsonl"), "--seeds", "1"])
    study_sequences.main()
    runs = list(Runs(tmp_path / "runs.jsonl"))
    assert [run.label for run in runs] == ["dlrm", "din"] and not any(run.error for run in runs)
    table = capsys.readouterr().out
    assert f"| taobao-shaped | 1 | {runs[0].summary['auc']:.4f} ± nan" in table
    study_sequences.main()
    assert len(list(Runs(tmp_path / "runs.jsonl"))) == 3
