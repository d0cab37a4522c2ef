"""Every policy passes the contract; a policy that breaks it fails the check that says how."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from contract import BUILT_INS, POLICIES, policy_id
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.plugins import installed_policies, load_policy_class
from adaptive.policies.hotline import Hotline
from adaptive.policies.lru import LRU
from adaptive.policies.static import Static
from adaptive.policy import Calibrates, Follows, InputPolicy, Policy, RowStats, TierView
from adaptive.studies.policy_checks import CHECKS, check_policy

LEARNING = (Hotline, {"learn": 20, "logger": "srrip"})  # still, when it is saved


@pytest.mark.parametrize("case", [*POLICIES, LEARNING], ids=policy_id)
def test_every_policy_passes(case: tuple[type[Policy], dict[str, Any]]) -> None:
    cls, options = case
    assert [(r.check, r.reason) for r in check_policy(cls, options) if not r.passed] == []


def test_every_installed_policy_is_in_the_list() -> None:
    assert {load_policy_class(name) for name in installed_policies()} <= set(BUILT_INS)


def broken(base: type[Policy] = LRU, **members: Any) -> type[Policy]:
    """A class with other methods; those that are lambdas take `self`, as methods do."""
    return type("Broken", (base,), members)


class Sampled(LRU, Calibrates):
    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        pass


class Regroups(LRU, InputPolicy):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        return batches


class NoDefault(LRU):
    def __init__(self, *, weight: float) -> None:
        self.weight = weight


class NotAnnotated(LRU):
    def __init__(self, *, weight=1.0) -> None:  # type: ignore[no-untyped-def]
        self.weight = weight


def writes(self: Policy, rows: RowStats) -> NDArray[Any]:
    rows.last_access[:] = 0
    return rows.last_access


def loses(self: Policy, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
    return (batch.take(np.arange(1, batch.num_samples)) for batch in batches)


def relabels(self: Policy, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
    return (Batch(batch.dense, batch.ids, batch.offsets, 1 - batch.labels) for batch in batches)


class ReversesLater(LRU, InputPolicy):
    arranged = 0

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for batch in batches:
            self.arranged += 1
            yield batch if self.arranged < 9 else batch.take(np.arange(batch.num_samples)[::-1])


class CountsFaster(LRU, Follows):
    total = by = 0

    def looked_up(self, number: int, rows: NDArray[np.int64], view: TierView) -> None:
        self.by += 1
        self.total += self.by

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"total": np.array([self.total])}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        (self.total,) = state["total"].tolist()


BROKEN = {
    "follows without saying so": (
        broken(admitted=lambda self, number, rows: None),
        "methods belong",
        "admitted is never called: derive from adaptive.Follows",
    ),
    "nan": (broken(score=lambda self, rows: rows.update_size), "answers are valid", "expected no NaN, got"),
    "writes": (broken(score=writes), "answers are valid", "read-only"),
    "ordered otherwise": (
        broken(score=lambda self, rows: rows.last_access, order=("last_access", "accesses")),
        "order agrees",
        "score does not order 1000 rows by last_access and accesses",
    ),
    "ordered by nothing": (
        broken(score=lambda self, rows: rows.rows, order=("drift",)),
        "order agrees",
        "order: expected () or one of ('accesses',)",
    ),
    "undetermined": (
        broken(score=lambda self, rows: np.random.default_rng().random(len(rows))),
        "same inputs",
        "returned different answers",
    ),
    "needs a sample": (
        broken(Sampled, calibrate=lambda self, sample, view: view.rows(sample[0])),
        "answers are valid",
        "IndexError",
    ),
    "forgets": (
        broken(Static, state_dict=lambda self: {"rows": np.arange(3), "counts": np.arange(1, 4)}),
        "state_dict",
        "restored from its state_dict(), it returns other answers",
    ),
    "loads nothing": (
        broken(Hotline, load_state_dict=lambda self, state: None),
        "state_dict",
        "restored from its state_dict(), it has another state",
    ),
    "forgets how it arranges": (
        ReversesLater,
        "state_dict",
        "restored from its state_dict(), it returns other answers",
    ),
    "forgets what it counts by": (CountsFaster, "state_dict", "another state a few batches later"),
    "objects as state": (
        broken(state_dict=lambda self: {"names": np.array([None])}, load_state_dict=lambda self, state: None),
        "state_dict",
        "state_dict()['names']: expected an array of numbers or text, got object",
    ),
    "loses": (
        broken(Regroups, arrange=loses),
        "arrange keeps",
        "arrange: expected every sample once, got 175 of the 187",
    ),
    "repeats": (
        broken(
            Regroups,
            arrange=lambda self, batches, view: (batch for batch in batches for _ in range(2)),
        ),
        "arrange keeps",
        "yielded sample 0 twice",
    ),
    "relabels": (
        broken(Regroups, arrange=relabels),
        "arrange keeps",
        "changed sample 0",
    ),
    "reads all": (
        broken(Regroups, arrange=lambda self, batches, view: iter(list(batches))),
        "arrange is lazy",
        "read 1000 batches before it yielded one",
    ),
    "not annotated": (NotAnnotated, "parameters", "parameter weight has no annotation"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_policy_fails_the_check_that_says_how(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cls, name, reason = BROKEN[case]
    only(monkeypatch, name)
    _, result = check_policy(cls)
    assert not result.passed and any(part in result.reason for part in reason.split("|")), result


def only(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Run the one check whose name begins so, besides `loads`."""
    checks = {check: function for check, function in CHECKS.items() if check.startswith(name)}
    monkeypatch.setattr("adaptive.studies.policy_checks.CHECKS", checks)


@pytest.mark.parametrize(
    ("spec", "options", "reason"),
    [
        ("no_such_policy", {}, "no policy 'no_such_policy'"),
        (LRU, {"weight": 1}, "LRU has no parameter weight"),
        (NoDefault, {}, "weight"),
    ],
)
def test_a_policy_that_cannot_be_created_fails_to_load(
    spec: str | type[Policy], options: dict[str, Any], reason: str
) -> None:
    (result,) = check_policy(spec, options)
    assert (result.check, result.passed) == ("loads", False)
    assert reason in result.reason


def test_next_access_without_a_window_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "window is set")
    soonest = broken(score=lambda self, rows: -rows.next_access)  # which is told only where there is a window
    (_, failed), (_, fine) = check_policy(soonest), check_policy(broken(soonest, window=4))
    assert not failed.passed and "Set window = 16" in failed.reason
    assert fine.passed
