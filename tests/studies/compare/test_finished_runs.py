"""Comparisons that resume: reuse finished runs, train the rest, refuse changed ones."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.outcomes import DROP
from support.toy import ToyData, toy_config
from support.toy_runs import train_all

import adaptive.studies.compare.comparison_runs
import adaptive.training.runs
from adaptive.config import TrainConfig
from adaptive.errors import CheckpointError, DeviceMemoryError, InputError
from adaptive.studies.compare import Contender
from adaptive.studies.compare.comparison_runs import Outcome
from adaptive.studies.compare.verdicts import judge


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return (policy, seed) of each training, in order."""
    seen: list[tuple[str, int]] = []
    real = adaptive.training.runs.train_run

    def train(config: TrainConfig, **options: Any) -> dict[str, Any]:
        seen.append((config.policy, config.seed))
        return real(config, **options)

    monkeypatch.setattr(adaptive.studies.compare.comparison_runs, "train_run", train)
    return seen


def rivals(*policies: str, **changed: Any) -> list[Contender]:
    return [Contender(policy, toy_config(policy=policy, **changed)) for policy in policies]


def gist(outcomes: list[Outcome]) -> list[Any]:
    return [(outcome.policy, outcome.seed, outcome.bits, json.dumps(outcome.summary["auc"])) for outcome in outcomes]


def test_only_missing_seeds_and_policies_are_trained(tmp_path: Path, trained: list[tuple[str, int]]) -> None:
    """Also if the new policy comes first, in the place of another."""
    first = train_all(rivals("lru", "lfu"), 1, tmp_path / "out")
    lines: list[str] = []
    trained.clear()
    whole = train_all(
        rivals("scratchpipe", "lru", "lfu"), 2, tmp_path / "out", auto_resume=True, on_progress=lines.append
    )
    assert trained == [("scratchpipe", 0), ("scratchpipe", 1), ("lru", 1), ("lfu", 1)]
    assert [line for line in lines if line.startswith("reusing")] == [
        f"reusing the finished run {tmp_path}/out/seed-0/{run}" for run in ("0-lru", "1-lfu")
    ]  # fmt: skip
    anew = train_all(rivals("scratchpipe", "lru", "lfu"), 2, tmp_path / "anew")
    assert gist(whole) == gist(anew) and set(gist(first)) <= set(gist(whole))
    result = judge(whole, auc_budget=0.0005)
    assert [policy.verdict for policy in result.policies] == ["within"] * 3 and not result.problems
    trained.clear()
    assert gist(train_all(rivals("scratchpipe", "lru", "lfu"), 2, tmp_path / "out", auto_resume=True)) == gist(anew)
    assert not trained


def test_the_folder_of_another_run_is_kept(tmp_path: Path, trained: list[tuple[str, int]]) -> None:
    old = train_all(rivals("lru"), 1, tmp_path)
    new = train_all(rivals("lru", batch_size=8), 1, tmp_path, auto_resume=True)
    assert (old[0].run_dir, new[0].run_dir) == (f"{tmp_path}/seed-0/0-lru", f"{tmp_path}/seed-0/0-lru.2")
    assert len(trained) == 2


def test_failed_and_stopped_runs_are_retrained(
    tmp_path: Path, trained: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("adaptive.training.runs.run.Run._train", _raises(DeviceMemoryError("no room")))
        assert train_all(rivals("lru"), 1, tmp_path)[0].error is not None
    assert json.loads((tmp_path / "seed-0/0-lru/run.json").read_text())["status"] == "stopped"
    (outcome,) = train_all(rivals("lru"), 1, tmp_path, auto_resume=True)
    assert outcome.error is None and outcome.run_dir == f"{tmp_path}/seed-0/0-lru"


def test_the_random_control_is_reused(tmp_path: Path, trained: list[tuple[str, int]]) -> None:
    dropping = rivals("lfu", skip=DROP)
    first = train_all(dropping, 1, tmp_path)
    assert trained == [("lfu", 0), ("random_drop", 0), ("random_drop", 0)]
    repeated = train_all(dropping, 1, tmp_path, auto_resume=True)
    assert len(trained) == 3 and gist(repeated) == gist(first)
    assert [outcome.control_of for outcome in repeated] == [None, "lfu", "lfu"]


def test_runs_of_other_versions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_all(rivals("lru"), 1, tmp_path)
    real = adaptive.studies.compare.comparison_runs.versions()
    monkeypatch.setattr(adaptive.studies.compare.comparison_runs, "versions", lambda: {**real, "torch": "9.9"})
    with pytest.raises(
        CheckpointError, match=re.escape(f"expected a run of torch 9.9, got one of torch {real['torch']}.")
    ):
        train_all(rivals("lru"), 1, tmp_path, auto_resume=True)


def test_changed_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_all(rivals("lru"), 1, tmp_path)
    monkeypatch.setattr(adaptive.studies.compare.comparison_runs, "open_data", lambda config: ToyData(num_train=64))
    with pytest.raises(InputError, match=r"expected the data of .*0-lru"):
        train_all(rivals("lru"), 1, tmp_path, auto_resume=True)


def _raises(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail
