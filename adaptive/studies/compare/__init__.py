"""Policies trained side by side on the same data, and a verdict on what skipping cost: what `compare` finds.

`contenders` are the policies and settings to compare, `comparison_runs` trains them, `verdicts` judges the runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Interval = tuple[float, float]


@dataclass(frozen=True)
class ComparedRun:
    """One training; numbers are None where it did not come to its end.

    Attributes:
        samples_per_s: without the time of compiling.
        stop_at: when it reached its target, if it had one.
        others_cpu_share: of the cores, taken by other processes meanwhile; None: not known.
    """

    seed: int
    run_dir: str
    auc: float | None
    log_loss: float | None
    accuracy: float | None
    samples_per_s: float | None
    stop_at: Mapping[str, object] | None
    others_cpu_share: float | None
    error: str | None


@dataclass(frozen=True)
class SampleTest:
    """Differences from the control, mean of the seeds, with intervals over samples."""

    auc_difference: float
    auc_difference_ci: Interval
    log_loss_difference: float
    log_loss_difference_ci: Interval
    p_value: float
    samples: int
    seeds: int
    verdict: str


@dataclass(frozen=True)
class ComparedPolicy:
    """One policy, with one combination of swept values. Numbers are means over seeds, of speed and times medians; None
    where no run has them.

    Attributes:
        swept: setting -> value; empty where nothing is swept.
        beside: the policy whose share of dropped inputs this one dropped at random.
        target: metric and value at which runs were to stop; `target_step`, `target_samples` are means and
            `target_seconds` (of training) the median of those that reached it.
        bytes_h2d ... written_back_rows: of a run, not of a step.
        time_ms: of a step, by stage.
        over_samples: None for exact policies, and without scores of the same samples.
        exact: must equal the control bit for bit, and does.
        seeds: of the runs that came to their end.
    """

    policy: str
    swept: Mapping[str, object]
    beside: str | None
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
    target: str | None
    target_reached: int
    target_step: float | None
    target_samples: float | None
    target_seconds: float | None
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
    deferred_update_share: float | None
    samples_per_s: float | None
    time_ms: Mapping[str, float]
    policy_numbers: Mapping[str, float | None]
    over_samples: SampleTest | None
    exact: bool
    verdict: str
    reason: str
    seeds: Sequence[int]
    runs: Sequence[ComparedRun]


@dataclass(frozen=True)
class Control:
    """The control of a combination of swept values."""

    swept: Mapping[str, object]
    control: str | None


@dataclass(frozen=True)
class Comparison:
    """What `adaptive-train compare --json` prints.

    Attributes:
        control: None where settings are swept: `values` has a control for each combination then.
        auc_of: "evaluation" or "training"; None if no run came to its end.
        auc_budget: loss of AUC against the control that a policy may cause.
        problems: what no comparison should have: runs that failed, and policies that skipped nothing and still differ
            from the control.
        out: the directory of the runs.
    """

    schema: int
    control: str | None
    values: Sequence[Control]
    seeds: Sequence[int]
    auc_of: str | None
    auc_budget: float
    confidence: float
    problems: Sequence[str]
    policies: Sequence[ComparedPolicy]
    out: str = ""
