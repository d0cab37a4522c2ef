"""`compare` and `simulate`: settings, output, files and exit codes."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.outcomes import outcome

import adaptive.storage.durable
import adaptive.studies.compare.comparison_runs
from adaptive.config import TrainConfig
from adaptive.errors import DeviceMemoryError

Cli = Callable[..., Any]
SMALL = (
    *("--set", "data.synthetic.rows=100000", "--set", "data.synthetic.num_train=4000", "--batch-size", "500"),
    *("--set", "data.synthetic.num_eval=2000", "--set", "tensorboard=false", "--device-rows", "30%"),
)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    """Return the settings of every run without training; `lfu` fails, seed 9 is rigged."""
    seen: list[TrainConfig] = []

    def train(config: TrainConfig, **more: Any) -> dict[str, Any]:
        seen.append(config)
        if config.policy == "lfu":
            raise DeviceMemoryError("no room")
        auc = 0.7 + 0.01 * (config.seed == 9 and config.policy == "lru")
        return outcome("", config.seed, auc).summary

    monkeypatch.setattr(adaptive.studies.compare.comparison_runs, "train_run", train)
    return seen


# --- compare ---------------------------------------------------------------------------------------------------------


def test_settings_apply_to_every_run(cli: Cli, trainings: list[TrainConfig]) -> None:
    result = cli(
        *("compare", "--policies", "hybrid,lru", "--seeds", "2", "--seed", "3", "--device-rows", "25%"),
        *("--lr", "0.5", "--set", "depth=1", "--out", "out"),
    )
    assert result.code == 0, result.err
    assert [(c.policy, c.seed) for c in trainings] == [("hybrid", 3), ("lru", 3), ("hybrid", 4), ("lru", 4)]
    assert [c.tier.device_rows for c in trainings[:2]] == ["auto", "25%"]
    assert {(c.optimizer.lr, c.depth) for c in trainings} == {(0.5, 1)}
    assert trainings[3].data_options["synthetic"]["seed"] == 1
    assert [c.out for c in trainings[:2]] == ["out/seed-3/0-hybrid", "out/seed-3/1-lru"]
    assert "seed 3 (1 of 2), hybrid (1 of 2)" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to-auc", "0.7"), "--to-auc: expected evaluations during training, got eval_every=null. Set --eval-every"),
        (("--to-auc", "best", "--eval-every", "9"), "--to-auc: expected a number from 0 to 1, or auto, got best"),
        (("--to-auc", "1.5", "--eval-every", "9"), "--to-auc: expected a number from 0 to 1, or auto, got 1.5"),
    ],
)
def test_an_auc_to_reach_needs_evaluations(
    cli: Cli, trainings: list[TrainConfig], arguments: tuple[str, ...], message: str
) -> None:
    result = cli("compare", "--policies", "hybrid,lru", *arguments)
    assert (result.code, trainings) == (2, []) and message in " ".join(result.err.split())


def test_both_names_of_the_flag_of_policies_work(cli: Cli, trainings: list[TrainConfig]) -> None:
    assert cli("compare", "--policy", "hybrid,lru+skip=defer", "--seeds", "1").code == 0
    assert [config.policy for config in trainings] == ["hybrid", "lru"]
    plan = cli("run", "--policies", "lfu+half_life=9+skip=defer", "--dry-run", "--json", *SMALL)
    assert plan.code == 0 and {"policy", "policy_options.half_life", "skip.rule"} <= set(
        json.loads(plan.out)["settings_from"]
    )


def test_json_csv_and_markdown(cli: Cli, trainings: list[TrainConfig]) -> None:
    words = ("compare", "--policies", "hybrid,lru", "--out", "out", "--auc-budget", "0.001", "--json")
    result = cli(*words, "--csv", "a.csv", "--markdown", "a.md")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert (report["schema"], report["auc_budget"], report["control"], report["seeds"]) == (
        1,
        0.001,
        "hybrid",
        [0, 1, 2],
    )
    promised = (
        "policy auc auc_difference auc_difference_ci log_loss hit_rate samples_per_s skipped_update_share "
        "skipped_lookup_share time_ms bytes_h2d bytes_d2h seeds verdict"
    )
    assert [set(promised.split()) <= set(entry) for entry in report["policies"]] == [True, True]
    assert json.loads(Path("out/comparison.json").read_text()) == report
    assert Path("a.csv").read_text().startswith("policy,") and "| lru |" in Path("a.md").read_text()


def test_a_failed_run_sets_the_exit_code(cli: Cli, trainings: list[TrainConfig]) -> None:
    result = cli("compare", "--policies", "lfu,lru", "--seeds", "1", "--out", "out", "--json")
    assert (result.code, len(trainings)) == (7, 2)
    assert "error: no room" in result.err
    assert [entry["verdict"] for entry in json.loads(result.out)["policies"]] == ["failed", "within"]


def test_inexact_numbers_end_with_an_error(cli: Cli, trainings: list[TrainConfig]) -> None:
    result = cli("compare", "--policies", "hybrid,lru", "--seeds", "2", "--seed", "8", "--out", "out")
    assert result.code == 9
    assert "error: lru: skipped nothing but trained other numbers than hybrid (seed 9)" in result.err
    assert "lru: not exact" in result.out


def test_mistakes_are_reported_before_training(
    cli: Cli, trainings: list[TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, code, text in [
        (["--policies", "lru,lfo"], 9, "no policy 'lfo'"),
        (["--policies", ","], 2, "expected a list"),
        (["--policies", "lfu+half_life=x"], 2, "policy LFU: half_life: expected a valid number"),
        (["--seeds", "0"], 2, "--seeds"),
        (["--set", "policy.nothing=1"], 2, "expected a parameter of hybrid, lru, slipstream"),
        (["--batch-size", "0"], 2, "batch_size"),
        (["--csv", "no/such/a.csv"], 6, "folder no/such does not exist"),
        (["--markdown", "full"], 6, "full cannot be written: expected a file, got a folder"),
    ]:
        Path("full").mkdir(exist_ok=True)
        result = cli("compare", *words)
        assert result.code == code and text in result.err, result.err
    Path("full/x").touch()
    assert cli("compare", "--out", "full").code == 6
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    result = cli("compare", "--csv", "a.csv")
    assert result.code == 6 and "a.csv cannot be written: folder . is not writable" in result.err
    assert trainings == []


def test_a_failed_write_still_prints_the_result(
    cli: Cli, trainings: list[TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(adaptive.storage.durable, "write_atomic", fail)
    monkeypatch.setattr(adaptive.studies.compare.comparison_runs, "write_record", lambda *_: None)
    result = cli("compare", "--policies", "lru", "--seeds", "1", "--out", "out", "--csv", "a.csv", "--json")
    assert result.code == 6 and "a.csv cannot be written: [Errno 28]" in result.err
    assert json.loads(result.out)["policies"][0]["policy"] == "lru"


@pytest.mark.nightly
def test_compare_trains_and_prints_a_table(cli: Cli) -> None:
    result = cli("compare", *SMALL, "--policies", "device,lru", "--seeds", "1", "--steps", "3", "--out", "out")
    assert result.code == 0, result.err
    assert "lru: within the AUC budget of 0.0005 (equal to the control bit for bit)" in result.out
    assert Path("out/seed-0/1-lru/run.json").is_file()
    assert cli("compare", *SMALL, "--policies", "lru", "--seeds", "1", "--steps", "1", "--out", "out").code == 6
    words = ("--policies", "lru", "--seeds", "1", "--steps", "1", "--out", "out", "--overwrite")
    assert cli("compare", *SMALL, *words).code == 0


# --- simulate --------------------------------------------------------------------------------------------------------


def test_simulate_reports_mistakes(cli: Cli) -> None:
    for words, code, text in [
        (["--device-rows", "lots"], 2, "expected a size in rows"),
        (["--policies", "lru,nothing"], 9, "no policy 'nothing'"),
        (["--policies", "lfu+half_life=x"], 2, "policy LFU: half_life: expected a valid number"),
        (["--data", "criteo:none.tsv"], 3, "none.tsv"),
        (["--optimizer", "sdg"], 2, "did you mean sgd?"),
        (["--plot", "no/such.png"], 6, "folder no does not exist"),
        (["--plot", "curves.jpeg"], 2, "--plot: expected a file ending in .png or .svg, got curves.jpeg"),
        (["--device-rows", "1", *SMALL[:-2]], 7, "are enough for all batches"),
        (["--skew", "--policies", "lru"], 2, "--skew: expected no --policies, which the skew of the ids"),
    ]:
        result = cli("simulate", *words)
        assert result.code == code and text in result.err, result.err


def test_simulate_prints_the_skew_of_tables(cli: Cli, tmp_path: Path) -> None:
    table = tmp_path / "skew.md"
    report = cli("simulate", *SMALL[:-2], "--skew", "--steps", "2", "--json", "--markdown", str(table))
    assert report.code == 0, report.err
    result = json.loads(report.out)
    assert (result["batches"], result["samples"], len(result["tables"])) == (2, 1000, 26)
    assert all(0 < table["top_1_share"] <= table["top_10_share"] <= 1 for table in result["tables"])
    assert table.read_text().count("\n| ") == 28


def test_simulate_takes_shape_and_width_of_a_preset(cli: Cli) -> None:
    words = ("--preset", "rmc3", "--policies", "lru", "--device-rows", "20000", "--json", *SMALL)
    narrower = ("--set", "model.embedding_dim=16", "--set", "model.bottom_mlp=64-16")
    result, narrow = (cli("simulate", *words, *more) for more in ((), narrower))
    assert (result.code, narrow.code) == (0, 0), narrow.err
    sizes = [json.loads(output.out)["runs"][0]["device_bytes"] for output in (result, narrow)]
    assert sizes[0] > 3 * sizes[1]
