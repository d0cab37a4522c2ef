"""`adaptive-train run --ranks`: the same run on another number of processes, stopped and resumed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.rank_pool import ROOT, SMALL_RUN, RankPool, quality

from adaptive.storage.checkpoint import load_checkpoint
from adaptive.training.runs import evaluate_run

COMMAND = [sys.executable, "-m", "adaptive"]


def run(*words: str) -> dict[str, Any]:
    """Return what it prints with --json."""
    ended = subprocess.run([*COMMAND, *words, "--json"], capture_output=True, text=True, cwd=ROOT, timeout=200)
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


@pytest.mark.nightly
def test_a_run_on_two_ranks_is_evaluated_by_one(pool: RankPool, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    results = run("run", *SMALL_RUN, "--steps", "6", "--ranks", "2", "--set", "save=best", "--out", out)
    assert results["steps"] == 6
    assert results["ranks"] == 2
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as ranks have
    try:
        alone = evaluate_run(out, settings={"eval_batch_size": 96})
    finally:
        torch.set_num_threads(threads)
    assert quality(alone) == pytest.approx(quality(results), abs=1e-6)
    assert len(list(tmp_path.glob("run/*/rows-1-0.npy"))) == 2
    last, best = load_checkpoint(tmp_path / "run/weights").shards, load_checkpoint(tmp_path / "run/best-6").shards
    assert len(last) == len(best) == 2
    for shard, other in zip(last, best, strict=True):
        assert shard.keys() == other.keys() and all(np.array_equal(shard[name], other[name]) for name in shard)
    (within,) = pool.run(1, ["-m", "adaptive", "run", "--resume", out, "--ranks", "2"])
    assert within.code == 2 and "expected none under torchrun" in " ".join(within.err.split())


def test_a_run_that_is_not_there_is_told_by_every_rank(pool: RankPool, tmp_path: Path) -> None:
    for one in pool.run(2, ["-m", "adaptive", "run", "--resume", str(tmp_path / "none"), "--json"]):
        assert one.code == 4 and "run.json" in one.err and not one.out


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("number", "told"),
    [
        (signal.SIGKILL, "rank 1 of 2 was killed by SIGKILL"),
        (signal.SIGSTOP, r"expected [a-z ]+ of (batch|step) \d+ from all ranks.*No response from rank 1 of 2"),
    ],
)
def test_a_killed_or_stopped_rank_ends_the_run(tmp_path: Path, number: signal.Signals, told: str) -> None:
    """With exit code 10, the rank and the step; the last checkpoint is whole."""
    out = tmp_path / "run"
    options = ["--steps", "100000", "--ranks", "2", "--set", "save_every=3", "--set", "ranks.timeout_s=20"]
    words = [*COMMAND, "run", *SMALL_RUN, *options, "--out", str(out)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        while not [path for path in out.glob("checkpoint-*") if ".tmp-" not in path.name]:  # a whole one
            assert process.poll() is None
            time.sleep(0.1)
        ranks = [int(pid) for pid in children.read_text().split()]
        os.kill(ranks[1], number)
        _, errors = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 10, errors
    assert re.search(told, " ".join(errors.split())), errors
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)
    assert quality(run("eval", str(out)))[0] > 0
