"""Processes as ranks, over gloo, with the real DLRM: blocks make the number of ranks disappear, matrix products
included."""

import json
from pathlib import Path
from typing import Any

import pytest
from rank_processes import ROOT, run_ranks

KILLED = str(ROOT / "tests/support/rank_faults.py")
WORKER = str(ROOT / "tests/support/rank_process.py")


def trained(size: int, out: Path, *, steps: int = 6, optimizer: str = "adagrad") -> dict[str, Any]:
    """Checksums after a training on so many processes, with four blocks."""
    for code, _, errors in run_ranks(size, [WORKER, str(out), "4", str(steps), optimizer]):
        assert code == 0, errors
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_two_processes_give_the_bits_of_one(tmp_path: Path) -> None:
    """Tables, dense weights, losses, AUC: everything."""
    assert trained(1, tmp_path / "one.json") == trained(2, tmp_path / "two.json")


def test_the_example_in_distributed_data_parallel_learns() -> None:
    """Started by what torchrun puts into the environment; rank 0 alone prints."""
    found = run_ranks(2, [str(ROOT / "examples/own_loop_ranks.py")])
    assert [code for code, _, _ in found] == [0, 0], found[0][2]
    losses = [float(line.split()[-1]) for line in found[0][1].splitlines() if line.startswith("batch")]
    assert len(losses) == 3 and losses[-1] < 0.75 * losses[0]
    assert "2 ranks, norm of the items' rows" in found[0][1] and found[1][1] == ""


def test_a_killed_rank_is_named_and_nobody_hangs() -> None:
    """SIGKILL between two batches: the other rank ends by itself, with what it last did and who is silent."""
    (killed, _, _), (code, _, errors) = run_ranks(2, [KILLED, "1"])[::-1]
    assert killed == -9 and code == 10
    assert "rank 0 of 2" in errors and "not heard any more: rank 1 of 2" in errors


@pytest.mark.slow
def test_a_rank_that_stands_still_is_named_after_the_timeout() -> None:
    (_, _, _), (code, _, errors) = run_ranks(2, [KILLED, "0"])[::-1]
    assert code == 10 and "not heard any more: rank 1 of 2" in errors


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise", "adam"])
def test_up_to_four_processes_and_two_hundred_steps(tmp_path: Path, optimizer: str) -> None:
    found = [trained(size, tmp_path / f"{size}.json", steps=200, optimizer=optimizer) for size in (1, 2, 3, 4)]
    assert all(one == found[0] for one in found)
    assert found[0]["steps"] == 200
