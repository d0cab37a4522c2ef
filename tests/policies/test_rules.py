"""Skip rules beside any policy: what they answer, that placement changes nothing, how they are found and refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import row_stats
from helpers import Trained, bags, one_table, random_batches, step_all, train, train_slowly
from numpy.typing import NDArray

from adaptive import Adagrad, RowStats, SkipConfig, SkipRule, TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.compare.contenders import contenders
from adaptive.config import TrainConfig
from adaptive.contract import check_rule
from adaptive.counters import Counter
from adaptive.errors import ConfigError, PolicyError
from adaptive.optim import SGD, RowOptimizer
from adaptive.policy_loading import installed_rules, make_rule
from adaptive.settings import load_settings
from policies.defer import Defer
from policies.hybrid import Hybrid
from policies.lfu import LFU
from policies.lru import LRU
from policies.random_drop import RandomDrop
from policies.scratchpipe import ScratchPipe
from policies.updates import Updates

TABLES = (
    TableConfig(name="a", num_embeddings=12, embedding_dim=4, features=("x", "y")),
    TableConfig(name="b", num_embeddings=30, embedding_dim=16, pooling="mean"),
)
BATCHES = random_batches(TABLES, 60, seed=3, samples=4)
SKIP = SkipConfig(interval=4, min_visits=1, hot_rows="100%", min_accesses=3, lag=5)


class EvenRowsWait(SkipRule):
    """A rule of one's own."""

    warmup = 8

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        return np.where(rows.rows % 2 == 0, 3, 1)


class Answers(SkipRule):
    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    def visits(self, rows: RowStats) -> Any:
        return self.answer(rows) if callable(self.answer) else self.answer


def defer(**options: Any) -> Defer:
    return Defer(**{"by": "movement", "warmup": 8, "bound": 3.0, "at_most": 4, **options})


RULES = {
    "movement": defer,
    "visits": lambda: defer(by="visits", every=3),
    "least": lambda: defer(by="least", every=2),
    "updates": lambda: Updates(target_skip=0.5, warmup=8, probe_every=4),
    "own": EvenRowsWait,
}


def run(
    rule: SkipRule | str | SkipConfig | None,
    policy: Any = LRU,
    *,
    depth: int = 0,
    rows: str = "100%",
    optimizer: RowOptimizer = Adagrad(lr=0.1),  # noqa: B008 (immutable)
) -> tuple[Trained, NDArray[np.int64], TieredEmbeddingBag]:
    if isinstance(rule, SkipRule):
        policy = policy()
        policy.rule, rule = rule, SKIP
    tier = TierConfig(device_rows=rows, poison=True, when_full="shallower")
    embeddings = TieredEmbeddingBag(TABLES, tier, policy=policy, optimizer=optimizer, skip=rule)
    trained = train(embeddings, TABLES, BATCHES, depth)
    return trained, embeddings.counts(), embeddings


# --- placement changes nothing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("optimizer", [Adagrad(lr=0.1), SGD(lr=0.3)], ids=["adagrad", "sgd"])
def test_whatever_a_rule_says_placement_changes_no_bit(name: str, optimizer: RowOptimizer) -> None:
    expected, counts, _ = run(RULES[name](), optimizer=optimizer)
    assert counts[Counter.SKIPPED_UPDATES] > 20
    for policy, rows, depth in [(LFU, "85%", 0), (ScratchPipe, "85%", 2), (Hybrid, "auto", 3), (LRU, "100%", 5)]:
        trained, other, _ = run(RULES[name](), policy, rows=rows, depth=depth, optimizer=optimizer)
        trained.assert_equals(expected)
        skipped = [Counter.SKIPPED_UPDATES, Counter.DEFERRED_UPDATES]
        assert other[skipped].tolist() == counts[skipped].tolist()


def test_a_rule_that_never_waits_is_the_run_without_a_rule() -> None:
    trained, counts, embeddings = run(Answers(lambda rows: np.ones(len(rows), np.int64)))
    trained.assert_equals(train_slowly(TABLES, BATCHES, Adagrad(lr=0.1)))
    assert counts[Counter.SKIPPED_UPDATES] == 0 and embeddings.defers and not embeddings.drops_updates


def test_off_is_the_run_without_skipping_whatever_the_policy_says() -> None:
    plain = train_slowly(TABLES, BATCHES, Adagrad(lr=0.1))
    for policy in ("slipstream", LRU):
        trained, counts, embeddings = run("off", policy, depth=2)
        trained.assert_equals(plain)
        assert counts[Counter.SKIPPED_UPDATES] == 0 and not embeddings.defers and embeddings.may_plan_again


# --- what they answer ------------------------------------------------------------------------------------------------


def test_deferral_by_movement_is_the_bound_over_the_movement_of_a_visit() -> None:
    """Over 10 visits: 0.5 each: 1; 0.1: 2; 0.04: 5; nearly none: at most 8; unknown: 1."""
    rows = row_stats(5, drift=[5.0, 1.0, 0.4, 1e-6, np.nan], drift_visits=[10] * 5)
    assert Defer(by="movement", bound=0.2, at_most=8).visits(rows).tolist() == [1, 2, 5, 8, 1]


def test_deferral_by_visits_and_by_the_least_of_both() -> None:
    rows = row_stats(3, drift=[0.4, 0.4, 5.0], drift_visits=[10] * 3, visits=[0, 100, 1000])
    assert Defer(by="visits").visits(rows).tolist() == [1, 3, 8]
    assert Defer(by="least", bound=0.2, at_most=8).visits(rows).tolist() == [1, 3, 1]


def test_the_bound_and_the_limit_follow_from_the_optimizer_unless_they_are_given() -> None:
    rule = Defer(by="movement")
    rule.begin("sgd")
    assert (rule.bound, rule.at_most) == (0.02, 16)
    rule.begin("rowwiseadagrad")
    assert (rule.bound, rule.at_most) == (0.2, 64)
    by_visits = Defer()
    assert by_visits.at_most == 8
    by_visits.begin("sgd")
    assert by_visits.at_most == 4 and not by_visits.watches
    rule = Defer(by="movement", bound=0.5, at_most=3)
    rule.begin("sgd")
    assert (rule.bound, rule.at_most) == (0.5, 3)


def test_left_out_are_the_rows_that_move_least_up_to_the_wanted_share_of_the_updates() -> None:
    """Of 10 visits each, two of four rows are half of the updates; a row of unknown movement is not left out."""
    rule = Updates(target_skip=0.5, probe_every=0)
    rows = row_stats(5, step=99, accesses=[10, 10, 10, 10, 0], drift=[3, 1, 2, 4, np.nan], drift_visits=[10] * 5)
    assert rule.visits(rows).tolist() == [1, 0, 0, 1, 1]
    assert rule.found_threshold == pytest.approx(0.2)


def test_a_row_that_is_left_out_stays_so_until_it_is_probed_or_moves() -> None:
    rule = Updates(threshold=0.1, hysteresis=2, probe_every=1)
    rows = row_stats(3, drift=[np.nan, 1.5, 2.5], drift_visits=[10] * 3, saturated=[True, True, True])
    assert rule.visits(rows).tolist() == [1, 1, 1]
    rule.probe_every = 0
    assert rule.visits(rows).tolist() == [0, 0, 1]


def test_rows_that_wait_or_are_left_out_are_reported_as_saturated() -> None:
    skip = SkipConfig(interval=1, min_visits=1, hot_rows="100%", min_accesses=1, lag=0)
    policy = LRU()
    policy.rule = EvenRowsWait()
    policy.rule.warmup = 0
    embeddings = one_table(6, policy=policy, skip=skip)
    step_all(embeddings, [bags([1, 2]), bags([4, 1]), bags([3])])
    assert embeddings.take_statistics().saturated_rows.tolist() == [2]  # rows 2 and 4


def test_nothing_waits_and_nothing_is_saturated_in_the_warm_up() -> None:
    policy = LRU()
    policy.rule = Answers(lambda rows: np.full(len(rows), 5))  # whose warm-up is 100 batches
    embeddings = TieredEmbeddingBag(TABLES, TierConfig(device_rows="100%"), policy=policy, skip=SKIP)
    train(embeddings, TABLES, BATCHES, 0)
    statistics = embeddings.take_statistics()
    assert statistics.saturated_rows.sum() == 0 and statistics.counts[:, Counter.SKIPPED_UPDATES].sum() == 0


# --- wrong answers, names and settings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, r"skip rule Answers.visits at batch 4 must return an array of shape \(\d+,\), found NoneType"),
        (lambda rows: np.ones(1 + len(rows), np.int64), r"must return an array of shape"),
        (lambda rows: np.ones(len(rows)), r"must return whole numbers, found dtype float64"),
        (lambda rows: -rows.accesses, r"must return numbers of at least 1, found -\d+ for row"),
        (
            lambda rows: 0 * rows.rows,
            r"numbers of at least 1, found 0 for row \d+ \(a rule that leaves updates out says",
        ),
        (lambda rows: 1 // 0, r"skip rule Answers.visits at batch 4 raised ZeroDivisionError"),
    ],
)
def test_wrong_answers_name_the_rule_and_the_batch(answer: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        run(Answers(answer))


def test_rules_are_found_by_name_module_and_file(tmp_path: Path) -> None:
    assert {"defer", "updates"} <= set(installed_rules())
    rule = make_rule("defer+by=least+bound=0.125+every=7")
    assert isinstance(rule, Defer) and (rule.by, rule.bound, rule.every) == ("least", 0.125, 7)
    assert isinstance(make_rule("policies.updates:Updates+target_skip=0.1"), Updates)
    path = tmp_path / "mine.py"
    path.write_text(
        "import numpy as np\nfrom adaptive import SkipRule\n\n\nclass Mine(SkipRule):\n"
        "    def visits(self, rows):\n        return np.where(rows.accesses > 1000, 4, 1)\n"
    )
    assert type(make_rule(f"{path}:Mine")).__name__ == "Mine"
    trained, _, embeddings = run(f"{path}:Mine")
    trained.assert_equals(train_slowly(TABLES, BATCHES, Adagrad(lr=0.1)))
    assert type(embeddings.policy.rule).__name__ == "Mine"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("defr", "no skip rule 'defr'; known: defer, updates; or give module:Class or file.py:Class"),
        ("policies.lru:LRU", "has no class LRU derived from adaptive.SkipRule"),
        ("defer+bond=1", "skip rule Defer has no parameter bond; it has: by, bound, every, at_most, warmup"),
        ("defer+bound=much", "skip rule Defer: bound='much'"),
        ("defer+bound=-1", "skip rule Defer: bound=-1.0: needed more than 0"),
        ("defer+at_most=256", "at_most from 1 to 255"),
        ("updates+target_skip=2", "skip rule Updates: target_skip=2.0"),
        ("updates+hysteresis=0.5", "skip rule Updates: needed hysteresis >= 1"),
    ],
)
def test_what_cannot_be_is_told_at_once(spec: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message.replace("+", r"\+")):
        TieredEmbeddingBag(TABLES, policy="lru", skip=spec)


def test_a_policy_that_leaves_inputs_out_itself_carries_no_rule() -> None:
    with pytest.raises(ConfigError, match="skip rule defer: policy RandomDrop leaves inputs out itself; choose one"):
        TieredEmbeddingBag(TABLES, policy=RandomDrop, skip="defer")


# --- the contract, and the command line ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule", ["defer", "defer+by=movement", "defer+by=least+warmup=0", "updates", "updates+warmup=0"]
)
def test_the_rules_here_keep_the_contract(rule: str) -> None:
    results = check_rule(rule)
    assert [result.check for result in results if not result.passed] == [], results
    assert len(results) == 4


class Forgetful(SkipRule):
    """Its answers depend on what it was asked before it was made: two of a kind differ."""

    made = 0

    def __init__(self) -> None:
        Forgetful.made += 1
        self.number = Forgetful.made
        self.warmup = 0

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        return np.full(len(rows), 1 + self.number % 3)


def test_the_contract_finds_what_is_wrong() -> None:
    def failed(rule: type[SkipRule]) -> list[str]:
        return [result.check for result in check_rule(rule) if not result.passed]

    assert failed(Forgetful)[0] == "same questions, same answers"
    assert failed(Answers)[0] == "visits gives one whole number per row, inputs untouched"


def test_a_comparison_takes_a_rule_beside_a_policy() -> None:
    def load(label: str, spec: str, options: Any, sets: Any) -> TrainConfig:
        return load_settings(sets=[f"policy={spec}", *sets])[0]

    with_rule, without, own = contenders("lfu+skip=defer+bound=0.25,lfu,slipstream+skip=off", [], load)
    assert with_rule.config.skip is not None and with_rule.config.skip.rule == "defer+bound=0.25"
    assert without.config.skip is not None and without.config.skip.rule is None
    assert own.config.skip is not None and own.config.skip.rule is None  # slipstream has a parameter of that name
    with pytest.raises(PolicyError, match="skip rule Defer has no parameter bond"):
        contenders("lfu+skip=defer+bond=1", [], load)
