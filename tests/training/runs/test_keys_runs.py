"""Runs on data with 64-bit keys: equal numbers by key, resumed runs, days in a row, lists of keys, refused commands."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.example_policies import SIEVE
from support.key_runs import SCHEMA, config, digest, write_day

from adaptive.cli.app import main
from adaptive.errors import ConfigError
from adaptive.serving import export_run, predict_run, scoring
from adaptive.training.runs import resume_run, train_run


@pytest.fixture(name="run", scope="module")
def run_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, which nobody changes, next to its data."""
    folder = tmp_path_factory.mktemp("keys")
    train_run(config(folder, "run"))
    return folder / "run"


def exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def test_runs_agree_for_every_depth_size_and_policy(tmp_path: Path) -> None:
    first = train_run(config(tmp_path, "first", depth=0))
    expected, sizes = digest(tmp_path / "first")
    assert 15 <= sizes["item"] <= 20 and 0 < sizes["user"] <= 60
    assert first["live_keys"] == sum(sizes.values()) and first["expired_keys"] > 0 < first["evicted_keys"]
    assert 0 < (first["unadmitted_lookup_share"] or 0) < 1 and "live keys" in first["details"]
    for number, changed in enumerate(
        [
            {"depth": 1, "tier": {"device_rows": "100%", "device": "cpu", "plan_threads": 2}},
            {"depth": 4, "policy": "lfu", "tier": {"device_rows": "1%", "when_full": "reduce_lookahead"}},
            {"depth": 8, "policy": "scratchpipe", "tier": {"device_rows": "10%", "when_full": "reduce_lookahead"}},
            {"depth": 8, "policy": "hybrid", "tier": {"device": "cpu"}},
            {"depth": 4, "policy": SIEVE, "tier": {"device_rows": "90%", "host": f"mmap:{tmp_path / 'rows'}"}},
        ]
    ):
        if changed["tier"].get("when_full"):
            changed["tier"] |= {"device": "cpu", "device_rows": "90"}
        other = train_run(config(tmp_path, f"other{number}", **changed))
        assert digest(tmp_path / f"other{number}")[0] == expected, changed
        for name in ("auc", "log_loss", "live_keys", "admitted_keys", "expired_keys", "evicted_keys"):
            assert other[name] == first[name], (name, changed)  # type: ignore[literal-required]


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    """After batch 100, between two sweeps, and after batch 140, between two others."""
    whole = train_run(config(tmp_path, "whole", save_every=60))
    assert whole["steps"] == 240 and whole["expired_keys"] > 0
    train_run(config(tmp_path, "cut", save_every=60, steps=100))
    resume_run(tmp_path / "cut", steps=140)
    train_run(config(tmp_path, "until", steps=140, save_every=60))
    assert digest(tmp_path / "cut") == digest(tmp_path / "until")
    resumed = resume_run(tmp_path / "cut", steps=240)
    assert digest(tmp_path / "cut") == digest(tmp_path / "whole")
    assert resumed["auc"] == whole["auc"]


def test_a_resumed_run_has_the_rules_of_its_keys(tmp_path: Path) -> None:
    train_run(config(tmp_path, "cut", steps=2))
    (tmp_path / "schema.toml").write_text(SCHEMA.replace("200s", "300s"))
    with pytest.raises(ConfigError, match=r"table 'user': expected the rules of keys of .*'200s'.*, got .*'300s'"):
        resume_run(tmp_path / "cut", steps=4)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    assert resume_run(tmp_path / "cut", steps=4)["steps"] == 4


def test_the_next_day_continues_with_keys_and_ages(run: Path, tmp_path: Path) -> None:
    _, before = digest(run)
    write_day(tmp_path / "day1.csv", 1)
    summary = train_run(config(tmp_path, "day1", data=f"csv:{tmp_path / 'day1.csv'}", init_from=str(run)))
    _, after = digest(tmp_path / "day1")
    assert summary["expired_keys"] >= before["user"] / 2  # those of the day before are older than 200 s
    gone = summary["expired_keys"] + summary["evicted_keys"]
    assert sum(after.values()) == sum(before.values()) + summary["admitted_keys"] - gone


def test_an_export_scores_as_predict_does(run: Path, tmp_path: Path) -> None:
    """Known keys, unknown ones and missing values, in the plain code of the export."""
    write_day(tmp_path / "later.csv", 0, samples=50)
    with (tmp_path / "later.csv").open("a") as file:
        file.write("0,9999,0.5,,\n1,9999,0.5,-9223372036854775808,none\n0,9999,0.25,18446744073709551615,item 3\n")
    predict_run(run, tmp_path / "scores.npy", data=f"csv:{tmp_path / 'later.csv'}")
    result = export_run(run, tmp_path / "served")
    _, sizes = digest(run)
    assert result.rows == sum(sizes.values()) + 2
    with (tmp_path / "later.csv").open(newline="") as file:
        samples: list[dict[str, Any]] = [{k: line[k] for k in ("x", "user", "item")} for line in csv.DictReader(file)]
    scores = scoring.load(tmp_path / "served").score(samples)
    np.testing.assert_allclose(scores, np.load(tmp_path / "scores.npy"), atol=1e-6)


def test_studies_count_each_key_as_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As with a vocabulary of all keys."""
    config(tmp_path, "unused")
    (tmp_path / "vocabulary.toml").write_text(
        SCHEMA.replace("keys = true", "vocabulary = true")
        .replace('capacity = 60\nadmit = 2\nexpire = "200s"\n', "")
        .replace("capacity = 20\n", "")
    )
    results = []
    for schema in ("schema.toml", "vocabulary.toml"):
        data = ["--data", f"csv:{tmp_path / 'day0.csv'}", "--schema", str(tmp_path / schema), "--json"]
        assert exit_code("simulate", *data, "--policies", "lru,lfu", "--batch-size", "32", "--device-rows", "90%") == 0
        simulated = json.loads(capsys.readouterr().out)["runs"]
        results.append([(run["policy"], run["row_hit_rate"]) for run in simulated])
    assert results[0] == results[1]
