"""The test over samples: two models have predicted the same evaluation samples, and by chance of these they differ.

Beside the interval over seeds, which says what another course of training would change, this one says what other
samples of the same kind would. Each leaves the other's chance out; a difference to be believed stands before both.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.studies.compare.runs import Outcome
from adaptive.studies.compare.verdict import word_of
from adaptive.training.guard.judge import interval
from adaptive.training.quality import PairedDifference, paired_difference

Scores = NDArray[np.float32]
"""(2, n): logits and labels."""


def over_samples(pairs: Sequence[tuple[Outcome, Outcome]], budget: float) -> dict[str, Any] | None:
    """Differences of AUC and log loss of a policy and its control, mean of the seeds, with intervals over samples.

    Where seeds have the same evaluation samples, what a sample contributes is averaged over them; samples of different
    seeds are independent, and the variances of their means add up.

    Args:
        pairs: runs of the policy and of the control, of one seed each.
        budget: loss of AUC.

    Returns:
        None where no pair has kept the scores of the same samples, of two in each class.
    """
    groups = _same_samples([found for mine, control in pairs if (found := _both(mine, control)) is not None])
    parts = [(len(models), paired_difference(models, labels), len(labels)) for models, labels in groups]
    known = [(seeds, found, samples) for seeds, found, samples in parts if found is not None]
    if not known:
        return None
    total = _mean([(seeds, found) for seeds, found, _ in known])
    auc = interval(total.auc, total.auc_error)
    return {
        "auc_difference": total.auc,
        "auc_difference_ci": list(auc),
        "log_loss_difference": total.log_loss,
        "log_loss_difference_ci": list(interval(total.log_loss, total.log_loss_error)),
        "p_value": p_value(total.auc, total.auc_error),
        "samples": sum(samples for _, _, samples in known),
        "seeds": sum(seeds for seeds, _, _ in known),
        "verdict": word_of(auc, budget),
    }


def other_samples(pairs: Sequence[tuple[Outcome, Outcome]]) -> list[str]:
    """A line for each run whose evaluation samples were not the control's: none of its differences mean anything."""
    return [
        f"seed {mine.seed}: evaluated on other samples than {control.policy}, as labels differ; evaluate all "
        "policies on the same ones"
        for mine, control in pairs
        if mine.scores is not None and control.scores is not None and not _same(mine.scores, control.scores)
    ]


def p_value(difference: float, error: float) -> float:
    """The probability of a difference at least as large, to either side, where there is none: that of the normal
    distribution."""
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    return math.erfc(abs(difference) / error / math.sqrt(2))


def _both(mine: Outcome, control: Outcome) -> tuple[Scores, Scores] | None:
    if mine.scores is None or control.scores is None or not _same(mine.scores, control.scores):
        return None
    return mine.scores, control.scores


def _same(mine: Scores, control: Scores) -> bool:
    return np.array_equal(mine[1], control[1])


def _same_samples(pairs: Sequence[tuple[Scores, Scores]]) -> list[tuple[list[tuple[Scores, Scores]], Scores]]:
    """Logits of the pairs that have the same samples, and the labels of these."""
    groups: list[tuple[list[tuple[Scores, Scores]], Scores]] = []
    for mine, control in pairs:
        models = next((models for models, labels in groups if np.array_equal(labels, mine[1])), None)
        if models is None:
            groups.append((models := [], mine[1]))
        models.append((mine[0], control[0]))
    return groups


def _mean(parts: Sequence[tuple[int, PairedDifference]]) -> PairedDifference:
    """Of means over some seeds each, whose errors are independent."""
    seeds = sum(number for number, _ in parts)

    def error(name: str) -> float:
        return math.sqrt(sum((number / seeds * getattr(found, name)) ** 2 for number, found in parts))

    return PairedDifference(
        auc=sum(number / seeds * found.auc for number, found in parts),
        auc_error=error("auc_error"),
        log_loss=sum(number / seeds * found.log_loss for number, found in parts),
        log_loss_error=error("log_loss_error"),
    )
