"""What the caller of the policy lets pass."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from contract import DropsOdd, row_stats
from numpy.typing import NDArray
from support.helpers import bags, one_table, step_all

from adaptive.batch import Batch
from adaptive.config import SkipConfig
from adaptive.embeddings.planning.policy_calls import PolicyCaller
from adaptive.errors import PolicyError
from adaptive.plugins import load_policy_class
from adaptive.policies.lru import LRU
from adaptive.policies.random_drop import Drop
from adaptive.policy import InputPolicy, InputRule, Policy, RowStats, SkipRule, TierView


@pytest.mark.parametrize("policy", ["lfu", "lru"])
def test_an_order_evicts_the_same_rows_as_the_score(policy: str) -> None:
    """The same run by a copy of the class whose `score` is asked: plan by plan the same moves."""
    ordered = load_policy_class(policy)

    class Asked(ordered):  # type: ignore[misc, valid-type]
        order = ()

    rng = np.random.default_rng(3)
    batches = [bags(*(rng.zipf(1.3, 6) % 60 for _ in range(4))) for _ in range(60)]
    moves = []
    for cls in (ordered, Asked):
        embeddings = one_table(60, "24", cls, max_candidates=8)
        plans = [planned.works[0].plan for planned in embeddings.look_ahead(batches, depth=0)]
        moves.append([(plan.moves.back_slots.tolist(), plan.moves.fetch_slots.tolist()) for plan in plans if plan])
    assert moves[0] == moves[1]
    assert sum(len(back) for back, _ in moves[0]) > 60


@pytest.mark.parametrize("depth", [0, 4])
def test_a_score_that_fails_does_so_before_slots_run_short(depth: int) -> None:
    class Broken(LRU):
        order = ()

        def score(self, rows: RowStats) -> NDArray[Any]:
            raise KeyError("age")

    embeddings = one_table(60, "60", Broken)  # a slot for each row: none ever has to leave
    with pytest.raises(PolicyError, match=r"Broken\.score"):
        step_all(embeddings, [bags([1]), bags([2]), bags([3])], depth=depth)


def test_an_order_that_is_none_is_a_policy_error() -> None:
    class Wrong(LRU):
        order = ("table",)

    with pytest.raises(PolicyError, match=r"policy Wrong.order: expected \(\) or one of .* got \('table',\)"):
        step_all(one_table(9, "2", Wrong), [bags([1, 2]), bags([3, 4])])


def test_a_message_names_policy_method_batch_and_row() -> None:
    class Unsure(LRU):
        def score(self, rows: RowStats) -> NDArray[Any]:
            return np.array([1.0, np.nan, np.nan])

    with pytest.raises(PolicyError) as error:
        PolicyCaller(Unsure()).score(row_stats(3, step=7, rows=[5, 6, 8]))
    assert str(error.value).startswith(
        "policy Unsure.score at batch 7: expected no NaN, got 2, the first for row 6. Nothing was moved"
    )


class LeavesInScore(LRU):
    def score(self, rows: RowStats) -> NDArray[Any]:
        sys.exit(3)


class LeavesInArrange(LRU, InputPolicy):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        yield next(batches)
        sys.exit(3)


@pytest.mark.parametrize("policy", [LeavesInScore, LeavesInArrange])
def test_a_policy_does_not_end_the_run(policy: type[Policy]) -> None:
    embeddings = one_table(100, "2", policy=policy)
    with pytest.raises(PolicyError, match=rf"policy {policy.__name__}\..* raised SystemExit: 3"):
        step_all(embeddings, [bags([1, 2]), bags([3, 4])], depth=0)


# --- arrange -------------------------------------------------------------------------------------------------------


class ArrangesNothing(LRU, InputPolicy):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Any:
        return None


class ArrangesNumbers(LRU, InputPolicy):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Any:
        return (len(batch.ids) for batch in batches)


class FailsToArrange(LRU, InputPolicy):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        yield next(batches)
        raise KeyError("lost")


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("policy", [ArrangesNothing, ArrangesNumbers, FailsToArrange])
def test_a_policy_that_cannot_arrange_is_a_policy_error(policy: type[Policy], depth: int) -> None:
    with pytest.raises(PolicyError, match=rf"policy {policy.__name__}\.arrange"):
        step_all(one_table(policy=policy), [bags([1]), bags([2])], depth=depth)


class LosesSamples(LRU, InputPolicy):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for number, batch in enumerate(batches):
            if number != 1:
                yield batch


class GivesThemTwice(LRU, InputPolicy):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for batch in batches:
            yield from (batch, batch)


class StopsEarly(LRU, InputPolicy):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        yield next(batches)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (LosesSamples, r"got 3 of the 4 samples that it has read\. .* carry an InputRule"),
        (GivesThemTwice, "got 8 of the 4 samples that it has read"),
        (StopsEarly, "got 1 of the 1 samples that it has read and did not read the rest"),
    ],
)
@pytest.mark.parametrize("skip", [None, DropsOdd], ids=["no rule", "behind a rule that drops inputs"])
def test_samples_are_not_left_out_without_a_word(
    policy: type[Policy], message: str, depth: int, skip: type[SkipRule] | None
) -> None:
    """A rule may leave samples out, and counts them; the policy gives every sample that the rule left."""
    batches = [bags(*[[row]] * (2 if skip else 1)) for row in range(4)]
    with pytest.raises(PolicyError, match=message):
        step_all(one_table(policy=policy, skip=skip and skip()), batches, depth=depth)


class NeverTwice(LRU):
    """A policy whose scores are asked for, and a rule with the same check."""

    order = ()

    def __init__(self) -> None:
        self.calls, self.most = 0, 0
        self.rule = AlsoDrops(self)

    def check(self) -> None:
        self.calls += 1
        self.most = max(self.most, self.calls)
        time.sleep(0.001)
        self.calls -= 1

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        self.check()
        return rows.last_access


class AlsoDrops(Drop):
    def __init__(self, policy: NeverTwice) -> None:
        super().__init__(share=0.5)
        self._policy = policy

    def keep(self, batch: Batch, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        self._policy.check()
        return super().keep(batch, rows)


@pytest.mark.parametrize("threads", [0, 1])
def test_no_call_begins_before_the_latest_ends(threads: int) -> None:
    policy = NeverTwice()
    embeddings = one_table(60, "40", policy, skip=SkipConfig(), plan_threads=threads)
    batches = [bags(*([row] for row in (np.arange(8) + 8 * n) % 60)) for n in range(40)]
    assert len(step_all(embeddings, batches, depth=4)) == 20
    assert policy.most == 1


class Passes(LRU, InputPolicy):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        yield from batches


# --- keep ----------------------------------------------------------------------------------------------------------


class Answers(InputRule):
    def __init__(self, answer: Callable[[Batch], object]) -> None:
        self.answer = answer

    def keep(self, batch: Batch, rows: NDArray[np.int64]) -> Any:
        assert not rows.flags.writeable and len(rows) == len(batch.ids)
        return self.answer(batch)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda batch: None, r"expected an array of shape \(2,\), got NoneType"),
        (lambda batch: np.ones(3), r"expected an array of shape \(2,\), got shape \(3,\)"),
        (lambda batch: np.array(["1", "0"]), r"expected numbers, got dtype <U1"),
        (lambda batch: np.array([1, np.nan]), r"expected finite weights of at least 0, got nan for sample 1"),
        (lambda batch: np.array([-0.5, 1]), r"expected finite weights of at least 0, got -0.5 for sample 0"),
        (lambda batch: 1 // 0, "raised ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("policy", [LRU, Passes])
def test_wrong_weights_name_the_rule(policy: type[Policy], answer: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=rf"^skip rule Answers\.keep:? ?{message}"):
        step_all(one_table(policy=policy, skip=Answers(answer)), [bags([1], [2])])


def test_kept_samples_fill_batches_and_carry_their_weights() -> None:
    """The first of each pair is dropped; weights of 1 are left out until others come; the rest weighs its share."""
    rule = Answers(lambda batch: np.array([0, batch.ids[1] // 4]))
    rule.batch_share = 1.0
    done = step_all(one_table(policy=LRU, skip=rule), [bags([0], [row]) for row in (4, 5, 8, 9, 8)])
    assert [planned.batch.ids.tolist() for planned in done] == [[4, 5], [8, 9], [8]]
    assert [planned.extras.get("weight", "none") for planned in done[:1]] == ["none"]
    assert [planned.extras["weight"].tolist() for planned in done[1:]] == [[2, 2], [1]]
    assert (rule.seen_inputs, rule.dropped_inputs, rule.weight_sums) == (10, 5, (8, 14))
    assert rule.effective_share == 8**2 / (5 * 14)


@pytest.mark.parametrize(("share", "sizes"), [(1.0, [4, 4]), (0.5, [2, 2, 2, 2]), (0.75, [3, 3, 2]), (0.01, [1] * 8)])
def test_batches_have_the_size_that_the_rule_wants(share: float, sizes: list[int]) -> None:
    rule = Answers(lambda batch: np.array([1, 0, 0, 1]))
    rule.batch_share = share
    done = step_all(one_table(policy=LRU, skip=rule), [bags([1], [2], [3], [4])] * 4)
    assert [planned.num_samples for planned in done] == sizes
