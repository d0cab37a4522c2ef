"""One word for each policy, and why: whether it skipped, whether it equals the control, how sure a difference is."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from adaptive.studies.compare.runs import Outcome

CONFIDENCE: Final = 0.95
MOST_SEEDS: Final = 100  # that anybody may be told to train


def is_exact(mine: Sequence[Outcome]) -> bool:
    """At least one run came to its end, and none skipped anything or arranged its inputs."""
    return skips_nothing(mine) and not any(outcome.arranges for outcome in ended(mine))


def skips_nothing(mine: Sequence[Outcome]) -> bool:
    """At least one run came to its end, and none skipped anything; inputs may have been regrouped."""
    runs = ended(mine)
    return bool(runs) and not any(skipped(outcome.summary) for outcome in runs)


def is_equal(pairs: Sequence[tuple[Outcome, Outcome]]) -> bool:
    """A policy that may regroup or skip inputs did nothing of the kind."""
    return all(mine.bits == control.bits and not skipped(mine.summary) for mine, control in pairs)


def ended(mine: Sequence[Outcome]) -> list[Outcome]:
    """The runs that came to their end."""
    return [outcome for outcome in mine if outcome.error is None]


def skipped(summary: Mapping[str, Any]) -> bool:
    """A run left something out."""
    return any(summary[name] for name in share_names(summary))


def share_names(summary: Mapping[str, Any]) -> list[str]:
    """What a summary tells that was skipped."""
    return [name for name in summary if name.startswith("skipped_") and name.endswith("_share")]


def verdict(
    mine: Sequence[Outcome],
    pairs: Sequence[tuple[Outcome, Outcome]],
    difference: Sequence[float],
    unequal: Sequence[int],
    budget: float,
) -> tuple[str, str]:
    """One word, and why: `failed`, `differs` (was to be equal to the control and is not), `within` or `outside` the
    budget, `undecided`; in the place of this `unskipped` for a policy that skips nothing. `unskipped` is also a policy
    whose skip rule watched rows and skipped nothing yet.

    Args:
        mine: runs of a policy.
        pairs: those that ended, with the control's of the same seed.
        difference: of their AUC.
        unequal: seeds with other bits than the control, where they must be equal.
    """
    if not ended(mine):
        return "failed", "no run came to its end"
    if unequal:
        return "differs", (
            f"skipped nothing and still trained other numbers than {pairs[0][1].policy}, with seed "
            f"{', '.join(map(str, unequal))}; on a GPU set deterministic=true, else a policy changes what it is handed"
        )
    if pairs and pairs[0][0].policy == pairs[0][1].policy:
        return "within", "the control"
    if pairs and (is_exact(mine) or is_equal(pairs)):
        if any(outcome.summary.get("watched_rows") for outcome in ended(mine)):
            steps = max(outcome.summary["steps"] for outcome in ended(mine))
            return "unskipped", (
                f"its rule skipped nothing in {steps:,} steps, so the weights are the control's and say nothing about "
                "skipping; train more steps"
            )
        return "within", "equal to the control bit for bit"
    word, reason = _of_differences(difference, budget) if pairs else ("undecided", _without_control(mine))
    if word == "undecided" and skips_nothing(mine):
        return "unskipped", f"nothing is left out, its batches are others; {reason}" if pairs else reason
    return word, reason


def _without_control(mine: Sequence[Outcome]) -> str:
    if skips_nothing(mine):
        return "nothing is left out; the control ended with none of its seeds, so its numbers were not checked"
    return "no un-skipped run to compare with: add a policy that skips nothing, such as lru"


def _of_differences(difference: Sequence[float], budget: float) -> tuple[str, str]:
    if not difference:
        return "undecided", "no AUC to compare: the labels are of one class"
    bounds = interval(difference)
    if bounds is None:
        return "undecided", "one seed gives no confidence interval: raise --seeds"
    return _against_budget(bounds, budget, seeds_to_decide(difference, budget))


def _against_budget(bounds: Sequence[float], budget: float, seeds: int | None) -> tuple[str, str]:
    word = word_of(bounds, budget)
    if word == "within":
        return word, f"the AUC falls by at most {budget:g}, with {CONFIDENCE:.0%} confidence"
    if word == "outside":
        return word, f"the AUC falls by more than {budget:g}, with {CONFIDENCE:.0%} confidence"
    more = f"about {seeds} seeds would decide" if seeds else f"more than {MOST_SEEDS} seeds would be needed"
    return word, f"the interval straddles a loss of {budget:g}; if it stays as it is, {more} (--seeds, --auto-resume)"


def word_of(bounds: Sequence[float], budget: float) -> str:
    """Where an interval of a difference of AUC lies against a budget of loss."""
    low, high = bounds
    return "within" if low >= -budget else "outside" if high < -budget else "undecided"


def seeds_to_decide(differences: Sequence[float], budget: float) -> int | None:
    """How many seeds would put the whole interval on one side of a loss of `budget`, if mean and spread stayed as they
    are; None for more than `MOST_SEEDS`."""
    from scipy.stats import t

    distance, spread = abs(statistics.fmean(differences) + budget), statistics.stdev(differences)
    for seeds in range(len(differences) + 1, MOST_SEEDS + 1):
        if spread * float(t.ppf((1 + CONFIDENCE) / 2, seeds - 1)) / math.sqrt(seeds) < distance:
            return seeds
    return None


def interval(differences: Sequence[float]) -> list[float] | None:
    """Student's t interval of the mean of paired differences, at `CONFIDENCE`; None for fewer than two."""
    if len(differences) < 2:
        return None
    from scipy.stats import t

    mean, error = statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
    reach = error * float(t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1))
    return [mean - reach, mean + reach]
