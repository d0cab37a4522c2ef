"""Studies of skipping and of models of sequences: runs are stored and not repeated, controls, tables."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import study_events, study_sequences
from benchmarks.study_cells import OFF, Block, Setting, Way, ruled, stream
from benchmarks.study_report import block_table
from benchmarks.study_runs import Run, Runs, fingerprint
from benchmarks.study_skipping import run_blocks
from benchmarks.study_verdicts import holm, outcomes

EAGER = {"interval": 2, "hot_rows": "100%", "min_accesses": 1, "feedback_delay": 1}
DEFER = Way("defer", "lfu", config={"skip": {**EAGER, "rule": "support.skip_rules:Waits"}})
DROP = ruled("inputs", "adaptive.policies.random_drop:Drop+share=0.3")


def tiny(**config: Any) -> Setting:
    model = {"embedding_dim": 2, "bottom_mlp": "2", "top_mlp": "4-1"}
    usual: dict[str, Any] = {"batch_size": 100, "model_options": model, "epochs": 2}
    return stream("easy", 2000, evaluated=500, **(usual | config))


def made(setting: Setting, way: Way, seed: int, auc: float, **summary: Any) -> Run:
    """A run as it is in the file, without training."""
    zero = ("hit_rate", "row_hit_rate", "bytes_h2d", "bytes_d2h", "fetched_rows", "written_back_rows", "steps")
    more = ("samples", "samples_per_s", "skipped_update_share", "skipped_lookup_share", "deferred_update_share")
    results: dict[str, Any] = {"auc": auc, "log_loss": 0.5, "auc_of": "evaluation", **dict.fromkeys(zero + more, 0)}
    return Run(setting.name, way.label, seed, fingerprint(setting, way), {**results, **summary})


# --- runs ----------------------------------------------------------------------------------------------------------


def test_a_stopped_study_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = tiny()
    block = Block("b", (setting,), (OFF, DEFER, DROP), seeds=1)
    path = tmp_path / "runs.jsonl"

    def study(until: float = math.inf) -> None:
        run_blocks([block], Runs(path), tmp_path, until=until, is_there=lambda _: True)

    study(until=0)
    assert not path.exists()
    study()
    runs = {run.label: run for run in Runs(path)}
    assert list(runs) == ["off", "defer", "inputs", "random as inputs", "negatives as inputs"]
    assert not any(run.error for run in runs.values())
    assert runs["off"].summary["deferred_update_share"] == 0 < runs["defer"].summary["deferred_update_share"]
    dropped = runs["inputs"].summary["skipped_input_share"]
    assert dropped >= 0.05
    assert runs["random as inputs"].summary["skipped_input_share"] == pytest.approx(dropped, abs=0.1)

    monkeypatch.setattr("benchmarks.study_skipping.train", lambda *_, **__: pytest.fail("trained again"))
    study()
    assert len(path.read_text().splitlines()) == 5


def test_a_run_with_other_settings_is_not_reused(tmp_path: Path) -> None:
    setting, runs = tiny(), Runs(tmp_path / "runs.jsonl")
    runs.add(made(setting, DEFER, 0, 0.7))
    assert Runs(runs.path).get(setting, DEFER, 0) is not None
    assert runs.get(setting, DEFER, 1) is None
    assert runs.get(tiny(batch_size=50), DEFER, 0) is None
    assert runs.get(setting, Way("defer", options={"warmup": 1}), 0) is None


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
    assert len(list(Runs(tmp_path / "runs.jsonl"))) == 2


# --- the report ----------------------------------------------------------------------------------------------------


@pytest.fixture
def three_seeds(tmp_path: Path) -> tuple[Block, Runs]:
    """Differences -0.001, -0.002, -0.003: mean -0.002, and 4.303 * 0.001 / sqrt(3) = 0.00248 to each side."""
    setting, runs = tiny(), Runs(tmp_path / "runs.jsonl")
    for seed in range(3):
        runs.add(made(setting, OFF, seed, 0.7))
        runs.add(made(setting, DEFER, seed, 0.699 - seed / 1000, skipped_update_share=0.5))
    return Block("bar", (setting,), (OFF, DEFER)), runs


def test_a_table_has_means_and_intervals(three_seeds: tuple[Block, Runs]) -> None:
    lines = block_table(*three_seeds).splitlines()
    assert lines[2].split(" | ")[:4] == ["| easy", "off", "0.70000", "control"]
    assert "-0.00200 [-0.00448, +0.00048]" in lines[3]
    assert "50.0%" in lines[3]


# --- tests against a bar -------------------------------------------------------------------------------------------


def test_holm_adjusts_by_rank_and_keeps_the_order() -> None:
    """The smallest counts three times, the next twice, and none falls below one before it."""
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("differences", "outcome"),
    [
        ([0.0001, 0.0, -0.0001, 0.0], "shown"),
        ([-0.002, -0.0021, -0.0019, -0.002], "refuted"),
        ([-0.002, 0.002, 0.0, 0.001], "not shown"),
        ([0.01, 0.0101, 0.0099, 0.01], "shown"),  # a gain is no loss
        ([0.0, 0.0], "shown"),
        ([-0.001, -0.001], "refuted"),
        ([0.0], "not shown"),
        ([], "not shown"),
    ],
)
def test_a_line_has_three_outcomes(differences: list[float], outcome: str) -> None:
    assert outcomes([differences], 0.0005) == [outcome]
