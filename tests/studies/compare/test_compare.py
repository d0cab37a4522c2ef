"""Comparisons: one run per policy and seed, all else equal; verdicts, reports and problems."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from support.outcomes import BUDGET, DROP, EAGER, SKIP, by_policy, outcome
from support.toy import toy_config
from support.toy_runs import train_all

import adaptive.studies.compare.comparison_runs
import adaptive.training.runs
from adaptive.config import TrainConfig
from adaptive.errors import ConfigError, DeviceMemoryError, InputError, OutputError, PolicyError
from adaptive.studies.compare import Contender, contenders
from adaptive.studies.compare.comparison_report import comparison_csv, comparison_document
from adaptive.studies.compare.comparison_runs import Outcome, claim, with_seed, write_record
from adaptive.studies.compare.verdicts import interval, judge
from adaptive.training.settings import load_settings


def rival(policy: str, **changed: Any) -> Contender:
    return Contender(policy, toy_config(**{"policy": policy, "skip": SKIP} | changed))


def compared(rivals: Sequence[Contender], directory: Path, seeds: int = 2) -> dict[str, Any]:
    return judge(train_all(rivals, seeds, claim(str(directory))), auc_budget=BUDGET)


# --- real trainings --------------------------------------------------------------------------------------------------


def test_comparison_of_every_policy(tmp_path: Path) -> None:
    rivals = [
        rival("lfu", skip=EAGER),
        rival("hybrid", tier={"device_rows": "auto"}),
        rival("lru"),
        rival("contract:Regrouping", tier={"device_rows": "100%"}),
    ]
    result = compared(rivals, tmp_path / "out")
    policies = by_policy(result)
    assert (result.control, result.problems, result.seeds) == ("hybrid", [], [0, 1])
    assert list(policies) == ["lfu", "hybrid", "lru", "contract:Regrouping"]  # no control without dropped inputs
    assert policies["hybrid"].reason == "the control"
    assert (policies["lru"].verdict, policies["lru"].reason) == ("within", "equal to the control bit for bit")
    assert policies["lru"].auc_difference == 0 and policies["lru"].auc == policies["hybrid"].auc
    assert policies["lfu"].skipped_update_share > 0.02 and not policies["lfu"].exact
    assert policies["lfu"].auc_difference != 0
    assert not policies["contract:Regrouping"].exact  # skips nothing, but trains other batches
    assert policies["hybrid"].hit_rate == 0 < policies["lru"].hit_rate
    assert {"plan", "forward", "update"} <= set(policies["lru"].time_ms)
    assert policies["lru"].auc_std > 0
    runs = [(run.seed, Path(run.run_dir).relative_to(tmp_path).as_posix()) for run in policies["lru"].runs]
    assert runs == [(0, "out/seed-0/2-lru"), (1, "out/seed-1/2-lru")]
    assert all((tmp_path / "out" / f"seed-{seed}" / "2-lru" / "run.json").is_file() for seed in (0, 1))


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    result = compared([rival("lfu", tier={"device_rows": "3"}), rival("lru")], tmp_path / "out", seeds=1)
    policies = by_policy(result)
    assert (policies["lfu"].verdict, policies["lfu"].auc, policies["lfu"].seeds) == ("failed", None, [])
    assert "device rows of width 4 for the" in policies["lfu"].runs[0].error
    assert result.control == "lru" and policies["lru"].verdict == "within"
    assert len(result.problems) == 1 and result.problems[0].startswith("lfu, seed 0: DeviceMemoryError")
    for text in (
        comparison_document(result).to_text(),
        comparison_document(result).to_markdown(),
        comparison_csv(result),
    ):
        assert "failed" in text


def test_unusable_data_ends_the_comparison_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    def train(config: TrainConfig, **options: Any) -> dict[str, Any]:
        raise InputError("day_0.gz: cannot be read")

    monkeypatch.setattr(adaptive.studies.compare.comparison_runs, "train_run", train)
    with pytest.raises(InputError, match=r"day_0\.gz"):
        train_all([rival("lru"), rival("lfu")], 3, tmp_path, on_progress=lines.append)
    assert lines == ["seed 0 (1 of 3), lru (1 of 2)"]
    arranging = [rival("contract:Regrouping"), rival("lfu")]  # which may have spoilt its batches itself
    assert [type(outcome.error) for outcome in train_all(arranging, 1, tmp_path)] == [InputError, InputError]


@pytest.mark.parametrize("save", [True, False])
def test_a_policy_that_changes_numbers_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: bool) -> None:
    real = adaptive.training.runs.train_run

    def rigged(config: TrainConfig, **options: Any) -> dict[str, Any]:
        if config.policy == "lfu" and config.seed == 1:
            config = config.model_copy(update={"batch_size": config.batch_size // 2})
        return real(config, **options)

    monkeypatch.setattr(adaptive.studies.compare.comparison_runs, "train_run", rigged)
    result = compared([rival("lru", save=save), rival("lfu", save=save)], tmp_path / "out")
    assert by_policy(result)["lfu"].verdict == "differs"
    (problem,) = result.problems
    assert problem.startswith("lfu: skipped nothing but trained other numbers than lru (seed 1).")
    assert "problem: lfu" in comparison_document(result).to_text()


def test_one_changed_weight_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are compared by their digests, not only AUC and log loss."""
    real = adaptive.training.runs.train_run

    def rigged(config: TrainConfig, **options: Any) -> dict[str, Any]:
        summary = real(config, **options)
        path = Path(summary["run_dir"]) / "weights/manifest.json"
        manifest = json.loads(path.read_text())
        (entry,) = (entry for entry in manifest["arrays"] if entry["name"] == "rows0.weights")
        if config.policy == "lfu":
            entry["sha256"] = "0" * 64
        path.write_text(json.dumps(manifest))
        return summary

    monkeypatch.setattr(adaptive.studies.compare.comparison_runs, "train_run", rigged)
    result = compared([rival("lru"), rival("lfu")], tmp_path / "out", seeds=1)
    assert by_policy(result)["lfu"].verdict == "differs"


# --- dropping inputs, beside random --------------------------------------------------------------------------------


def test_dropping_inputs_adds_a_random_control(tmp_path: Path) -> None:
    lines: list[str] = []
    rivals = [
        rival("lru"),
        rival("lfu", skip=DROP),
        rival("random_drop", policy_options={"share": 0.2}),
    ]
    outcomes = train_all(rivals, 2, claim(str(tmp_path / "out")), on_progress=lines.append)
    twin, negatives = "random_drop for lfu", "random_drop+by=label for lfu"
    assert [outcome.policy for outcome in outcomes] == 2 * ["lru", "lfu", twin, negatives, "random_drop"]
    assert lines[2] == f"seed 0 (1 of 2), {twin}"
    shares = [outcome.summary["skipped_input_share"] for outcome in outcomes if outcome.policy in ("lfu", twin)]
    assert shares[0] > 0.05 and shares[1::2] == shares[::2], "to the input"
    record = json.loads((tmp_path / "out/seed-1/1-random_drop/run.json").read_text())
    assert record["config"]["seed"] == 1
    expected = {"share": shares[2], "seed": 1, "by": "chance", "keep_steps": False}
    assert record["config"]["policy_options"] == expected
    policies = by_policy(judge(outcomes, auc_budget=BUDGET))
    assert [policy.control_of for policy in policies.values()] == [None, None, "lfu", "lfu", None]
    differences = [outcomes[n].summary["auc"] - outcomes[n + 1].summary["auc"] for n in (1, 6)]
    assert policies["lfu"].auc_difference_to_random == pytest.approx(sum(differences) / 2)
    assert policies["lfu"].auc_difference_to_random_ci == interval(differences)
    assert policies[twin].auc_difference_to_random is None and policies["lru"].auc_difference_to_random is None


def test_a_rule_that_drops_inputs_has_a_random_control(tmp_path: Path) -> None:
    rule = SKIP | {"rule": "predicted+warmup=1+factor=0.5"}
    outcomes = train_all([rival("lru"), rival("lfu", skip=rule)], 1, claim(str(tmp_path / "out")))
    assert [(outcome.policy, outcome.error) for outcome in outcomes] == [
        ("lru", None),
        ("lfu", None),
        ("random_drop for lfu", None),
        ("random_drop+by=label for lfu", None),
    ]
    shares = [outcome.summary["skipped_input_share"] for outcome in outcomes[1:3]]
    assert shares[0] > 0.05 and shares[0] == pytest.approx(shares[1], abs=10 / 320), "to one of its smaller batches"


def test_the_control_appears_in_tables_and_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(config: TrainConfig, **options: Any) -> dict[str, Any]:
        dropped = {"lru": 0.0, "slipstream": 0.25, "random_drop": 0.26}[config.policy]
        if config.policy == "random_drop" and config.seed == 1:
            raise DeviceMemoryError("no room")
        return outcome("", config.seed, 0.7 - dropped, skipped_input_share=dropped).summary

    monkeypatch.setattr(adaptive.studies.compare.comparison_runs, "train_run", train)
    result = compared([rival("lru"), rival("slipstream")], tmp_path / "out")
    policies, twin = by_policy(result), "random_drop for slipstream"
    negatives = "random_drop+by=label for slipstream"
    assert result.problems == [f"{name}, seed 1: DeviceMemoryError: no room" for name in (twin, negatives)]
    assert policies["slipstream"].auc_difference_to_random == pytest.approx(0.01)
    assert policies["slipstream"].auc_difference_to_random_ci is None
    text, lines = comparison_document(result).to_text(), comparison_csv(result).splitlines()
    assert "against random" in text and "+0.01000" in text and f"{twin}: undecided" in text
    assert "A rule that does not beat it chooses no better than chance" in " ".join(text.split())
    assert f"| {twin} |" in comparison_document(result).to_markdown()
    assert {"control_of", "auc_difference_to_random", "auc_difference_to_random_ci_low"} <= set(lines[0].split(","))
    assert [line.split(",")[0] for line in lines[1:]] == ["lru", "slipstream", twin, negatives]
    json.dumps(asdict(result), allow_nan=False)


# --- how sure it is ------------------------------------------------------------------------------------------------


def test_policies_that_only_regroup_share_a_control() -> None:
    equal = [replace(outcome(name, seed, 0.7), arranges=True) for name in ("lfu", "scratchpipe") for seed in (0, 1)]
    result = judge(equal, auc_budget=BUDGET)
    policies = by_policy(result)
    assert result.control == "lfu" and not result.problems
    assert (policies["scratchpipe"].verdict, policies["scratchpipe"].exact) == ("within", True)
    regrouped = [replace(outcome, bits="other") if outcome.policy == "scratchpipe" else outcome for outcome in equal]
    policies = by_policy(judge(regrouped, auc_budget=BUDGET))
    assert not policies["scratchpipe"].exact and not judge(regrouped, auc_budget=BUDGET).problems


@pytest.mark.parametrize(
    ("changed", "number", "options"),
    [
        ({"data_options": {"synthetic": {"rows": 9, "seed": 7}}}, 2, {"synthetic": {"rows": 9, "seed": 9}}),
        ({}, 0, {"synthetic": {"seed": 0}}),
        ({"data": "criteo:x.tsv", "data_options": {"shuffle_buffer": 10}}, 3, {"shuffle_buffer": 10, "seed": 3}),
    ],
)
def test_seeds_change_weights_and_the_data_order(changed: Any, number: int, options: Any) -> None:
    config = with_seed(toy_config(seed=5, **changed), number)
    assert (config.seed, config.data_options) == (5 + number, options)


# --- the directory ---------------------------------------------------------------------------------------------------


def test_a_directory_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    assert claim(str(out)) == out and out.is_dir()
    write_record(out, judge([], auc_budget=BUDGET))
    with pytest.raises(
        OutputError, match=r"expected a new or empty output directory, got .* keep its runs with --auto"
    ):
        claim(str(out))
    assert claim(str(out), overwrite=True) == out
    monkeypatch.chdir(tmp_path)
    assert claim(None).parent.name == "runs" and claim(None).name.endswith("-compare")
    (out / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"expected only files of a comparison in .*, got notes\.txt"):
        claim(str(out), overwrite=True)


# --- verdicts --------------------------------------------------------------------------------------------------------


def paired(differences: Sequence[float], budget: float = BUDGET) -> dict[str, Any]:
    outcomes = [
        *(outcome("lru", seed, 0.75 + seed / 100) for seed in range(len(differences))),
        *(outcome("s", seed, 0.75 + seed / 100 + d, 0.4) for seed, d in enumerate(differences)),
    ]
    policies: dict[str, Any] = by_policy(judge(outcomes, auc_budget=budget))["s"]
    return policies


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.0001, 0.0002, 0.0], "within"),
        ([-0.0001, -0.0002, -0.0001], "within"),
        ([-0.002, -0.0021, -0.0022], "outside"),
        ([-0.0001, -0.002, 0.001], "undecided"),
        ([-0.002], "undecided"),
    ],
)
def test_verdicts(differences: list[float], verdict: str) -> None:
    assert paired(differences).verdict == verdict


def test_the_interval_is_students_t_of_differences() -> None:
    differences = [-0.0001, -0.0004, 0.0002, -0.0003]
    policies = paired(differences)
    expected = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert policies.auc_difference == pytest.approx(sum(differences) / 4)
    assert policies.auc_difference_ci == pytest.approx(list(expected))
    assert interval([0.5, 0.5, 0.5]) == (0.5, 0.5)
    assert interval([0.5]) is None


@pytest.mark.parametrize(
    ("other", "verdict", "reason"),
    [
        (outcome("s", 0, 0.69, 0.5), "undecided", "one seed gives no confidence interval. Raise --seeds"),
        (outcome("s", 0, None, 0.5), "undecided", "no AUC to compare: all labels are of one class"),
        (outcome("s", 0, 0.7, skipped_input_share=0.2), "undecided", "one seed gives"),
        (replace(outcome("s", 0, 0.7), arranges=True), "within", "equal to the control bit for bit"),
        (
            replace(outcome("s", 0, 0.7), arranges=True, bits="other"),
            "unskipped",
            "skips nothing, but trains other",
        ),
        (outcome("s", 0, 0.7, hot_rows=9), "unskipped", "its rule skipped nothing in 4 steps"),
    ],
)
def test_verdicts_of_one_seed(other: Outcome, verdict: str, reason: str) -> None:
    result = judge([outcome("lru", 0, 0.7), other], auc_budget=BUDGET)
    policy = by_policy(result)["s"]
    assert policy.verdict == verdict and policy.reason.startswith(reason), policy.reason
    text = comparison_document(result).to_text()
    assert "With one seed there are no intervals over seeds." in text
    assert ("skipped inputs" in text) == ("skipped_input_share" in other.summary)


def test_without_a_control_there_is_no_verdict() -> None:
    result = judge([outcome("s", seed, 0.7, 0.5 * seed) for seed in range(1, 4)], auc_budget=BUDGET)
    (policy,) = result.policies
    assert (result.control, policy.auc_difference, policy.verdict) == (None, None, "undecided")
    assert "Add a policy that skips nothing" in policy.reason


def test_verdicts_name_predictions_during_training() -> None:
    outcomes = [outcome(name, seed, auc, share, auc_of="training")
                for name, share, auc in (("lru", 0.0, 0.7), ("mine", 0.1, 0.6)) for seed in (0, 1)]  # fmt: skip
    text = comparison_document(judge(outcomes, auc_budget=BUDGET)).to_text()
    assert "mine: outside the AUC budget of 0.0005, judged by predictions during training (the AUC falls" in text
    assert "lru: within the AUC budget of 0.0005 (the control)" in text


def test_only_seeds_that_both_finished_are_compared() -> None:
    outcomes = [
        *(outcome("lru", seed, 0.7) for seed in range(3)),
        *(outcome("s", seed, 0.6, 0.5) for seed in (0, 2)),
        Outcome("s", 1, "out/1/s", error=PolicyError("no")),
    ]
    result = judge(outcomes, auc_budget=BUDGET)
    policies = by_policy(result)["s"]
    assert policies.seeds == [0, 2] and policies.auc_difference == pytest.approx(-0.1)
    assert policies.samples_per_s == 200 and policies.time_ms == {"plan": 2.0}
    assert result.problems == ["s, seed 1: PolicyError: no"]


def test_every_share_has_its_own_column() -> None:
    more = {
        "deferred_update_share": 0.125,
        "skipped_input_share": 0.5,
        "host_bytes_read": 8192,
        "host_bytes_written": 0,
        **{"samples_read": 256, "effective_samples": 100, "weight_spread": 0.529},
    }
    result = judge([outcome("lru", 0, 0.7), outcome("s", 0, 0.7, 0.25, **more)], auc_budget=BUDGET)
    head, _, control, changed = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in comparison_document(result).to_markdown().splitlines()[0:4]
    )
    cells = dict(zip(head, changed, strict=True))
    assert {name: cells[name] for name in head[8:]} == {
        "to device": "1.0 KiB",
        "to host": "0 B",
        "from files": "2.0 KiB",
        "to files": "0 B",
        "skipped updates": "25.0%",
        "deferred updates": "12.5%",
        "skipped lookups": "25.0%",
        "skipped inputs": "50.0%",
        "read": "256",
        "trained": "128",
        "effective": "100",
        "weight spread": "0.53",
    }
    assert dict(zip(head, control, strict=True))["from files"] == "-"


def test_tables() -> None:
    outcomes = [
        outcome(policy, seed, 0.7 + skip, skip) for seed in range(2) for policy, skip in (("lru", 0), ("s|", 0.1))
    ]
    result = judge(outcomes, auc_budget=BUDGET)
    text = comparison_document(result).to_text()
    assert "s|: within the AUC budget of 0.0005 (the AUC falls by at most 0.0005, with 95% confidence)" in text
    assert "+0.10000 [+0.10000, +0.10000]" in text and "1.0 KiB" in text and "0.8000 ± 0.0000" in text
    rows = [line for line in comparison_document(result).to_markdown().splitlines() if line.startswith("|")]
    assert len(rows) == 8 and rows[3].startswith("| s\\| |")
    head, *lines = comparison_csv(result).splitlines()
    assert head.startswith(
        "policy,control_of,control_by,auc,auc_std,auc_difference,auc_difference_ci_low,auc_difference_ci"
    )
    assert "time_ms.plan" in head.split(",") and len(lines) == 2
    json.dumps(asdict(result), allow_nan=False)


def test_the_text_fits_a_terminal() -> None:
    """A comparison with 19 columns, which would be 220 characters wide."""
    shares = {
        "deferred_update_share": 0.1,
        "skipped_input_share": 0.5,
        "host_bytes_read": 8192,
        "host_bytes_written": 9,
    }
    outcomes = [
        replace(run, summary={**run.summary, **shares}) if run.policy == "slipstream" else run
        for seed in range(3)
        for run in (outcome("lru", seed, 0.7), replace(outcome("slipstream", seed, 0.7), arranges=True))
    ]
    outcomes = [
        replace(outcome, summary={**outcome.summary, "auc": 0.7 + 0.01 * len(outcome.policy)}) for outcome in outcomes
    ]
    document = comparison_document(judge(outcomes, auc_budget=BUDGET))
    text = document.to_text()
    assert max(map(len, text.splitlines()[:20])) <= 100
    (table,) = (block for block in document.to_markdown().split("\n\n") if block.startswith("| policy | AUC |"))
    titles = [title.strip() for title in table.splitlines()[0].strip("|").split("|")]
    assert len(titles) == 19 and all(title in text for title in titles)
    assert text.count("\nslipstream  ") >= 3  # blocks of columns, each with the policies


def test_a_busy_machine_is_a_warning() -> None:
    """The share of the cores that other processes used during the runs."""
    quiet = [replace(outcome("lru", 0, 0.7), others_cpu_share=0.04), outcome("lfu", 0, 0.7)]
    assert "warning" not in comparison_document(judge(quiet, auc_budget=BUDGET)).to_text()
    busy = judge([quiet[0], replace(quiet[1], others_cpu_share=0.4)], auc_budget=BUDGET)
    policies = "warning: other processes used up to 40.0% of the cores during 1 of 2 runs, so samples/s and times"
    assert policies in comparison_document(busy).to_markdown()
    assert "GOMP_SPINCOUNT=1000" in comparison_document(busy).to_markdown()
    assert [run.others_cpu_share for policy in busy.policies for run in policy.runs] == [0.04, 0.4]


def test_an_auc_of_other_samples_is_marked() -> None:
    """Other evaluation samples, or predictions during training of a run that skipped inputs."""
    other = [outcome("lru", 0, 0.7, eval_samples=9), outcome("fae", 0, 0.8, 0.1, eval_samples=8)]
    left = {"auc_of": "training", "skipped_input_share": 0.1}
    trained = [outcome("lru", 0, 0.7, auc_of="training"), outcome("fae", 0, 0.8, 0.1, **left)]
    for outcomes in (other, trained):
        text = comparison_document(judge(outcomes, auc_budget=BUDGET)).to_text()
        assert "judged by other samples than the control" in text, text
    same = [outcome("lru", 0, 0.7, auc_of="training"), outcome("fae", 0, 0.8, 0.1, auc_of="training")]
    assert "other samples" not in comparison_document(judge(same, auc_budget=BUDGET)).to_text()


def test_policy_reports_have_their_own_table() -> None:
    outcomes = [
        *(outcome("lru", seed, 0.7) for seed in range(2)),
        *(outcome("fae", seed, 0.7, policy_numbers={"hot_rows": 1000.0 + seed, "swaps": 4.0}) for seed in range(2)),
        *(outcome("hotline", seed, 0.7, policy_numbers={"popular_rows": 7.0}) for seed in range(2)),
    ]
    result = judge(outcomes, auc_budget=BUDGET)
    assert [policy.policy_numbers for policy in result.policies] == [
        {}, {"hot_rows": 1000.5, "swaps": 4.0}, {"popular_rows": 7.0},
    ]  # fmt: skip
    assert comparison_document(result).to_markdown().split("\n\n")[2].splitlines() == [
        "| policy reports | hot_rows | swaps | popular_rows |",
        "| --- | ---: | ---: | ---: |",
        "| fae | 1,000.5 | 4 | - |",
        "| hotline | - | - | 7 |",
    ]
    assert "policy reports  hot_rows  swaps  popular_rows\n" in comparison_document(result).to_text()
    assert "policy_numbers.hot_rows" in comparison_csv(result).splitlines()[0].split(",")
    assert "policy reports" not in comparison_document(judge(outcomes[:2], auc_budget=BUDGET)).to_text()


# --- the list of policies -------------------------------------------------------------------------------------------


def load(label: str, sets: Sequence[str]) -> TrainConfig:
    return load_settings(sets=sets, flags={"policy": label}, flag_names={"policy": "--policies"})[0]


def test_policies_have_their_own_parameters() -> None:
    sets = ["policy.half_life=9", "seed=4", "tier.device_rows=20%"]
    policies = contenders("hybrid, lfu,lfu+half_life=3,lru+skip=defer+at_most=9+warmup=7", sets, load)
    assert [policy.label for policy in policies] == [
        "hybrid",
        "lfu",
        "lfu+half_life=3",
        "lru+skip=defer+at_most=9+warmup=7",
    ]
    assert [policy.config.policy for policy in policies] == ["hybrid", "lfu", "lfu", "lru"]
    options = [policy.config.policy_options for policy in policies]
    assert options == [{}, {"half_life": 9}, {"half_life": 3}, {}]
    assert policies[3].config.skip is not None and policies[3].config.skip.rule == "defer+at_most=9+warmup=7"
    assert [policy.config.tier.device_rows for policy in policies] == ["auto", "20%", "20%", "20%"]
    assert {policy.config.seed for policy in policies} == {4}


@pytest.mark.parametrize(
    ("policies", "sets", "error", "message"),
    [
        (" ,", [], ConfigError, "policies: expected a list such as hybrid,lru"),
        ("lru,lfu,lru", [], ConfigError, "expected each policy once, got lru again"),
        ("lru,nothing", [], PolicyError, "no policy 'nothing'"),
        ("lru,slipstreem", [], PolicyError, "did you mean slipstream?"),
        ("mine.py", [], PolicyError, "give its class, mine.py:CLASS"),
        ("lru,lfu", ["policy.warmup=3"], ConfigError, "expected a parameter of lru, lfu (half_life), got warmup"),
        (
            "lru+half_life=3",
            [],
            ConfigError,
            "lru expected one of its parameters (it has none), or skip, got half_life",
        ),
        ("lfu+half_live=3", [], ConfigError, "did you mean half_life?"),
        (
            "lfu+half_life=soon",
            [],
            ConfigError,
            "policy LFU: half_life: expected a valid number, got 'soon'",
        ),
        ("lru,lfu+half_life=-3", [], PolicyError, "LFU: half_life=-3.0: expected more than 0 batches"),
        ("lru,lfu", ["policy.half_life=-3"], PolicyError, "LFU: half_life=-3.0: expected more than 0 batches"),
    ],
)
def test_invalid_policy_lists_are_reported(
    policies: str, sets: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        contenders(policies, sets, load)
    assert message in str(raised.value)


def test_errors_of_runs_keep_no_tables_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Table:
        pass

    def failing(config: TrainConfig, **options: Any) -> dict[str, Any]:
        table = Table()
        raise DeviceMemoryError(f"no room for {type(table).__name__}")

    monkeypatch.setattr(adaptive.studies.compare.comparison_runs, "train_run", failing)
    (policies,) = train_all([rival("lru")], 1, tmp_path)
    assert isinstance(policies.error, DeviceMemoryError) and policies.error.__traceback__ is not None
    last = policies.error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    assert "table" not in last.tb_frame.f_locals


def test_a_policy_that_skips_nothing_is_never_undecided() -> None:
    """For any batches, and any seeds of the control that finished."""
    control = [outcome("lru", seed, 0.7) for seed in (0, 1)]
    regroups = [replace(outcome("scratchpipe", seed, 0.7 + 0.1 * seed), bits="other", arranges=True) for seed in (0, 1)]
    both = judge([*control, *regroups], auc_budget=BUDGET).policies[1]
    assert (both.verdict, both.exact) == ("unskipped", False)
    assert both.reason.startswith("skips nothing, but trains other batches; the interval includes")
    comparison = judge([control[0], regroups[0]], auc_budget=BUDGET)
    assert comparison.policies[1].verdict == "unskipped"
    assert "scratchpipe: skips nothing (" in comparison_document(comparison).to_text()
    apart = judge([control[0], outcome("lfu", 1, 0.7)], auc_budget=BUDGET)
    assert [result.verdict for result in apart.policies] == ["within", "unskipped"]
    assert "no run of the control finished" in apart.policies[1].reason
