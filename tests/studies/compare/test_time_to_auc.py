"""Time to quality: the work of training until an evaluation first reached an AUC."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support.outcomes import BUDGET, SKIP, by_policy, outcome
from support.toy import toy_config
from support.toy_runs import train_all

from adaptive.studies.compare import Contender
from adaptive.studies.compare.comparison_report import comparison_csv, comparison_document
from adaptive.studies.compare.comparison_runs import Outcome, claim
from adaptive.studies.compare.verdicts import ToAuc, judge


def curve(
    policy: str, aucs: Sequence[float | None], step_seconds: float = 1.0, seed: int = 0, skipped: float = 0.0
) -> Outcome:
    """A run that was evaluated every 10 steps of 100 samples, each of `step_seconds` and twice the processor time."""
    points = [{"step": 10 * number, "auc": auc} for number, auc in enumerate(aucs, start=1)]
    work = [
        {
            "step": step,
            "samples_read": 100 * step,
            "seconds": step * step_seconds,
            "cpu_seconds": 2 * step * step_seconds,
        }
        for step in (point["step"] for point in points)
    ]
    return outcome(policy, seed, aucs[-1], skipped, evaluations=points, evaluation_work=work)


def reached(outcomes: Sequence[Outcome], to_auc: ToAuc) -> dict[str, Any]:
    policies = by_policy(judge(outcomes, auc_budget=BUDGET, to_auc=to_auc))
    return {name: policy.to_auc and asdict(policy.to_auc) for name, policy in policies.items()}


def test_by_hand() -> None:
    """The control reaches 0.7495 at its third evaluation; a rule that is twice as fast at its second, 3,000 and 2,000
    samples read. Its one evaluation without both classes does not count."""
    runs = [curve("lru", [0.70, 0.74, 0.75]), curve("mine", [None, 0.76, 0.749], 0.5, skipped=0.3)]
    result = reached(runs, "auto")
    assert result["lru"] == {
        **{"target": 0.7495, "runs": 1, "reached": 1, "seconds": 30, "cpu_seconds": 60, "samples_read": 3000},
        **{"seconds_ratio": 1, "cpu_seconds_ratio": 1, "samples_read_ratio": 1, "best": 0.75},
    }
    assert result["mine"] == {
        **{"target": 0.7495, "runs": 1, "reached": 1, "seconds": 10, "cpu_seconds": 20, "samples_read": 2000},
        **{"seconds_ratio": 1 / 3, "cpu_seconds_ratio": 1 / 3, "samples_read_ratio": 2 / 3, "best": 0.76},
    }


def test_an_auc_that_is_not_reached_is_reported_with_the_best() -> None:
    runs = [curve("lru", [0.70, 0.74, 0.75]), curve("mine", [0.70, 0.745, 0.744], skipped=0.3)]
    result = judge(runs, auc_budget=BUDGET, to_auc=0.75)
    work = by_policy(result)["mine"].to_auc
    assert work is not None and (work.reached, work.seconds, work.seconds_ratio, work.best) == (0, None, None, 0.745)
    text = comparison_document(result).to_text()
    assert "not reached, best 0.7450" in text and "1 of 1" in text
    assert "to_auc.seconds" in comparison_csv(result).splitlines()[0]


def test_each_seed_has_its_own_target_and_its_own_control() -> None:
    """Ratios are 10 / 20 and 20 / 20; where the control's run of a seed is missing there is no target."""
    runs = [
        *(curve("lru", aucs, seed=seed) for seed, aucs in enumerate(([0.6, 0.7], [0.7, 0.8]))),
        *(curve("mine", aucs, seed=seed, skipped=0.3) for seed, aucs in enumerate(([0.7, 0.7], [0.7, 0.8], [0.9]))),
    ]
    mine = reached(runs, "auto")["mine"]
    assert (mine["runs"], mine["reached"], mine["seconds"], mine["seconds_ratio"]) == (2, 2, 15, 0.75)
    assert mine["target"] == pytest.approx(0.7495)
    assert reached(runs, 0.9)["mine"]["reached"] == 1 and reached([outcome("lru", 0, 0.7)], 0.7)["lru"] is None
    assert "no evaluation" not in comparison_document(judge(runs, auc_budget=BUDGET, to_auc="auto")).to_text()


def test_work_of_real_runs(tmp_path: Path) -> None:
    """Evaluations come after as many samples read, whatever is skipped; times grow; controls have them, too."""
    skip = SKIP | {"rule": "adaptive.policies.random_drop:Drop+share=0.5"}
    settings: dict[str, Any] = {"eval_every": 2, "log_every": 1}
    rivals = [
        Contender("lru", toy_config(policy="lru", **settings)),
        Contender("lfu", toy_config(policy="lfu", skip=skip, **settings)),
    ]
    outcomes = train_all(rivals, 1, claim(str(tmp_path / "out")))
    assert [run.control_by for run in outcomes] == [None, None, "chance", "label"]
    for run in outcomes:
        work = run.summary["evaluation_work"]
        assert [of["samples_read"] for of in work] == [64, 128, 192, 256, 320]
        for name in ("seconds", "cpu_seconds"):
            times = [of[name] for of in work]
            assert times == sorted(times) and times[0] >= 0
    assert outcomes[0].summary["samples_read"] == outcomes[0].summary["effective_samples"] == 320
    by_label = outcomes[3].summary
    assert by_label["samples"] < 200 and by_label["effective_samples"] < by_label["samples"]
    assert by_label["weight_spread"] > 0
    result = judge(outcomes, auc_budget=BUDGET, to_auc=0.5)
    assert all(policy.to_auc is not None for policy in result.policies)
    assert "weight spread" in comparison_document(result).to_text()
