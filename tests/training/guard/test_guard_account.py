"""What the report says was left out: what was undone is not among it, and equal tables are said to be equal."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.guarded import LAX, STRICT, Outcome, assert_same_numbers, plain_run, run, toy_data  # noqa: F401 (fixtures)
from support.guarded_policies import Defer, DeferOne, DropHalf, Freeze, FreezeLate, Plain
from support.toy_runs import Hooked, data_fixture, in_model, nothing_is_left_behind, parts_of  # noqa: F401 (fixtures)

from adaptive.policy import Policy
from adaptive.training.guard.account import Account, GuardState, SkipCounts, shares
from adaptive.training.telemetry.record import IntervalRecord

SAME = "skipped: nothing in the end. The tables equal those of a run that skips nothing\n"
OTHER = "The tables differ from those of a run that skips nothing\n"


@pytest.mark.parametrize(
    ("policy", "guard", "depth", "undone", "same"),
    [
        (Defer, {"budget": STRICT}, 3, (20, 56), True),  # stopped at the first check
        (Freeze, {"budget": STRICT}, 0, (20, 56), True),
        (Freeze, {"budget": STRICT, "warmup": 145, "steps": 25, "holdout": 100}, 2, (145, 180), True),  # at the end
        (FreezeLate, {"budget": 0.02, "steps": 20, "holdout": 320, "every": 20}, 0, (100, 126), True),  # after others
        (Freeze, {"budget": 0.05}, 3, (20, 56), False),  # reduced, then kept
        (Freeze, {"budget": LAX}, 0, None, False),  # kept
        (Freeze, {"budget": LAX, "warmup": 150}, 3, None, True),  # too short
        (DeferOne, {"budget": STRICT}, 0, None, True),  # idle
    ],
)
def test_what_was_undone_is_told_apart_from_what_was_kept(
    tmp_path: Path,
    policy: type[Policy],
    guard: dict[str, Any],
    depth: int,
    undone: tuple[int, int] | None,
    same: bool,
    plain: Outcome,
) -> None:
    guarded = run(tmp_path, policy, guard, depth=depth, log_every=1)
    updates = sum(t.unique_rows for r in guarded.records if isinstance(r, IntervalRecord) for t in r.tables.values())
    expected = guarded.skipped_between(*undone) if undone else 0
    assert guarded.summary["guard_undone"]["skipped_update_share"] * updates == pytest.approx(expected)
    skipped = guarded.skipped_between(0, 180)
    assert guarded.summary["guard_kept"]["skipped_update_share"] * updates == pytest.approx(skipped - expected)
    assert guarded.summary["skipped_update_share"] * updates == pytest.approx(skipped)  # as counted in training
    assert guarded.summary["guard_exact"] == same == (skipped == expected)
    text = guarded.summary["table"]
    assert ((SAME in text), (OTHER in text)) == (same, not same)
    assert ("skipped, then undone by the guard: " in text) == bool(undone)
    assert ("  skipped, before undoing\n" in text, "  skipped\n" in text) == (bool(undone), not undone and skipped > 0)
    if same:
        assert_same_numbers(guarded, plain)
        assert guarded.skipped_between(guarded.decisions[-1].from_step, 180) == 0
    else:
        assert any(not np.array_equal(guarded.numbers[name], value) for name, value in plain.numbers.items())


@pytest.mark.nightly
def test_runs_that_dropped_inputs_are_never_called_exact(tmp_path: Path) -> None:
    """They fill batches up, so that later batches hold other samples."""
    guarded = run(tmp_path / "a", "random_drop", {"budget": STRICT}, policy_options={"share": 0.5})
    assert guarded.verdicts == ["stop"] and not guarded.summary["guard_exact"]
    undone, left = (guarded.summary[name]["skipped_input_share"] for name in ("guard_undone", "guard_kept"))
    assert undone > 0.2 and undone + left == guarded.summary["skipped_input_share"]
    assert "of inputs\n" in guarded.summary["table"] and SAME not in guarded.summary["table"]
    whole = run(tmp_path / "b", DropHalf, {"budget": STRICT})
    assert whole.summary["guard_kept"]["skipped_input_share"] == 0 and not whole.summary["guard_exact"]
    assert (
        "dropped: no inputs in the end, but batches may hold other samples than without the policy"
        in whole.summary["table"]
    )
    kept = run(tmp_path / "c", DropHalf, {"budget": LAX})
    assert "skipped, then undone" not in kept.summary["table"]
    assert kept.summary["guard_kept"]["skipped_input_share"] == kept.summary["skipped_input_share"] > 0.4


# -- the books ----------------------------------------------------------------------------------------------------


def counted(skipped: int, dropped: int = 0) -> SkipCounts:
    return SkipCounts(updates=10 * skipped, skipped=skipped, lookups=100 * skipped, inputs=1000, dropped=dropped)


def test_rows_are_counted_a_step_late_and_inputs_at_once() -> None:
    """Of 7 skipped updates one came before the check, 4 in it, of which one is counted late, and 2 afterwards."""
    account, now = Account(), GuardState()
    account.read(now, counted(0))
    account.begin(counted(0, dropped=3))
    account.read(now, counted(1, dropped=5))
    account.read(now, counted(4, dropped=6))
    account.undo(counted(4, dropped=9))
    account.read(now, counted(5, dropped=12))
    account.read(now, counted(7, dropped=12))
    assert now.undone.skipped == 4 and now.undone.dropped == 6
    assert now.skip_counts.skipped == 7 and now.skip_counts.dropped == 12
    told = shares(now, Plain())
    assert told["guard_kept"]["skipped_update_share"] == 3 / 70
    assert told["guard_undone"]["skipped_lookup_share"] == 0 and not told["guard_exact"]


def test_after_an_undoing_what_follows_may_be_undone_too() -> None:
    account, now = Account(), GuardState()
    account.read(now, counted(0))
    account.begin(counted(0))
    account.read(now, counted(0))
    account.undo(counted(4))
    account.read(now, counted(5))
    account.undo(counted(8))
    account.read(now, counted(9))
    assert now.undone.skipped == now.skip_counts.skipped == 9 and shares(now, Plain())["guard_exact"]


def test_a_run_that_goes_on_counts_on() -> None:
    """Counters begin at 0 or where they were, as the case may be; both are the same run."""
    for start in (0, 50):
        now = GuardState(skip_counts=SkipCounts(updates=50, skipped=5), undone=SkipCounts(skipped=5))
        account = Account()
        account.read(now, counted(start))
        assert shares(now, Plain())["guard_exact"]
        account.read(now, counted(start + 1))
        assert now.skip_counts.skipped == 6 and now.skip_counts.updates == 60
        assert not shares(now, Plain())["guard_exact"]
