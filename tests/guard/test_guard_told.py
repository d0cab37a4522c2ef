"""What a guarded run tells of its decisions and their cost, and what it keeps for a later run."""

import json
from dataclasses import asdict
from io import StringIO
from pathlib import Path

import pytest
from guarded import GUARD, SKIP, run, spec, toy_data  # noqa: F401 (fixtures)
from guarded_policies import Freeze
from toy import toy_config
from toy_runs import Hooked, data_fixture, in_model, nothing_is_left_behind, parts_of  # noqa: F401 (fixtures)

from adaptive.config import GuardConfig
from adaptive.guard.guard import Guard
from adaptive.telemetry.recorder import Recorder


def test_every_decision_is_in_every_view(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stream = StringIO()
    found = run(tmp_path, Freeze, {"budget": 0.05}, tensorboard=True, stream=stream)
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("guard")]
    assert len(lines) == len(found.decisions) == 2
    about = "reduce skipping to 15.4 % from batch 56 on: expected change of AUC by the end -0.23"
    assert lines[0].startswith(f"guard after step 50: {about}")
    assert [json.loads(json.dumps(asdict(r))) for r in found.decisions] == found.summary["guard_decisions"]
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for tag, name in (("allowance", "allowance"), ("auc_difference", "auc_difference"), ("auc_change", "auc_change")):
        shown = [(event.step, event.value) for event in events.Scalars(f"guard/{tag}")]
        assert shown == [(r.step, pytest.approx(getattr(r, name))) for r in found.decisions]
    low = [event.value for event in events.Scalars("guard/auc_difference_low")]
    assert low == [pytest.approx(r.auc_difference_ci[0]) for r in found.decisions if r.auc_difference_ci]
    texts = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("guard/decision")]
    assert texts[0].startswith(about) and texts[1].startswith("keep skipping at 15.4 % of what the policy asks for")


def test_the_account_of_what_a_guard_costs(tmp_path: Path) -> None:
    found = run(tmp_path, Freeze, {"budget": 0.05})
    reduced, kept = found.decisions
    assert (reduced.fork_batches, reduced.judged_batches) == (30, 19)  # 600 samples held back
    assert (kept.fork_batches, kept.judged_batches) == (66, 38)  # the same fork went on
    assert (found.summary["guard_fork_batches"], found.summary["guard_judged_batches"]) == (66, 38)
    assert found.summary["guard_undone_batches"] == 36
    assert reduced.fork_bytes > 4 * 4 * 250  # most of 347 rows of width 4
    assert found.summary["time_ms"]["guard"] > 0
    assert (
        "guard: decisions reduce, keep; skipping is allowed at 15.4 % of what the policy asks for; forks trained 66 "
        "batches more (36.7 %), 38 were judged; what was skipped in 36 batches has been undone\n"
    ) in found.summary["table"]


def test_a_run_without_a_guard_says_nothing_of_one(tmp_path: Path) -> None:
    found = run(tmp_path, Freeze)
    assert found.decisions == [] and not [name for name in found.summary if name.startswith("guard")]
    assert "guard" not in found.saved.meta and "guard: " not in found.summary["table"]


# -- going on -----------------------------------------------------------------------------------------------------


def test_what_a_guard_knows_is_saved_and_restored(tmp_path: Path) -> None:
    found = run(tmp_path, Freeze, {"budget": 0.05})
    state = json.loads(json.dumps(found.saved.meta["guard"]))
    assert state["allowance"] == found.summary["guard_allowance"] and state["place"] == 180
    parts, _ = parts_of(policy=spec(Freeze), skip=SKIP)
    settings = GuardConfig(**(GUARD | {"budget": 0.05}))
    guard = Guard(settings, toy_config(policy=spec(Freeze), skip=SKIP), parts, Recorder(parts.embeddings), 1000)
    guard.restore(state)
    assert guard.state() == state
    with parts.embeddings:
        guard.guarded(iter([]))
        assert parts.embeddings.policy.allowance == state["allowance"]
        guard.close()


@pytest.mark.parametrize("begun", [True, False])
def test_a_stopped_run_that_goes_on_skips_nothing(begun: bool) -> None:
    """Stopped by a check, or because it was too short."""
    parts, _ = parts_of(policy=spec(Freeze), skip=SKIP)
    guard = Guard(
        GuardConfig(**GUARD), toy_config(policy=spec(Freeze), skip=SKIP), parts, Recorder(parts.embeddings), 1000
    )
    guard.restore({**guard.state(), "active": False, "allowance": 0.0, "begun": begun})
    with parts.embeddings:
        guard.guarded(iter([]))
        assert parts.embeddings.policy.allowance == 0
        guard.close()
