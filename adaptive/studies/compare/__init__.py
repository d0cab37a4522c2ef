"""Results of `compare`: runs of policies on the same data, and verdicts.

`contenders` parses the policies and settings to compare, `comparison_runs` trains them, `verdicts` judges the runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
