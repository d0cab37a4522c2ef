"""Settings of the guard from everywhere settings come from, and what is wrong with them in one line."""

from pathlib import Path
from typing import Any

import pytest
from support.guarded import GUARD, SAMPLES, run
from support.guarded_policies import Defer, DropHalf, Freeze
from support.toy import ToyData
from support.toy_runs import data_fixture  # noqa: F401 (fixture)

from adaptive.config import GuardConfig, TrainConfig
from adaptive.errors import ConfigError, PolicyError
from adaptive.policy import Policy
from adaptive.training.runs import training
from adaptive.training.settings import load_settings


def test_off_by_default_and_on_with_any_of_its_settings(tmp_path: Path) -> None:
    assert TrainConfig().guard is None
    assert load_settings(sets=["guard.budget=0.001"])[0].guard == GuardConfig(budget=0.001)
    assert load_settings(environ={"ADAPTIVE_GUARD__STEPS": "50"})[0].guard == GuardConfig(steps=50)
    file = tmp_path / "a.toml"
    file.write_text("[guard]\nwarmup = 7\n")
    assert load_settings(file=file)[0].guard == GuardConfig(warmup=7)
    assert load_settings(file=file, sets=["guard=null"])[0].guard is None
    config = load_settings(sets=["policy=lfu", "policy.half_life=9", "guard.budget=0.0005"])[0]
    assert config.policy_options == {"half_life": 9} and config.guard == GuardConfig()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "guard.budget=0",
            r"guard.budget \(--set\): expected a value greater than 0, got 0 \(maximum loss",
        ),
        ("guard.budget=nan", r"guard.budget .* expected a finite number"),
        ("guard.steps=0", "guard.steps .* expected a value greater than or equal to 1"),
        ("guard.holdout=99", "guard.holdout .* expected a value greater than or equal to 100"),
        ("guard.every=soon", "guard.every .* expected a valid integer"),
        ("guard.warmup=-1", "guard.warmup .* expected a value greater than or equal to 0"),
        ("guard.bugdet=0.1", "guard.bugdet .*unknown key.*; did you mean guard.budget?"),
        ("guard=true", r"guard .* expected one of its keys .guard.budget, guard.warmup, guard.steps"),
    ],
)
def test_mistakes_are_named(given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_settings(sets=[given])
    assert caught.value.exit_code == 2


def of_unknown_length(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = ToyData(SAMPLES)
    monkeypatch.setattr(toy, "num_train_samples", lambda: None)
    monkeypatch.setattr(training, "open_data", lambda *_: toy)


@pytest.mark.parametrize("policy", [Freeze, DropHalf])
def test_dropping_needs_the_length_of_the_run(
    tmp_path: Path, policy: type[Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_unknown_length(monkeypatch)
    with pytest.raises(
        ConfigError,
        match=f"known number of steps because policy .*{policy.__name__} drops .*Set steps",
    ):
        run(tmp_path / "a", policy, {"budget": 1})
    found = run(tmp_path / "b", policy, {"budget": 1e6}, steps=180)
    assert set(found.verdicts) == {"keep"} and found.decisions[0].steps_left == 130


def test_deferral_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_unknown_length(monkeypatch)
    found = run(tmp_path, Defer, {"budget": 1})
    assert found.verdicts == ["keep", "keep"] and found.decisions[0].steps_left is None


def test_a_rule_must_obey_the_allowance(tmp_path: Path, data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data(SAMPLES)

    deaf = DropHalf()
    deaf.rule.allows = lambda numbers: numbers >= 0  # type: ignore[method-assign]
    monkeypatch.setattr("adaptive.training.components.make_policy", lambda *_: deaf)
    before = GUARD["warmup"]
    with pytest.raises(PolicyError, match=f"got {16 * before} before batch {before}"):
        run(tmp_path, DropHalf, {"budget": 1})
