"""A policy that does not return fails its check in time, named as in a run; the check itself comes to its end."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.skip_rules import LeaveOut

from adaptive.batch import Batch
from adaptive.policies.lru import LRU
from adaptive.policy import Policy, RowStats, SkipRule, TierView
from adaptive.studies.policy_checks import CheckResult, check_policy, check_rule
from adaptive.studies.policy_checks.checks import CHECKS, RULE_CHECKS

TIMEOUT = 0.25
released = threading.Event()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Whatever hangs is let go in the end."""
    released.clear()
    yield
    released.set()
    for thread in threading.enumerate():
        if thread.name == "adaptive-policy":
            thread.join()


def hanging(method: str, when: Callable[..., bool] = lambda *arguments: True) -> type[Policy]:
    """A class whose method does not return when it is called so."""

    def hang(self: Policy, *arguments: Any) -> Any:
        if when(*arguments):
            released.wait()
        return getattr(super(cls, self), method)(*arguments)

    cls = type("Hangs", (LRU,), {method: hang})
    return cls


class InArrange(LRU):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for number, batch in enumerate(batches):
            if number == 3:
                released.wait()
            yield batch


def by_check(results: Sequence[CheckResult]) -> dict[str, CheckResult]:
    return {result.check: result for result in results}


@pytest.mark.parametrize(
    ("cls", "check", "where"),
    [
        (hanging("score"), "score returns", "score at batch 700"),
        (hanging("calibrate", lambda sample, view: not sample), "calibrating again", "calibrate"),
        (hanging("state_dict"), "state_dict restores", "state_dict"),
        (hanging("load_state_dict"), "state_dict restores", "load_state_dict"),
        (InArrange, "arrange keeps", "arrange"),
    ],
)
def test_a_method_that_hangs_ends_its_check_and_the_rest(cls: type[Policy], check: str, where: str) -> None:
    results = check_policy(cls, timeout_s=TIMEOUT)
    (number,) = (place for place, result in enumerate(results) if result.check.startswith(check))
    assert all(result.passed for result in results[:number])
    assert results[number].reason == (
        f"policy {cls.__name__}.{where}: expected an answer within 0.25 s, got none. Nothing was moved. Look for an "
        "endless loop or wait in the method. If it is only slow, raise the limit: "
        "--set tier.policy_timeout_s=2.5 (0: none)."
    )
    after = results[number + 1 :]
    assert [result.check for result in results] == ["loads", *CHECKS] and after
    assert {(result.passed, result.was_run, result.reason) for result in after} == {
        (False, False, "not run, because a method did not return in an earlier check")
    }


def test_a_policy_that_cannot_be_made_in_time_does_not_load() -> None:
    (result,) = check_policy(hanging("__init__"), timeout_s=TIMEOUT)
    assert (result.check, result.passed) == ("loads", False)
    assert result.reason.startswith("policy Hangs.__init__: expected an answer within 0.25 s")


def test_training_inside_the_checks_has_the_same_limit() -> None:
    when_trained = hanging("score", lambda rows: rows.step == 7)  # where checks ask for a few made-up steps
    results = by_check(check_policy(when_trained, timeout_s=TIMEOUT))
    found = results["trained tables equal those of a single tier"]
    assert found.was_run and "Hangs.score at batch 7: expected an answer within 0.25 s" in found.reason
    assert all(results[name].passed for name in list(CHECKS)[:8])


class HangsInVisits(SkipRule):
    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        released.wait()
        return np.ones(len(rows), np.int64)


def test_a_rule_that_hangs_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "visits returns one whole number per row, inputs unchanged"
    monkeypatch.setattr("adaptive.studies.policy_checks.RULE_CHECKS", {name: RULE_CHECKS[name]})
    _, result = check_rule(HangsInVisits, timeout_s=TIMEOUT)
    assert not result.passed and "skip rule HangsInVisits.visits at batch 200: expected an answer" in result.reason


def test_a_policy_is_checked_with_the_rule_that_it_carries() -> None:
    class Carries(LRU):
        def __init__(self) -> None:
            self.rule = LeaveOut(lambda rows: np.random.default_rng().random(len(rows)) < 0.5)

    results = by_check(check_policy(Carries))
    assert "inputs returned different visits" in results["its skip rule passes the checks of rules"].reason


def endless(self: Policy, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
    latest = next(batches)
    while True:
        latest = next(batches, latest)
        yield latest


def endlessly_empty(self: Policy, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
    for batch in batches:
        yield batch
    while True:
        yield batch.take(np.arange(0))


@pytest.mark.parametrize(
    ("arrange", "reason"),
    [(endless, "yielded sample 176 twice"), (endlessly_empty, "expected samples in the batch at position")],
)
def test_batches_without_an_end_are_noticed(arrange: Any, reason: str) -> None:
    """By the check of `arrange`, which cannot collect them all, and by those that train them."""
    results = by_check(check_policy(type("Endless", (LRU,), {"arrange": arrange}), timeout_s=0))
    assert reason in results["arrange keeps every sample"].reason
    assert not results["trained tables equal those of a single tier"].passed
