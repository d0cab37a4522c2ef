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


def test_dry_run_writes_nothing(cli: Cli) -> None:
    result = cli("run", *SMALL, "--dry-run", "--device-rows", "30%", "--out", "first", "--json")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert (report["rows"], report["device_rows"], report["steps"]) == (100_000, 30_000, 6)
    assert report["memory_bytes"]["device_weights"] > 0
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.nightly
def test_a_dry_run_allocates_no_rows(cli: Cli) -> None:
    """With 2 tables of 10^12 rows, sizes are printed, and the run says how to fix it."""
    rows = 10**12
    Path("a.csv").write_text("click,id,item\n" + "".join(f"{row % 2},{row},7\n" for row in range(40)))
    Path("a.toml").write_text(
        f'label = {{ column = "click" }}\n[[categorical]]\ncolumns = ["id", "item"]\nkind = "int"\n'
        f"num_embeddings = {rows}\n"
    )
    words = ("run", "--data", "csv:a.csv", "--schema", "a.toml", "--batch-size", "10", "--out", "first")
    dry = cli(*words, "--dry-run", "--json")
    assert dry.code == 0, dry.err
    result = json.loads(dry.out)
    assert (result["rows"], result["memory_bytes"]["host_weights"]) == (
        2 * rows + 2,
        (2 * rows + 2) * 16 * 4,
    )  # one row each is of missing ids
    real = cli(*words)
    assert real.code == 2, real.err
    assert "tier.host=memory: expected 126,659.9 GiB" in real.err and "--set tier.host=mmap:DIR" in real.err


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
