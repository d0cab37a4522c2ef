"""`compare`: the policies to compare, and the results.

A list such as `lru,lfu+half_life=500` becomes settings here; mistakes are reported in the words of the list, before
anything is trained. `comparison_runs` trains the policies, `verdicts` judges the runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from adaptive.config import TrainConfig
from adaptive.errors import ConfigError
from adaptive.plugins import PARAMETER, load_policy_class, make_policy, policy_parameters, with_rule
from adaptive.policy import Policy, arranges

_OF_POLICY: Final = "policy."


Load = Callable[[str, Sequence[str]], TrainConfig]
"""Loads settings from a policy with its parameters, and a list of KEY=VALUE."""


@dataclass(frozen=True)
class Contender:
    """A policy as the user wrote it, and the settings of its runs."""

    label: str
    config: TrainConfig

    @property
    def arranges(self) -> bool:
        """True if the policy regroups or drops inputs, so that its batches differ."""
        policy = make_policy(self.config.policy, self.config.policy_options)
        with_rule(policy, self.config.skip)
        return arranges(policy)


def contenders(policies: str, sets: Sequence[str], load: Load) -> list[Contender]:
    """Return the policies of a comma-separated list, each with its settings.

    A policy is a name, module:Class or file.py:Class, and may have parameters: `lfu+half_life=500`.
    For a policy without a parameter `skip`, `lfu+skip=defer+at_most=8` names a skip rule and its parameters.
    `policy.NAME=VALUE` in `sets` applies to every policy of the list that has the parameter. A policy that works with
    only one size of the device tier gets that size.

    Raises:
        ConfigError: for an empty list, a repeated policy, or a parameter that the policy (for `sets`: every policy)
            does not have.
        AdaptiveError: from `load`, or if a policy cannot be loaded or rejects its parameters.
    """
    labels = [label.strip() for label in policies.split(",") if label.strip()]
    if not labels:
        raise ConfigError(f"policies: expected a list such as hybrid,lru,lfu+half_life=500, got {policies!r}")
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        raise ConfigError(f"policies: expected each policy once, got {', '.join(repeated)} again. Vary its parameters")
    parameters = [text for text in sets if text.strip().startswith(_OF_POLICY)]
    classes = {label: load_policy_class(PARAMETER.split(label)[0]) for label in labels}
    _check_parameters(parameters, classes)
    others = [text for text in sets if text not in parameters]
    return [_contender(label, classes[label], parameters, others, load) for label in labels]


def _contender(
    label: str, cls: type[Policy], parameters: Sequence[str], others: Sequence[str], load: Load
) -> Contender:
    names = policy_parameters(cls)
    config = load(label, [*others, *(text for text in parameters if _parameter(text) in names)])
    if config.follow:
        raise ConfigError(
            "expected data that do not grow, got follow=true. Only `run` follows a folder: name its files"
        )
    with_rule(make_policy(cls, config.policy_options), config.skip)  # raises for values that cannot be used
    if cls.device_rows is not None:
        config = config.model_copy(update={"tier": config.tier.model_copy(update={"device_rows": "auto"})})
    return Contender(label, config)


def _parameter(text: str) -> str:
    return text.strip().removeprefix(_OF_POLICY).partition("=")[0].strip()


def _check_parameters(parameters: Sequence[str], classes: Mapping[str, type[Policy]]) -> None:
    names = sorted({name for cls in classes.values() for name in policy_parameters(cls)})
    for text in parameters:
        if _parameter(text) not in names:
            raise ConfigError(
                f"{text.strip()}: expected a parameter of {', '.join(classes)} ({', '.join(names) or 'they have none'})"
                f", got {_parameter(text)}"
            )


Interval = tuple[float, float]


@dataclass(frozen=True)
class ComparedRun:
    """One training run; numbers are None if it did not finish.

    Attributes:
        samples_per_s: compile time excluded.
        others_cpu_share: share of the cores that other processes used meanwhile; None if unknown.
    """

    seed: int
    run_dir: str
    auc: float | None
    log_loss: float | None
    accuracy: float | None
    samples_per_s: float | None
    others_cpu_share: float | None
    error: str | None


@dataclass(frozen=True)
class TimeToAuc:
    """Work until an evaluation first reached an AUC, without evaluations and compilation.

    Numbers of work are medians over the runs that reached it; ratios are medians over seeds of the work over the
    control's. None if no run has them.

    Attributes:
        target: the AUC; a mean over seeds if each has its own.
        runs, reached: runs with a target, and those that reached it.
        cpu_seconds: processor time, all threads.
        samples_read: with the samples that a rule skipped.
        best: best AUC, a mean over the runs.
    """

    target: float
    runs: int
    reached: int
    seconds: float | None
    seconds_ratio: float | None
    cpu_seconds: float | None
    cpu_seconds_ratio: float | None
    samples_read: float | None
    samples_read_ratio: float | None
    best: float


@dataclass(frozen=True)
class ComparedPolicy:
    """One policy.

    Numbers are means over the seeds that finished, speeds and times are medians; None if no run has them.

    Attributes:
        control_of: set for a `random_drop` control: the policy whose share of dropped inputs it drops at random.
        control_by: set for such a control: `chance` or `label`.
        samples_read: with the samples that a rule skipped; `samples` are those trained.
        effective_samples: samples of equal weight that estimate the gradient as well as those trained;
            `weight_spread` is the standard deviation of their weights over the mean.
        to_auc: time to quality, if an AUC was given.
        bytes_h2d, bytes_d2h, fetched_rows, written_back_rows: totals of a run.
        time_ms: milliseconds of a step by stage.
        same_samples: its AUC and the control's are of the same samples.
        exact: the policy must equal the control bit for bit, and does.
        seeds: seeds of the runs that finished.
    """

    policy: str
    control_of: str | None
    control_by: str | None
    auc: float | None
    auc_std: float | None
    auc_difference: float | None
    auc_difference_ci: Interval | None
    log_loss: float | None
    log_loss_std: float | None
    log_loss_difference: float | None
    log_loss_difference_ci: Interval | None
    accuracy: float | None
    accuracy_std: float | None
    accuracy_difference: float | None
    accuracy_difference_ci: Interval | None
    auc_difference_to_random: float | None
    auc_difference_to_random_ci: Interval | None
    hit_rate: float | None
    row_hit_rate: float | None
    bytes_h2d: float | None
    bytes_d2h: float | None
    fetched_rows: float | None
    written_back_rows: float | None
    steps: float | None
    samples: float | None
    host_bytes_read: float | None
    host_bytes_written: float | None
    skipped_update_share: float | None
    skipped_lookup_share: float | None
    skipped_input_share: float | None
    samples_read: float | None
    effective_samples: float | None
    weight_spread: float | None
    deferred_update_share: float | None
    samples_per_s: float | None
    time_ms: Mapping[str, float | None]
    policy_numbers: Mapping[str, float | None]
    to_auc: TimeToAuc | None
    same_samples: bool
    exact: bool
    verdict: str
    reason: str
    seeds: Sequence[int]
    runs: Sequence[ComparedRun]


@dataclass(frozen=True)
class Comparison:
    """The object that `adaptive-train compare --json` prints.

    Attributes:
        control: the policy that the others are compared with; None if every one skips something.
        auc_of: "evaluation" or "training"; None if no run finished.
        auc_budget: AUC that a policy may lose against the control.
        problems: failed runs, and policies that skipped nothing and still differ from the control.
        out: directory of the runs.
    """

    schema: int
    control: str | None
    seeds: Sequence[int]
    auc_of: str | None
    auc_budget: float
    confidence: float
    problems: Sequence[str]
    policies: Sequence[ComparedPolicy]
    out: str = ""
