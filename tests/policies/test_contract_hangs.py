"""A policy that does not return fails its check in time, named as in a run; the check itself comes to its end."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.policies.lru import LRU
from adaptive.policy import Policy, RowStats, TierView
from adaptive.studies.policy_checks import CheckResult, check_policy
from adaptive.studies.policy_checks.checks import CHECKS

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


class InInit(LRU):
    def __init__(self) -> None:
        released.wait()


class InScore(LRU):
    def score(self, rows: RowStats) -> NDArray[Any]:
        released.wait()
        return super().score(rows)


class InCalibrate(LRU):
    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        if not sample:
            released.wait()


class InState(LRU):
    def state_dict(self) -> dict[str, NDArray[Any]]:
        released.wait()
        return {}


class InLoading(LRU):
    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        released.wait()


class InArrange(LRU):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for number, batch in enumerate(batches):
            if number == 3:
                released.wait()
            yield batch


class WhenTrained(LRU):
    """Where checks ask for a few made-up steps, training asks for all."""

    def score(self, rows: RowStats) -> NDArray[Any]:
        if rows.step == 7:
            released.wait()
        return super().score(rows)


def by_check(results: Sequence[CheckResult]) -> dict[str, CheckResult]:
    return {result.check: result for result in results}


@pytest.mark.parametrize(
    ("cls", "check", "where"),
    [
        (InScore, "score gives", "score at batch 700"),
        (InCalibrate, "calibrating again", "calibrate"),
        (InState, "state_dict restores", "state_dict"),
        (InLoading, "state_dict restores", "load_state_dict"),
        (InArrange, "arrange keeps", "arrange"),
    ],
)
def test_a_method_that_hangs_ends_its_check_and_the_rest(cls: type[Policy], check: str, where: str) -> None:
    results = check_policy(cls, timeout_s=TIMEOUT)
    (number,) = (place for place, result in enumerate(results) if result.check.startswith(check))
    assert all(result.passed for result in results[:number])
    assert results[number].reason == (
        f"policy {cls.__name__}.{where} has not returned for 0.25 s and is left behind. Nothing was moved; look there "
        "for a loop or a wait without an end. For a method that is only slow raise the limit: "
        "--set tier.policy_timeout_s=2.5 (0: none)."
    )
    after = results[number + 1 :]
    assert [result.check for result in results] == ["loads", *CHECKS] and after
    assert {(result.passed, result.was_run, result.reason) for result in after} == {
        (False, False, "not run: a method did not return in an earlier check")
    }


def test_a_policy_that_cannot_be_made_in_time_does_not_load() -> None:
    (result,) = check_policy(InInit, timeout_s=TIMEOUT)
    assert (result.check, result.passed) == ("loads", False)
    assert result.reason.startswith("policy InInit.__init__ has not returned for 0.25 s")


def test_training_inside_the_checks_has_the_same_limit() -> None:
    results = by_check(check_policy(WhenTrained, timeout_s=TIMEOUT))
    found = results["trained tables equal those of a single tier"]
    assert found.was_run and "WhenTrained.score at batch 7 has not returned for 0.25 s" in found.reason
    assert all(results[name].passed for name in list(CHECKS)[:8])


class Endless(LRU):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        latest = next(batches)
        while True:
            latest = next(batches, latest)
            yield latest


class EndlesslyEmpty(LRU):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for batch in batches:
            yield batch
        while True:
            yield batch.take(np.arange(0))


@pytest.mark.parametrize(
    ("cls", "reason"), [(Endless, "yielded sample 176 twice"), (EndlesslyEmpty, "a batch without samples at position")]
)
def test_batches_without_an_end_are_noticed(cls: type[Policy], reason: str) -> None:
    """By the check of `arrange`, which cannot collect them all, and by those that train them."""
    results = by_check(check_policy(cls, timeout_s=0))
    assert reason in results["arrange keeps every sample"].reason
    assert not results["trained tables equal those of a single tier"].passed


def test_no_limit_means_no_thread() -> None:
    names: set[str] = set()

    class Where(LRU):
        def score(self, rows: RowStats) -> NDArray[Any]:
            names.add(threading.current_thread().name)
            return super().score(rows)

    check_policy(Where, timeout_s=0)
    assert "adaptive-policy" not in names
    check_policy(Where, timeout_s=30)
    assert "adaptive-policy" in names
