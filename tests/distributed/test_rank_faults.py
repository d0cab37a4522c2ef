"""An error on one rank ends all of them, with its exit code, its name, and a fix; none hangs.

Two processes run the command line under what torchrun puts into the environment (`pool`). Trouble comes on one of them
at a stage of a step (`rank_trouble`).
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.rank_pool import ROOT, SAVING_RUN, Outcome, RankPool, quality

from adaptive.storage.checkpoint import load_checkpoint
from adaptive.storage.run_directory import newest_first

TROUBLE = str(ROOT / "tests/support/rank_trouble.py")


def troubled(pool: RankPool, out: Path, rank: int, stage: str, after: int, how: str, *words: str) -> list[Outcome]:
    """A run of 8 steps on two ranks, of which one gets into trouble."""
    job = [TROUBLE, str(rank), stage, str(after), how, "run", *SAVING_RUN, "--steps", "8", "--out", str(out), *words]
    return pool.run(2, job)


def codes(outcomes: Sequence[Outcome]) -> list[int]:
    return [one.code for one in outcomes]


def assert_whole(out: Path) -> None:
    """The newest checkpoint is whole; there is one."""
    newest = next(path for path in newest_first(out) if path.exists())
    assert load_checkpoint(newest).meta["steps"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("code", "rank", "stage", "after"),
    [(2, 0, "reading", 3), (5, 1, "forward", 3), (6, 0, "saving", 1), (9, 1, "evaluating", 1)],
)
def test_an_error_ends_all_with_its_exit_code(
    pool: RankPool, tmp_path: Path, code: int, rank: int, stage: str, after: int
) -> None:
    outcomes = troubled(pool, tmp_path / "run", rank, stage, after, f"code-{code}")
    assert codes(outcomes) == [code, code], outcomes
    assert f"error: trouble {code}" in outcomes[rank].err
    assert re.search(
        rf"error: rank {rank} of 2 \(.*, process {outcomes[rank].pid}\): trouble {code}", outcomes[1 - rank].err
    )


def test_a_bug_ends_the_others_with_10(pool: RankPool, tmp_path: Path) -> None:
    outcomes = troubled(pool, tmp_path / "run", 1, "update", 3, "bug")
    assert codes(outcomes) == [10, 1]
    assert "bug: KeyError" in outcomes[1].err
    assert "rank 1 of 2" in outcomes[0].err and "KeyError: 'a bug'" in outcomes[0].err
    assert (
        "checkpoint-2 is complete. Resume from it on any number of ranks: adaptive-train run --resume"
        in outcomes[0].err
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_ends_all_and_leaves_a_whole_checkpoint(pool: RankPool, tmp_path: Path, rank: int) -> None:
    """Each rank writes. At the second save the files of one may hold 1,000 bytes each."""
    outcomes = troubled(pool, tmp_path / "run", rank, "writing", 2, "full")
    assert codes(outcomes) == [6, 6], outcomes
    for one in outcomes:
        assert "checkpoint-4: expected a place that can be written, got an error: [Errno 27]" in one.err.replace(
            "\n", " "
        )
    assert f"rank {rank} of 2" in outcomes[1 - rank].err
    assert_whole(tmp_path / "run")
    assert not list((tmp_path / "run").glob("*.tmp-*"))


@pytest.mark.parametrize(
    ("stage", "how", "code", "told"),
    [
        ("update", "term", 143, r"stopped after step [34]: saved; resume with"),
        ("backward", "drift", 10, "step 4: expected the same dense weights on all ranks, .* on rank 0 of 2"),
    ],
)
def test_what_ends_all_after_the_same_step(
    pool: RankPool, tmp_path: Path, stage: str, how: str, code: int, told: str
) -> None:
    """SIGTERM to one of them; dense weights that drift apart, seen at the next record."""
    outcomes = troubled(pool, tmp_path / "run", 1, stage, 3, how)
    assert codes(outcomes) == [code, code], outcomes
    assert re.search(told, outcomes[0].err, re.DOTALL)
    if how == "term":
        assert_whole(tmp_path / "run")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--lr", "0.5"], "expected settings.optimizer.lr = 0.05 as on rank 0"),
        (["--set", "data.synthetic.seed=7"], "expected data.seed = 0 as on rank 0"),
    ],
)
def test_what_differs_is_named_before_anything_is_written(
    pool: RankPool, tmp_path: Path, changed: list[str], message: str
) -> None:
    words = ["-m", "adaptive", "run", *SAVING_RUN, "--out", str(tmp_path / "run")]
    outcomes = pool.run(2, words, last_rank=changed)
    assert codes(outcomes) == [2, 2], outcomes
    for one in outcomes:
        assert "ranks differ: " in one.err and message in one.err
    assert not (tmp_path / "run/run.json").exists()


@pytest.mark.nightly
def test_a_rank_that_stands_still_is_given_up_after_the_timeout(pool: RankPool, tmp_path: Path) -> None:
    outcomes = troubled(pool, tmp_path / "run", 1, "update", 3, "stand-12", "--set", "ranks.timeout_s=6")
    assert codes(outcomes) == [10, 10], outcomes
    assert "rank 0 of 2" in outcomes[0].err and "batch " in outcomes[0].err  # which, a machine that is busy may decide


@pytest.mark.nightly
@pytest.mark.parametrize(("rank", "stage"), [(0, "serving"), (1, "update"), (0, "saving")])
def test_a_killed_rank_ends_the_others_which_name_it(pool: RankPool, tmp_path: Path, rank: int, stage: str) -> None:
    out = tmp_path / "run"
    after = 1 if stage == "saving" else 4
    outcomes = troubled(pool, out, rank, stage, after, "kill")
    left = outcomes[1 - rank]
    assert outcomes[rank].code == -9 and left.code == 10, outcomes
    assert f"rank {1 - rank} of 2" in left.err and f"No response from rank {rank} of 2" in left.err
    if stage == "saving":
        assert "has no checkpoint yet" in left.err
    else:
        assert_whole(out)
        assert f"on any number of ranks: adaptive-train run --resume {out}" in left.err


@pytest.mark.nightly
def test_after_a_kill_the_same_command_resumes_bit_for_bit(pool: RankPool, tmp_path: Path) -> None:
    """`--auto-resume` on two ranks, killed, then on two."""
    words = ["-m", "adaptive", "run", *SAVING_RUN, "--steps", "8", "--json", "--out"]
    whole = json.loads(pool.run(2, [*words, str(tmp_path / "whole")])[0].out)
    out = tmp_path / "run"
    assert troubled(pool, out, 1, "update", 4, "kill", "--auto-resume")[1].code == -9
    outcomes, _ = pool.run(2, [*words, str(out), "--auto-resume"])
    assert outcomes.code == 0 and "resumed after step 2" in outcomes.err, outcomes
    assert quality(json.loads(outcomes.out)) == quality(whole)
    record = json.loads((out / "run.json").read_text())
    assert len(record["ranks"]) == 2 and [len(one["ranks"]) for one in record["resumed"]] == [2]


@pytest.mark.nightly
def test_torchrun_starts_again_and_the_run_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "--max-restarts", "1"]
    trouble = [TROUBLE, "1", "update", "4", "kill"]
    words = [*trouble, "run", *SAVING_RUN, "--steps", "8", "--auto-resume", "--out", str(out)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "GLOO_SOCKET_IFNAME": "lo"}
    outcomes = subprocess.run([sys.executable, *torchrun, *words], env=env, capture_output=True, text=True, timeout=400)
    assert outcomes.returncode == 0, outcomes.stderr
    assert "holds no run yet" in outcomes.stderr and "resumed after step 2" in outcomes.stderr
    record = json.loads((out / "run.json").read_text())
    assert record["status"] == "finished" and len(record["resumed"]) == 1


@pytest.mark.nightly
def test_a_directory_that_cannot_be_had_ends_all_at_once(pool: RankPool, tmp_path: Path) -> None:
    """Only rank 0 opens it; the others hear why there is no run."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    outcomes = troubled(pool, tmp_path / "run", 0, "update", 99, "kill")
    assert codes(outcomes) == [6, 6], outcomes
    assert (
        "expected an empty directory" in outcomes[0].err
        and "expected an empty directory" in outcomes[1].err
        and "rank 0 of 2" in outcomes[1].err
    )
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]
