"""The study of skipping: runs are stored and not repeated, controls, tables."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.study_cells import OFF, Block, Setting, Way, ruled, stream
from benchmarks.study_report import block_table, verdict_table
from benchmarks.study_runs import Run, Runs, fingerprint
from benchmarks.study_skipping import run_blocks
from benchmarks.study_verdicts import holm, outcomes, publish

DEFER = ruled("defer", "support.skip_rules:Waits")
DROP = ruled("inputs", "adaptive.policies.random_drop:Drop+share=0.3")
SKIP: dict[str, Any] = {"interval": 2, "min_accesses": 1, "feedback_delay": 0}


def tiny(**config: Any) -> Setting:
    model = {"embedding_dim": 2, "bottom_mlp": "2", "top_mlp": "4-1"}
    usual: dict[str, Any] = {"batch_size": 100, "model_options": model, "skip": SKIP, "epochs": 2}
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
    assert runs["off"].summary["skipped_update_share"] == 0 < runs["defer"].summary["skipped_update_share"]
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


def test_a_line_cut_short_is_removed(tmp_path: Path) -> None:
    setting, runs = tiny(), Runs(tmp_path / "runs.jsonl")
    runs.add(made(setting, OFF, 0, 0.7))
    with runs.path.open("a") as file:
        file.write('{"setting": "ea')
    again = Runs(runs.path)
    again.add(made(setting, OFF, 1, 0.7))
    assert [run.seed for run in Runs(runs.path)] == [0, 1]


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


def test_lines_of_a_table_share_their_level() -> None:
    """A line that is shown alone, at 3%, is not among ten; one that is clear stays."""
    weak, clear = [-0.0002, -0.0004, 0.0001, -0.0001], [0.0, 0.00001, -0.00001, 0.0]
    assert outcomes([weak], 0.0005) == ["shown"]
    assert outcomes([weak] * 9 + [clear], 0.0005) == ["not shown"] * 9 + ["shown"]


def test_a_tested_table_has_outcomes_time_and_speed(tmp_path: Path) -> None:
    setting, runs = tiny(), Runs(tmp_path / "runs.jsonl")
    point = {"step": 5, "auc": 0.7, "log_loss": 0.5}

    def add(way: Way, seed: int, auc: float, seconds: float, **more: Any) -> None:
        work = [
            {"step": 5 * n, "samples_read": 1000 * n, "seconds": 1.0, "cpu_seconds": n * seconds - 1} for n in (1, 2)
        ]
        points = [{**point, "auc": 0.6}, {**point, "auc": auc}]
        results = {"evaluations": points, "evaluation_work": work, "calibration": 1.01, **more}
        runs.add(made(setting, way, seed, auc, **results))

    for seed in (100, 101, 102):
        add(OFF, seed, 0.7, 10.0)
        add(DEFER, seed, 0.7 + seed * 1e-7, 4.0, skipped_input_share=0.7)
    block = Block("b", (setting,), (OFF, DEFER), first_seed=100, bar=0.0003)
    head, _, control, line = (text.strip("| ").split(" | ") for text in verdict_table(block, runs).splitlines())
    assert control[:2] == ["easy", "off"] and control[head.index("seeds")] == "3"
    numbers = dict(zip(head, line, strict=True))
    assert numbers["inputs"] == "70.0%" and numbers["calibration"] == "1.010"
    assert line[head.index("within 0.0003")] == "shown"
    assert numbers["time to AUC"] == "0.37, 3 of 3" and numbers["data per second"] == "2.50"
    published = tmp_path / "published.jsonl"
    publish(runs, published)
    lines = [json.loads(text) for text in published.read_text().splitlines()]
    assert lines[1] == [
        "easy",
        "defer",
        100,
        {"auc": 0.70001, "log_loss": 0.5, "calibration": 1.01, "skipped_input_share": 0.7}
        | {"cpu_seconds": 7.0, "samples_read": 2000.0},
    ]
