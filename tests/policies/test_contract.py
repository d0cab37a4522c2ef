"""Every policy passes the contract; a policy that breaks it fails the check that says how."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from contract import BUILT_INS, POLICIES, policy_id
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.plugins import installed_policies, load_policy_class
from adaptive.policies.lru import LRU
from adaptive.policies.static import Static
from adaptive.policy import Policy, RowStats, TierView
from adaptive.studies.policy_checks import check_policy
from adaptive.studies.policy_checks.checks import CHECKS


@pytest.mark.parametrize("case", POLICIES, ids=policy_id)
def test_every_policy_passes(case: tuple[type[Policy], dict[str, Any]]) -> None:
    cls, options = case
    assert [(r.check, r.reason) for r in check_policy(cls, options) if not r.passed] == []


def test_every_installed_policy_is_in_the_list() -> None:
    assert {load_policy_class(name) for name in installed_policies()} <= set(BUILT_INS)


class WrongShape(LRU):
    def score(self, rows: RowStats) -> NDArray[Any]:
        return rows.last_access[:1]


class NotAnArray(LRU):
    def score(self, rows: RowStats) -> Any:
        return rows.last_access.tolist()


class NaN(LRU):
    def score(self, rows: RowStats) -> NDArray[Any]:
        return rows.drift


class Complex(LRU):
    def score(self, rows: RowStats) -> NDArray[Any]:
        return rows.last_access + 1j


class Writes(LRU):
    def score(self, rows: RowStats) -> NDArray[Any]:
        rows.last_access[:] = 0
        return rows.last_access


class OrderedOtherwise(Policy):
    order = ("last_access", "accesses")

    def score(self, rows: RowStats) -> NDArray[Any]:
        return rows.last_access


class OrderedByNothing(OrderedOtherwise):
    order = ("drift",)

    def score(self, rows: RowStats) -> NDArray[Any]:
        return rows.rows


class Undetermined(LRU):
    def score(self, rows: RowStats) -> NDArray[Any]:
        return np.random.default_rng().random(len(rows))


class CountsCalibrations(LRU):
    calls = 0

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        self.calls += 1

    def score(self, rows: RowStats) -> NDArray[Any]:
        return rows.last_access * (1 - 2 * (self.calls % 2))


class NeedsASample(LRU):
    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        view.rows(sample[0])


class Forgets(Static):
    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"rows": np.arange(3), "counts": np.arange(3)}


class ObjectState(LRU):
    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"names": np.array([None])}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        pass


class Loses(LRU):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for batch in batches:
            yield batch.take(np.arange(1, batch.num_samples))


class Repeats(LRU):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for batch in batches:
            yield batch
            yield batch


class Relabels(LRU):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for batch in batches:
            yield Batch(batch.dense, batch.ids, batch.offsets, 1 - batch.labels)


class NotBatches(LRU):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Any]:
        for batch in batches:
            yield batch.ids


class ReadsAll(LRU):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        return iter(list(batches))


class NoDefault(LRU):
    def __init__(self, *, weight: float) -> None:
        self.weight = weight


class NotAnnotated(LRU):
    def __init__(self, *, weight=1.0) -> None:  # type: ignore[no-untyped-def]
        self.weight = weight


@pytest.mark.parametrize(
    ("cls", "check", "reason"),
    [
        (WrongShape, "score gives", "must have shape (0,)|must have shape (2,), found (1,)"),
        (NotAnArray, "score gives", "must return an array, found list"),
        (NaN, "score gives", "score is NaN for"),
        (OrderedOtherwise, "order says", "score does not order 1000 rows by last_access and accesses"),
        (OrderedByNothing, "order says", "order is ('drift',); it must be () or one of ('accesses',)"),
        (Complex, "score gives", "real numbers, found complex128"),
        (Writes, "score gives", "read-only"),
        (Undetermined, "same questions", "answered differently"),
        (CountsCalibrations, "calibrating again", "it answers differently"),
        (NeedsASample, "calibrating again", "IndexError"),
        (Forgets, "state_dict", "restored from its own state, it answers differently"),
        (ObjectState, "state_dict", "state names must hold numbers or text, found object"),
        (Loses, "arrange keeps", "arrange lost 12 of 187 samples; only a skip rule leaves inputs out"),
        (Repeats, "arrange keeps", "yielded sample 0 twice"),
        (Relabels, "arrange keeps", "changed sample 0"),
        (NotBatches, "arrange keeps", "yielded ndarray at position 0, needed a Batch"),
        (ReadsAll, "arrange is lazy", "read 1000 batches before it yielded one"),
        (NotAnnotated, "parameters", "parameter weight has no annotation"),
    ],
)
def test_a_broken_policy_fails_the_check_that_says_how(cls: type[Policy], check: str, reason: str) -> None:
    failed = {result.check: result.reason for result in check_policy(cls) if not result.passed}
    found = [text for name, text in failed.items() if name.startswith(check)]
    assert found and any(part in found[0] for part in reason.split("|")), failed


@pytest.mark.parametrize(
    ("spec", "options", "reason"),
    [
        ("no_such_policy", {}, "no policy 'no_such_policy'"),
        (LRU, {"weight": 1}, "LRU has no parameter weight"),
        (NoDefault, {}, "weight"),
    ],
)
def test_a_policy_that_cannot_be_made_fails_to_load_and_nothing_else_runs(
    spec: str | type[Policy], options: dict[str, Any], reason: str
) -> None:
    (result,) = check_policy(spec, options)
    assert (result.check, result.passed) == ("loads", False)
    assert reason in result.reason


class Soonest(LRU):
    """Reads what it is never told: it asks for no window."""

    def score(self, rows: RowStats) -> NDArray[Any]:
        return -rows.next_access


class SoonestInSight(Soonest):
    window = 4


def test_next_access_without_a_window_is_a_doubt_and_no_failure() -> None:
    check = {"who reads next_access has a window": CHECKS["who reads next_access has a window"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adaptive.studies.policy_checks.CHECKS", check)
        (_, doubt), (_, fine) = check_policy(Soonest), check_policy(SoonestInSight)
    assert doubt.passed and doubt.is_doubtful and "set window = 16" in doubt.reason
    assert fine.passed and not fine.is_doubtful
