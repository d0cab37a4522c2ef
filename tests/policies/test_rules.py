"""Skip rules beside any policy: what they answer, that placement changes nothing, how they are found and refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import row_stats
from numpy.typing import NDArray
from support.helpers import Trained, random_batches, train, train_slowly
from support.skip_rules import LeaveOut

from adaptive import Adagrad, RowStats, SkipConfig, SkipRule, TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.config import TrainConfig
from adaptive.counters import Counter
from adaptive.embeddings.planning.policy_calls import PolicyCaller
from adaptive.errors import PolicyError
from adaptive.optim import SGD, RowOptimizer
from adaptive.plugins import installed_rules, make_rule
from adaptive.policies.fae import FAE
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lfu import LFU
from adaptive.policies.lru import LRU
from adaptive.policies.random_drop import Drop, RandomDrop
from adaptive.policies.rules.defer import Defer
from adaptive.policies.rules.predicted import Predicted
from adaptive.policies.scratchpipe import ScratchPipe
from adaptive.policy import arranges
from adaptive.studies.compare import contenders
from adaptive.studies.policy_checks import check_policy
from adaptive.training.settings import load_settings

TABLES = (
    TableConfig(name="a", num_embeddings=12, embedding_dim=4, features=("x", "y")),
    TableConfig(name="b", num_embeddings=30, embedding_dim=16, pooling="mean"),
)
BATCHES = random_batches(TABLES, 60, seed=3, samples=4)
SKIP = SkipConfig(interval=4, hot_rows="100%", min_accesses=3, feedback_delay=5)


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


class SmallUpdates(SkipRule):
    """Waits for more visits the smaller a row's updates are, for tables that nowhere come near saturation."""

    warmup = 8

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        return np.where(rows.update_size < 0.2, 3, np.where(rows.update_size < 0.6, 2, 1))


RULES: dict[str, Any] = {
    "sizes": SmallUpdates,
    "skipped": lambda: LeaveOut(lambda rows: (rows.update_size < 0.3) & ((rows.rows + rows.step) % 4 > 0), most=3),
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
    tier = TierConfig(device_rows=rows, poison=True, when_full="reduce_lookahead")
    embeddings = TieredEmbeddingBag(TABLES, tier, policy=policy, optimizer=optimizer, skip=rule)
    trained = train(embeddings, TABLES, BATCHES, depth)
    return trained, embeddings.statistics.counts(), embeddings


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


def test_one_rule_at_a_time() -> None:
    """The rule that is asked for takes the place of the one that the policy carries."""
    with TieredEmbeddingBag(TABLES, policy=RandomDrop, skip="defer") as embeddings:
        assert isinstance(embeddings.policy.rule, Defer) and not arranges(embeddings.policy)
    with TieredEmbeddingBag(TABLES, policy=RandomDrop(share=0.5), skip=SKIP) as embeddings:
        assert isinstance(embeddings.policy.rule, Drop) and arranges(embeddings.policy)
    with TieredEmbeddingBag(TABLES, policy=RandomDrop) as embeddings:  # skipping is not switched on
        assert embeddings.policy.rule is None and not arranges(embeddings.policy)


def test_off_equals_the_run_without_skipping() -> None:
    plain = train_slowly(TABLES, BATCHES, Adagrad(lr=0.1))
    for policy in ("slipstream", "scratchpipe", LRU):
        trained, counts, embeddings = run("off", policy, depth=2)
        trained.assert_equals(plain)
        assert counts[Counter.SKIPPED_UPDATES] == 0 and not embeddings.defers


# --- what they answer ------------------------------------------------------------------------------------------------


def test_a_saturated_row_waits_until_it_moves_by_5_percent() -> None:
    """A random walk with steps of 2.5% has moved by 5% after 4 of them. Other rows do not wait."""
    sizes = [0.051, 0.05, 0.0499, 0.026, 0.025, 0.0125, 0.0, np.nan]
    rows = row_stats(8, update_size=sizes, saturated=np.array(sizes) < 0.05)
    assert Defer().visits(rows).tolist() == [1, 1, 1, 3, 4, 16, 16, 1]
    assert Defer(at_most=8).visits(rows).tolist() == [1, 1, 1, 3, 4, 8, 8, 1]


def test_the_bound_follows_from_the_optimizer_unless_set() -> None:
    def most(optimizer: str, **options: Any) -> int:
        rule = Defer(**options)
        rule.begin(optimizer)
        return rule.most

    assert [most(name) for name in ("rowwiseadagrad", "adagrad", "sgd", "adam")] == [16, 16, 4, 8]
    assert most("sgd", at_most=9) == 9


def test_nothing_waits_in_the_warm_up() -> None:
    policy = LRU()
    policy.rule = Answers(lambda rows: np.full(len(rows), 5))  # whose warm-up is 100 batches
    embeddings = TieredEmbeddingBag(TABLES, TierConfig(device_rows="100%"), policy=policy, skip=SKIP)
    train(embeddings, TABLES, BATCHES, 0)
    statistics = embeddings.statistics.take()
    assert statistics.counts[:, Counter.SKIPPED_UPDATES].sum() == 0


def test_a_rules_report_does_not_hide_the_policys() -> None:
    policy = FAE()
    policy.rule = Predicted()
    policy.rule.seen_inputs, policy.seen_inputs = 3, 8
    found = PolicyCaller(policy).reported()
    assert (found["seen_inputs"], found["rule.seen_inputs"], found["rule.current_factor"]) == (8, 3, 0.0)
    policy.rule = Answers()
    policy.rule.reported = ("nothing",)  # type: ignore[misc]
    with pytest.raises(PolicyError, match=r"skip rule Answers\.reported: expected names of numeric attributes"):
        PolicyCaller(policy).reported()


# --- wrong answers, names and settings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, r"skip rule Answers.visits at batch 4: expected an array of shape \(\d+,\), got NoneType"),
        (lambda rows: np.ones(1 + len(rows), np.int64), r"expected an array of shape"),
        (lambda rows: np.ones(len(rows)), r"expected integers, got dtype float64"),
        (lambda rows: -rows.accesses, r"expected numbers of at least 1, got -\d+ for row"),
        (
            lambda rows: 0 * rows.rows,
            r"numbers of at least 1, got 0 for row \d+ \(set least = 0",
        ),
        (lambda rows: 1 // 0, r"skip rule Answers.visits at batch 4 raised ZeroDivisionError"),
    ],
)
def test_wrong_answers_name_the_rule_and_the_batch(answer: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        run(Answers(answer))


def test_rules_are_found_by_name_module_and_file(tmp_path: Path) -> None:
    assert {"defer", "predicted"} <= set(installed_rules())
    rule = make_rule("defer+at_most=7+warmup=3")
    assert isinstance(rule, Defer) and (rule.most, rule.warmup) == (7, 3)
    assert isinstance(make_rule("adaptive.policies.random_drop:Drop+share=0.1"), Drop)
    path = tmp_path / "mine.py"
    path.write_text(
        "import numpy as np\nfrom adaptive import SkipRule\n\n\nclass Mine(SkipRule):\n"
        "    def visits(self, rows):\n        return np.where(rows.accesses > 1000, 4, 1)\n"
    )
    assert type(make_rule(f"{path}:Mine")).__name__ == "Mine"
    trained, _, embeddings = run(f"{path}:Mine")
    trained.assert_equals(train_slowly(TABLES, BATCHES, Adagrad(lr=0.1)))
    assert type(embeddings.policy.rule).__name__ == "Mine"


# --- the contract, and the command line ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        "defer",
        "defer+warmup=0",
        "predicted+warmup=1",
        "adaptive.policies.random_drop:Drop",
    ],
)
def test_the_rules_here_keep_the_contract(rule: str) -> None:
    assert [result for result in check_policy(rule) if not result.passed] == []


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
        return [result.check for result in check_policy(rule) if not result.passed]

    assert failed(Forgetful)[0] == "same inputs, same answers"
    assert failed(Answers)[0] == "answers are valid, inputs unchanged"


def test_a_comparison_takes_a_rule_beside_a_policy() -> None:
    def load(spec: str, sets: Sequence[str]) -> TrainConfig:
        return load_settings(sets=[f"policy={spec}", *sets])[0]

    with_rule, without, own = contenders("lfu+skip=defer+at_most=7,lfu,slipstream+skip=off", [], load)
    assert with_rule.config.skip is not None and with_rule.config.skip.rule == "defer+at_most=7"
    assert without.config.skip is not None and without.config.skip.rule is None
    assert own.config.skip is not None and own.config.skip.rule == "off"
    with pytest.raises(PolicyError, match="skip rule Defer has no parameter bond"):
        contenders("lfu+skip=defer+bond=1", [], load)
