"""Commands with the real trainer, on a small built-in stream."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
SMALL = (
    *("--set", "data.synthetic.rows=100000", "--set", "data.synthetic.num_train=6000"),
    *("--set", "data.synthetic.num_eval=2000", "--set", "tensorboard=false", "--batch-size", "1000"),
)
PROMISED = (
    "schema policy steps samples samples_per_s samples_per_s_later auc accuracy log_loss hit_rate fetched_rows "
    "written_back_rows bytes_h2d "
    "bytes_d2h skipped_update_share time_ms policy_numbers"
)


def test_run_then_eval_then_repeat(cli: Cli) -> None:
    first = cli("run", *SMALL, "--policy", "lfu", "--out", "first", "--json")
    assert first.code == 0, first.err
    result = json.loads(first.out)
    assert set(result) >= set(PROMISED.split())
    assert (result["policy"], result["steps"], result["samples"]) == ("lfu", 6, 6000)
    assert {"plan", "wait", "forward", "update"} <= set(result["time_ms"])
    evaluated = json.loads(cli("eval", "first", "--json").out)
    assert [evaluated[name] for name in ("auc", "log_loss", "accuracy")] == [
        result[name] for name in ("auc", "log_loss", "accuracy")
    ]
    repeated = json.loads(cli("run", "--config", "first/run.json", "--out", "second", "--json").out)
    assert (repeated["auc"], repeated["hit_rate"]) == (result["auc"], result["hit_rate"])


def test_result_for_people(cli: Cli) -> None:
    result = cli("run", *SMALL, "--steps", "2", "--out", "first")
    assert result.code == 0, result.err
    assert result.out.startswith("lru: 2,000 samples read in ") and "policy lru: 2 steps" not in result.out
    assert "\nfirst\nmore: adaptive-train run ... --verbose" in result.out
    assert "100% | step 2 | " in result.err


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (["--data", "criteo:nothing.tsv"], 3, ["nothing.tsv"]),
        (["--out", "full"], 6, ["full", "expected an empty directory", "--out"]),
        (["--out", "full", "--overwrite"], 6, ["notes.txt"]),
        (["--data", "orc:x"], 2, ["data: expected one of", "synthetic", "criteo:PATH", "got 'orc:x'"]),
        (["--device-rows", "5"], 7, ["device rows of width", "got 5", "Raise device_rows"]),
        (["--lr", "1e30", "--steps", "3"], 8, ["the loss is", "nothing was updated", "lower the learning rate"]),
        (["--policy", "mine.py:Mine", "--device-rows", "50%"], 9, ["Mine", "NaN"]),
    ],
)
def test_runtime_errors_have_exit_codes(cli: Cli, words: list[str], code: int, parts: list[str]) -> None:
    Path("mine.py").write_text(
        "import numpy as np\nfrom adaptive.policy import Policy\n"
        "class Mine(Policy):\n    misses = 'host'\n"
        "    def score(self, rows):\n        return np.full(len(rows), np.nan)\n"
    )
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    result = cli("run", *SMALL, "--out", "first", *words)
    assert (result.code, result.out) == (code, ""), result.err
    assert "adaptive-train: error: " in result.err and "Traceback" not in result.err
    for part in parts:
        assert part in result.err
