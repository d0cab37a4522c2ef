"""The test over samples for two policies that scored the same samples."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.outcomes import EAGER, SKIP, scored
from support.toy import ToyData, toy_config
from support.toy_runs import train_all

import adaptive.training.runs
from adaptive.errors import CheckpointError
from adaptive.storage.run_directory import read_scores, write_scores
from adaptive.studies.compare.comparison_report import comparison_csv, comparison_document
from adaptive.studies.compare.contenders import Contender
from adaptive.studies.compare.verdicts import judge, other_samples, over_samples, p_value

Scores = NDArray[np.float32]

# Positives score 3 and 1, negatives 2 and 0: 3 pairs of 4 are in order. The control has all 4.
MINE, CONTROL, LABELS = [3.0, 1.0, 2.0, 0.0], [3.0, 2.0, 1.0, 0.0], [1, 1, 0, 0]


def test_by_hand() -> None:
    """Of the positives (1, 1/2) of the negatives are below against (1, 1), of the negatives (1/2, 1) of the positives
    above against (1, 1): differences (0, -1/2) and (-1/2, 0), of variance 1/8 each. The error is the root of
    1/8 / 2 + 1/8 / 2 = 1/8; z = -1/4 / 0.35355 = -0.7071, beyond which 0.4795 of a normal distribution lies."""
    result = over_samples([(scored("s", MINE, LABELS), scored("lru", CONTROL, LABELS))], 0.0005)
    assert result is not None
    assert result.auc_difference == -0.25
    reach = 1.959964 * math.sqrt(1 / 8)
    assert result.auc_difference_ci == pytest.approx([-0.25 - reach, -0.25 + reach])
    assert result.p_value == pytest.approx(0.4795, abs=1e-4)
    assert (result.samples, result.seeds, result.verdict) == (4, 1, "undecided")
    assert over_samples([(scored("s", MINE, LABELS), scored("lru", CONTROL, LABELS))], 1.0).verdict == "within"  # type: ignore[index]


def test_seeds_on_the_same_samples_are_one_experiment() -> None:
    """Two trainings that came out alike tell nothing new of the same samples: the error stays. On other samples it
    falls by the root of two."""
    once = scored("s", MINE, LABELS), scored("lru", CONTROL, LABELS)
    turned = scored("s", MINE[::-1], LABELS[::-1], seed=1), scored("lru", CONTROL[::-1], LABELS[::-1], seed=1)
    same, different = over_samples([once, once], 0.1), over_samples([once, turned], 0.1)
    assert same is not None and different is not None
    assert same.auc_difference == different.auc_difference == -0.25
    assert width(same) == pytest.approx(2 * 1.959964 * math.sqrt(1 / 8))
    assert width(different) == pytest.approx(width(same) / math.sqrt(2))
    assert (same.samples, different.samples, same.seeds) == (4, 8, 2)


def width(result: dict[str, Any]) -> float:
    low, high = result.auc_difference_ci
    return float(high - low)


def wins(scores: Sequence[float], positive: int, negative: int) -> float:
    first, second = scores[positive], scores[negative]
    return 1.0 if first > second else 0.5 if first == second else 0.0


def slow(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], labels: Sequence[int]) -> tuple[float, float]:
    """Mean difference of AUC and its error, from all pairs of samples and all pairs of models."""
    positives = [n for n, label in enumerate(labels) if label]
    negatives = [n for n, label in enumerate(labels) if not label]
    gained = np.mean(
        [[[wins(a, p, n) - wins(b, p, n) for n in negatives] for p in positives] for a, b in pairs], axis=0
    )
    by_positive, by_negative = gained.mean(axis=1), gained.mean(axis=0)
    variance = by_positive.var(ddof=1) / len(positives) + by_negative.var(ddof=1) / len(negatives)
    return float(gained.mean()), math.sqrt(variance)


LOGITS = st.sampled_from([-2.0, -0.5, 0.0, 0.25, 3.0])


@given(st.data(), st.integers(4, 14), st.integers(1, 3))
def test_auc_variance_equals_all_pairs(data: st.DataObject, samples: int, seeds: int) -> None:
    labels = data.draw(st.lists(st.integers(0, 1), min_size=samples, max_size=samples))
    models = [[data.draw(st.lists(LOGITS, min_size=samples, max_size=samples)) for _ in "ab"] for _ in range(seeds)]
    pairs = [(scored("s", a, labels, seed=n), scored("lru", b, labels, seed=n)) for n, (a, b) in enumerate(models)]
    result = over_samples(pairs, 0.0005)
    if not 2 <= sum(labels) <= samples - 2:
        assert result is None
        return
    assert result is not None
    difference, error = slow([(a, b) for a, b in models], labels)
    assert result.auc_difference == pytest.approx(difference, abs=1e-9)
    assert width(result) == pytest.approx(2 * 1.959964 * error, abs=1e-6)


def test_equal_predictions_have_no_difference() -> None:
    result = over_samples([(scored("s", MINE, LABELS), scored("lru", MINE, LABELS))], 0.0005)
    assert result is not None and result.auc_difference_ci == (0, 0)
    assert (result.p_value, result.verdict) == (1.0, "within")
    assert p_value(-0.1, 0.0) == 0


def test_missing_scores_and_other_samples_give_none() -> None:
    skipping, control = scored("s", MINE, LABELS, skipped=0.1), scored("lru", CONTROL, LABELS)
    assert over_samples([(replace(skipping, scores=None), control)], 0.1) is None and over_samples([], 0.1) is None
    others = scored("s", MINE, [0, 1, 1, 0], skipped=0.1)
    assert over_samples([(others, control)], 0.1) is None
    assert other_samples([(skipping, control)]) == []
    (problem,) = judge([control, others], auc_budget=0.1).problems
    assert problem.startswith("s: seed 0: expected the evaluation samples of lru, got others (labels differ).")


def test_paired_intervals_appear_next_to_verdicts() -> None:
    """Also for one seed; a policy that equals the control has none."""
    outcomes = [scored("lru", CONTROL, LABELS), replace(scored("lfu", CONTROL, LABELS), bits="lru")]
    result = judge([*outcomes, scored("s", MINE, LABELS, skipped=0.1)], auc_budget=0.0005)
    report = {policy.policy: policy for policy in result.policies}
    assert report["lru"].over_samples is None and report["lfu"].over_samples is None
    assert report["s"].verdict == "undecided" == report["s"].over_samples.verdict
    text = comparison_document(result).to_text()
    assert "Raise --seeds; over samples: undecided about a loss of 0.0005, p = 0.48 for no difference)" in text
    assert "over samples" in text and "[-0.94295, +0.44295]" in text and "over samples: 95%" in text
    assert "| over samples |" in comparison_document(result).to_markdown()
    head, *lines = [line.split(",") for line in comparison_csv(result).splitlines()]
    cells = dict(zip(head, lines[2], strict=True))
    assert cells["over_samples.auc_difference_ci_low"].startswith("-0.9429") and cells["over_samples.seeds"] == "1"
    json.dumps(asdict(result), allow_nan=False)
    assert "over samples" not in comparison_document(judge(outcomes, auc_budget=0.0005)).to_text()


def test_a_policy_that_skips_nothing_is_never_undecided() -> None:
    """For any batches, and any seeds of the control that finished."""
    control = [scored("lru", CONTROL, LABELS, seed=seed) for seed in (0, 1)]
    regroups = [replace(scored("lfu", MINE, LABELS, seed=seed), arranges=True) for seed in (0, 1)]
    regroups[1].summary["auc"] = 0.8
    both = judge([*control, *regroups], auc_budget=0.0005).policies[1]
    assert (both.verdict, both.exact) == ("unskipped", False)
    assert both.reason.startswith("skips nothing, but trains other batches; the interval includes")
    comparison = judge([control[0], regroups[0]], auc_budget=0.0005)
    assert (
        comparison.policies[1].verdict == "unskipped"
        and "lfu: skips nothing (" in comparison_document(comparison).to_text()
    )
    apart = judge([control[0], replace(scored("lfu", CONTROL, LABELS, seed=1), bits="lru")], auc_budget=0.0005)
    assert [result.verdict for result in apart.policies] == ["within", "unskipped"]
    assert "no run of the control finished" in apart.policies[1].reason


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_saved_scores_of_runs_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rivals = [
        Contender("lru", toy_config(policy="lru", skip=SKIP, save=False)),
        Contender("lfu", toy_config(policy="lfu", skip=EAGER, save=False)),
    ]
    outcomes = train_all(rivals, 1, tmp_path)
    (control, lfu_scores) = (read_scores(Path(outcome.run_dir)) for outcome in outcomes)
    assert control is not None and lfu_scores is not None
    labels = np.concatenate([batch.labels for batch in ToyData(num_train=320).evaluation(100)])
    assert np.array_equal(control[1], labels) and np.array_equal(lfu_scores[1], labels)
    result = judge(outcomes, auc_budget=0.0005).policies[1]
    assert result.over_samples.samples == 256
    assert result.over_samples.auc_difference == pytest.approx(result.auc_difference)
    assert result.over_samples.log_loss_difference == pytest.approx(result.log_loss_difference)
    repeated = judge(train_all(rivals, 1, tmp_path, auto_resume=True), auc_budget=0.0005)
    assert repeated.policies[1].over_samples == result.over_samples
    train_all(rivals, 1, tmp_path, overwrite=True)  # the file is one of a run's own


def test_plain_runs_save_no_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        adaptive.training.runs.training, "open_data", lambda config, run_directory=None: ToyData(num_train=64)
    )
    adaptive.training.runs.train_run(toy_config(out=str(tmp_path / "run"), save=False))
    assert read_scores(tmp_path / "run") is None


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    write_scores(tmp_path, np.zeros(3, np.float32), np.ones(3, np.float32))
    assert np.array_equal(read_scores(tmp_path), [[0, 0, 0], [1, 1, 1]])  # type: ignore[arg-type]
    (tmp_path / "evaluation.npy").write_bytes(b"no array")
    with pytest.raises(CheckpointError, match=r"evaluation\.npy: expected logits and labels, got a damaged file"):
        read_scores(tmp_path)
    np.save(tmp_path / "evaluation.npy", np.zeros(4))
    with pytest.raises(CheckpointError, match=r"expected float32 \(2, samples\), got float64 \(4,\)"):
        read_scores(tmp_path)
