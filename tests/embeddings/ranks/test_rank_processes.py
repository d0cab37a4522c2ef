"""Processes as ranks, over gloo, with the real DLRM: blocks make the number of ranks disappear, matrix products
included."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.rank_pool import ROOT, RankPool

WORKER = str(ROOT / "tests/support/rank_process.py")


def trained(
    pool: RankPool, size: int, out: Path, *way: str, steps: int = 6, optimizer: str = "adagrad"
) -> dict[str, Any]:
    """Checksums after a training on so many processes, with four blocks; `way` as of the worker."""
    for one in pool.run(size, [WORKER, str(out), "4", str(steps), optimizer, *way]):
        assert one.code == 0, one.err
    results: dict[str, Any] = json.loads(out.read_text())
    return results


@pytest.mark.nightly
def test_two_processes_give_the_bits_of_one(pool: RankPool, tmp_path: Path) -> None:
    """Tables, dense weights, losses, AUC: everything."""
    one = trained(pool, 1, tmp_path / "one.json")
    assert one == trained(pool, 2, tmp_path / "two.json")
    for way in (["cpu-torch"], ["cpu-torch", "stand-in"]):  # tiers of a GPU; and what crosses, as by NCCL
        assert one == trained(pool, 2, tmp_path / "other.json", *way)


@pytest.mark.nightly
def test_the_example_in_distributed_data_parallel_learns(pool: RankPool) -> None:
    """Started by what torchrun puts into the environment; rank 0 alone prints."""
    first, second = pool.run(2, [str(ROOT / "examples/own_loop_ranks.py")])
    assert (first.code, second.code) == (0, 0), first.err
    assert_learns(first.out)
    assert second.out == ""


@pytest.mark.nightly
def test_the_example_under_torchrun() -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    example = str(ROOT / "examples/own_loop_ranks.py")
    results = subprocess.run([*words, example], env=env, capture_output=True, text=True, timeout=300)
    assert results.returncode == 0, results.stderr
    assert_learns(results.stdout)


def assert_learns(out: str) -> None:
    losses = [float(line.split()[-1]) for line in out.splitlines() if line.startswith("batch")]
    assert len(losses) == 3 and losses[-1] < 0.75 * losses[0]
    assert "2 ranks, norm of the items' rows" in out


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise", "adam"])
def test_up_to_four_processes_and_two_hundred_steps(pool: RankPool, tmp_path: Path, optimizer: str) -> None:
    results = [trained(pool, size, tmp_path / f"{size}.json", steps=200, optimizer=optimizer) for size in (1, 2, 3, 4)]
    assert all(one == results[0] for one in results)
    assert results[0]["steps"] == 200
