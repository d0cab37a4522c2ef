"""Skip rules beside any policy: what they answer, that placement changes nothing, how they are found and refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import row_stats
from numpy.typing import NDArray
from support.helpers import Trained, bags, one_table, random_batches, step_all, train, train_slowly

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
from adaptive.policies.rules.inputs import Inputs
from adaptive.policies.rules.updates import Updates
from adaptive.policies.samples import probed
from adaptive.policies.scratchpipe import ScratchPipe
from adaptive.policy import arranges
from adaptive.studies.compare.contenders import contenders
from adaptive.studies.policy_checks import check_rule
from adaptive.training.settings import load_settings

TABLES = (
    TableConfig(name="a", num_embeddings=12, embedding_dim=4, features=("x", "y")),
    TableConfig(name="b", num_embeddings=30, embedding_dim=16, pooling="mean"),
)
BATCHES = random_batches(TABLES, 60, seed=3, samples=4)
SKIP = SkipConfig(interval=4, min_visits=1, hot_rows="100%", min_accesses=3, feedback_delay=5)


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
    "visits": lambda: Defer(by="visits", warmup=8, every=3, at_most=4),
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


def test_by_movement_a_row_waits_until_it_moves_by_the_bound() -> None:
    """A random walk that covered `drift` in 16 visits covers half of that in 4. Never more than the 16 looked at."""
    rows = row_stats(6, drift=[0.8, 0.4, 0.2, 0.1, 0.0, np.nan], drift_visits=[16] * 6)
    assert Defer(by="movement", bound=0.2).visits(rows).tolist() == [1, 4, 16, 16, 16, 1]
    assert Defer(by="movement", bound=0.2, at_most=8).visits(rows).tolist() == [1, 4, 8, 8, 8, 1]


def test_by_visits_nothing_is_asked_and_nothing_measured() -> None:
    rule = Defer(by="visits", every=5, at_most=7)
    assert not rule.asks and not rule.watches and (rule.every, rule.at_most) == (5, 7)
    assert Defer(by="movement").every == 1 and Defer(by="least").every == 24 and Defer().by == "visits"


def test_the_bounds_follow_from_the_optimizer_unless_set() -> None:
    def bounds(optimizer: str, **options: Any) -> tuple[float, int, int]:
        rule = Defer(**options)
        rule.begin(optimizer)
        return rule.bound, rule.every, rule.at_most

    assert bounds("rowwiseadagrad") == bounds("adagrad") == (0.3, 24, 16)
    assert bounds("sgd") == (0.3, 32, 4) and bounds("adam") == (0.3, 32, 8)
    assert bounds("adagrad", by="movement") == (0.12, 1, 64)
    assert bounds("sgd", by="movement") == (0.12, 1, 8)
    assert bounds("sgd", by="least", bound=0.5, every=3, at_most=9) == (0.5, 3, 9)


def test_rows_that_move_least_are_skipped_up_to_the_share() -> None:
    """Of 16 visits each, two of four rows are half of the updates; a row of unknown movement is not left out, and one
    that is left out and so unknown counts."""
    rule = Updates(target_skip=0.5, probe_every=0)
    rows = row_stats(5, step=99, accesses=[9, 9, 9, 9, 0], drift=[3, 1, 2, 4, np.nan], drift_visits=[16] * 5)
    assert rule.visits(rows).tolist() == [1, 0, 0, 1, 1]
    assert rule.found_threshold == pytest.approx(0.5)
    unknown = row_stats(4, step=99, accesses=[9] * 4, drift=[np.nan, 1, 2, np.nan], drift_visits=[16] * 4)
    assert rule.visits(unknown).tolist() == [1, 0, 0, 1]
    left_out = row_stats(
        4, step=99, accesses=[9] * 4, drift=[np.nan, 1, 2, 3], drift_visits=[16] * 4, saturated=[True] + [False] * 3
    )
    assert rule.visits(left_out).tolist() == [0, 0, 1, 1]


def test_a_skipped_row_stays_skipped_until_probed_or_moving() -> None:
    rule = Updates(threshold=0.1, hysteresis=2, probe_every=1)
    rows = row_stats(3, drift=[np.nan, 0.6, 1.0], drift_visits=[16] * 3, saturated=[True, True, True])
    assert rule.visits(rows).tolist() == [1, 1, 1]
    rule.probe_every = 0
    assert rule.visits(rows).tolist() == [0, 0, 1]


@pytest.mark.parametrize("restored", [False, True])
def test_a_probed_row_is_judged_as_the_saturated_row_it_was(restored: bool) -> None:
    """Two rows were saturated and let through, two never rested. Between threshold and `hysteresis` times that, only
    the first rests again; the second moves more, and from then on is judged by the threshold, as the others are."""
    rule = Updates(threshold=0.1, hysteresis=2, probe_every=1)
    probed_now = row_stats(4, drift=[np.nan] * 4, drift_visits=[16] * 4, saturated=[True, True, False, False])
    assert rule.visits(probed_now).tolist() == [1, 1, 1, 1]
    rule.probe_every = 0
    unknown_yet = row_stats(4, drift=[np.nan] * 4, drift_visits=[16] * 4)
    assert rule.visits(unknown_yet).tolist() == [1, 1, 1, 1]
    if restored:
        state, rule = rule.state_dict(), Updates(threshold=0.1, hysteresis=2, probe_every=0)
        rule.load_state_dict(state)
    known = row_stats(4, drift=[0.6, 1.0, 0.6, 0.3], drift_visits=[16] * 4)
    assert rule.visits(known).tolist() == [0, 1, 1, 0]
    later = row_stats(4, drift=[0.6] * 4, drift_visits=[16] * 4, saturated=[True, False, False, True])
    assert rule.visits(later).tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("hashed", ["rows", "questions"])
def test_every_row_is_probed_repeatedly(hashed: str) -> None:
    share = np.array([probed(np.arange(500), step, 4) for step in range(0, 64 * 200, 64)])
    each = share.mean(axis=0 if hashed == "rows" else 1)
    assert 0.23 < share.mean() < 0.27 and each.min() > 0.1 and each.max() < 0.4


def test_deferred_rows_are_reported_as_waiting() -> None:
    """Rows 2 and 4 are to wait, but row 4 has too few visits for that: k is the smaller of the rule's answer and its
    visits."""
    skip = SkipConfig(interval=1, min_visits=1, hot_rows="100%", min_accesses=1, feedback_delay=0)
    policy = LRU()
    policy.rule = EvenRowsWait()
    policy.rule.warmup = 0
    embeddings = one_table(6, policy=policy, skip=skip)
    step_all(embeddings, [bags([1, 2]), bags([4, 2]), bags([3])])
    statistics = embeddings.statistics.take()
    assert (statistics.watched_rows.tolist(), statistics.waiting_rows.tolist()) == ([3], [1])
    assert statistics.saturated_rows.tolist() == [0]


def test_nothing_waits_in_the_warm_up() -> None:
    policy = LRU()
    policy.rule = Answers(lambda rows: np.full(len(rows), 5))  # whose warm-up is 100 batches
    embeddings = TieredEmbeddingBag(TABLES, TierConfig(device_rows="100%"), policy=policy, skip=SKIP)
    train(embeddings, TABLES, BATCHES, 0)
    statistics = embeddings.statistics.take()
    assert statistics.waiting_rows.sum() == 0 and statistics.counts[:, Counter.SKIPPED_UPDATES].sum() == 0


def test_a_rules_report_does_not_hide_the_policys() -> None:
    policy = FAE()
    policy.rule = Inputs(threshold=0.5)
    policy.rule.hot_inputs, policy.hot_inputs = 3, 8
    found = PolicyCaller(policy).reported()
    assert (found["hot_inputs"], found["inputs.hot_inputs"], found["inputs.found_threshold"]) == (8, 3, 0.5)
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
            r"numbers of at least 1, got 0 for row \d+ \(set leaves_out = True",
        ),
        (lambda rows: 1 // 0, r"skip rule Answers.visits at batch 4 raised ZeroDivisionError"),
    ],
)
def test_wrong_answers_name_the_rule_and_the_batch(answer: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        run(Answers(answer))


def test_rules_are_found_by_name_module_and_file(tmp_path: Path) -> None:
    assert {"defer", "inputs", "predicted", "updates"} <= set(installed_rules())
    rule = make_rule("defer+by=least+bound=0.125+every=7")
    assert isinstance(rule, Defer) and (rule.by, rule.bound, rule.every) == ("least", 0.125, 7)
    assert isinstance(make_rule("adaptive.policies.rules.updates:Updates+target_skip=0.1"), Updates)
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
        "defer+by=movement",
        "defer+by=visits+warmup=0",
        "updates",
        "updates+warmup=0",
        "inputs+warmup=0",
        "predicted+warmup=1",
        "adaptive.policies.random_drop:Drop",
    ],
)
def test_the_rules_here_keep_the_contract(rule: str) -> None:
    results = check_rule(rule)
    assert [result.check for result in results if not result.passed] == [], results
    assert len(results) == 6


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

    assert failed(Forgetful)[0] == "same inputs, same visits"
    assert failed(Answers)[0] == "visits returns one whole number per row, inputs unchanged"


def test_a_comparison_takes_a_rule_beside_a_policy() -> None:
    def load(label: str, spec: str, options: Any, sets: Any) -> TrainConfig:
        return load_settings(sets=[f"policy={spec}", *sets])[0]

    with_rule, without, own = contenders("lfu+skip=defer+every=7,lfu,slipstream+skip=off", [], load)
    assert with_rule.config.skip is not None and with_rule.config.skip.rule == "defer+every=7"
    assert without.config.skip is not None and without.config.skip.rule is None
    assert own.config.skip is not None and own.config.skip.rule == "off"
    with pytest.raises(PolicyError, match="skip rule Defer has no parameter bond"):
        contenders("lfu+skip=defer+bond=1", [], load)
