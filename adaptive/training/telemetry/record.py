"""The record of a run: plain values, one `IntervalRecord` per logging interval. Files and views are made from it.

Numbers of an interval belong to the batches trained in it, unless they say "so far" or "now".
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adaptive.counters import Counter

STAGES: Final = (
    "read", "learn", "plan", "write_back", "fetch", "wait", "forward", "backward", "update", "row_update", "guard",
    "other",
)  # fmt: skip
"""The stages of a step, in order; keys of `time_ms`.

The first five run beside training. The others are the training thread's and add up to the step: `update` is the
optimizer of the dense part, `row_update` that of the rows, `other` what is left of the step's wall time.
"""


def share(part: int, whole: int) -> float | None:
    """part / whole, or None if there was nothing."""
    return part / whole if whole else None


@dataclass(frozen=True, kw_only=True)
class TableCounts:
    """What happened to the rows of one table (or of several) in an interval; `counters.Counter` says what each is."""

    lookups: int = 0
    unique_rows: int = 0
    lookup_hits: int = 0
    row_hits: int = 0
    resident_rows: int = 0  # on the device now
    promoted: int = 0
    demoted: int = 0
    fetched: int = 0
    written_back: int = 0
    bytes_h2d: int = 0
    bytes_d2h: int = 0
    watched_rows: int = 0  # now, by a policy or rule that skips; by the latest question, as the next two
    judged_rows: int = 0  # of the watched, those with a verdict
    saturated_rows: int = 0  # of the watched, those whose updates are left out or wait
    skipped_updates: int = 0
    skipped_lookups: int = 0
    deferred_updates: int = 0

    @property
    def hit_rate(self) -> float | None:
        """Share of look-ups whose row was on the device when its batch was planned; None without look-ups."""
        return share(self.lookup_hits, self.lookups)

    @property
    def row_hit_rate(self) -> float | None:
        """Share of the batches' unique rows that were on the device when planned; None without look-ups."""
        return share(self.row_hits, self.unique_rows)

    @property
    def judged_row_share(self) -> float | None:
        """Share of the watched rows about which there is a verdict; None where none is watched."""
        return share(self.judged_rows, self.watched_rows)

    @property
    def skipped_update_share(self) -> float | None:
        """Share of row updates (one per unique row and batch) not written when they came: dropped, or deferred."""
        return share(self.skipped_updates, self.unique_rows)

    @property
    def deferred_update_share(self) -> float | None:
        """Share of row updates not written because their gradient waits to be applied with a later one."""
        return share(self.deferred_updates, self.unique_rows)

    @property
    def skipped_lookup_share(self) -> float | None:
        """Share of look-ups of rows whose update was not written."""
        return share(self.skipped_lookups, self.lookups)

    @property
    def moved_bytes(self) -> int:
        """Bytes of rows copied in both directions."""
        return self.bytes_h2d + self.bytes_d2h


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counted values: `counts[i]` lie in [edges[i], edges[i + 1]); outer bins also hold what lies outside.

    Raises:
        ValueError: if lengths disagree, or edges are not finite and rising.
    """

    edges: NDArray[np.float64]  # (n + 1,)
    counts: NDArray[np.int64]  # (n,)
    sum: float
    sum_squares: float

    def __post_init__(self) -> None:
        if len(self.counts) < 1 or len(self.edges) != len(self.counts) + 1:
            raise ValueError(
                f"histogram: {len(self.edges)} edges do not bound {len(self.counts)} bins; one more is needed"
            )
        if not np.isfinite(self.edges).all() or not (np.diff(self.edges) > 0).all():
            raise ValueError("histogram: edges must be finite and rise")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What a run is: the first line of `metrics.jsonl`."""

    policy: str
    table_rows: dict[str, int]  # rows of each table, in the model's order
    config: str = ""  # the resolved configuration, as text
    wall_time: float = field(default_factory=time.time, compare=False)  # seconds since 1970


@dataclass(frozen=True, kw_only=True)
class IntervalRecord:
    """One logging interval of training."""

    step: int  # batches trained so far
    samples: int  # so far
    loss: float  # mean of the interval
    auc: float | None  # running, None while only one class was seen
    log_loss: float | None  # running, nats
    samples_per_s: float
    time_ms: dict[str, float]  # mean per step of each of STAGES
    hit_rate: float | None  # of look-ups, all tables
    row_hit_rate: float | None  # of unique rows, all tables
    tables: dict[str, TableCounts]
    update_norms: Histogram | None = field(default=None, compare=False)  # size of each row's update
    policy: dict[str, float] = field(default_factory=dict)  # numbers that a policy or tier reports
    device_rows: int | None = None  # that the device tier has room for now; None: of several intervals
    accuracy: float | None = None  # running, of training's predictions
    labels: dict[str, dict[str, float | None]] = field(default_factory=dict)  # of several labels each: running quality
    ranks: list[dict[str, float]] = field(default_factory=list)  # of each rank what it sent, sums (`RankTraffic`)
    wall_time: float = field(default_factory=time.time, compare=False)  # seconds since 1970


@dataclass(frozen=True, kw_only=True)
class EvalRecord:
    """One evaluation on held-out data."""

    step: int  # batches trained before it
    samples: int  # evaluated
    auc: float | None
    log_loss: float | None
    accuracy: float | None = None  # share of predictions on their label's side of 0.5
    calibration: float | None = None  # predicted over observed positives
    gauc: float | None = None  # where a feature is named by which samples are grouped
    labels: dict[str, dict[str, float | None]] = field(default_factory=dict)  # of several labels each: the quality
    wall_time: float = field(default_factory=time.time, compare=False)  # seconds since 1970


@dataclass(frozen=True, kw_only=True)
class GuardRecord:
    """One decision of the guard, with its evidence. Differences are run minus fork: below 0, skipping cost quality.

    Intervals are (low, high) at 95 %. What was not measured is None.
    """

    step: int  # batches trained when it was decided
    verdict: str  # keep, reduce, stop, or idle: there is nothing to guard
    reason: str
    trigger: str  # why it was looked at
    budget: float  # loss of AUC that is accepted
    allowance_before: float
    allowance: float  # the share of its skipping that the policy may do from now on
    from_step: int  # the batch from which that holds; up to there a run that was not within the budget is undone
    fork_steps: int = 0  # batches trained side by side
    steps_left: int | None = None  # of the run
    samples: int = 0  # held back, on which the two were compared
    skipped_share: float | None = None  # of row updates, or of inputs, left out of the run meanwhile
    auc_difference: float | None = None
    auc_difference_ci: tuple[float, float] | None = None
    log_loss_difference: float | None = None
    log_loss_difference_ci: tuple[float, float] | None = None
    spent: float = 0.0  # AUC that skipping which passed earlier checks is taken to have cost
    auc_change: float | None = None  # expected by the end of the run, all in all
    auc_change_ci: tuple[float, float] | None = None
    fork_bytes: int = field(default=0, compare=False)  # memory of the fork's rows and dense weights
    fork_batches: int = 0  # trained by forks so far, on top of the run's own
    judged_batches: int = 0  # predicted by run and fork so far
    wall_time: float = field(default_factory=time.time, compare=False)  # seconds since 1970


@dataclass(frozen=True, kw_only=True)
class ResumeRecord:
    """The run was resumed; records after this one continue those before it."""

    step: int  # batches trained before it
    dropped: int  # records of batches that are trained again
    wall_time: float = field(default_factory=time.time, compare=False)  # seconds since 1970


Record = RunRecord | IntervalRecord | EvalRecord | GuardRecord | ResumeRecord

_NOW = ("resident_rows", "watched_rows", "judged_rows", "saturated_rows")


def sum_tables(tables: list[TableCounts]) -> TableCounts:
    """All tables as one."""
    return TableCounts(**{f.name: sum(getattr(table, f.name) for table in tables) for f in fields(TableCounts)})


def add_counts(before: TableCounts, after: TableCounts) -> TableCounts:
    """One table over two intervals that follow each other: flows add up, what counts "now" is that of `after`."""
    names = [f.name for f in fields(TableCounts) if f.name not in _NOW]
    flows = {name: getattr(before, name) + getattr(after, name) for name in names}
    return TableCounts(**flows, **{name: getattr(after, name) for name in _NOW})


def table_counts(
    names: Sequence[str], counts: NDArray[np.int64], **rows_now: NDArray[np.int64]
) -> dict[str, TableCounts]:
    """The counts of an interval by table name.

    Args:
        names: the tables, T of them.
        counts: (T, len(Counter)) of the interval.
        rows_now: (T,) each: resident_rows, watched_rows, judged_rows, saturated_rows; those that are missing are 0.
    """
    assert counts.shape == (len(names), len(Counter)), (counts.shape, len(names))
    assert set(rows_now) <= set(_NOW) and all(len(rows) == len(names) for rows in rows_now.values())
    columns = zip(names, counts.tolist(), strict=True)
    return {
        name: TableCounts(
            **{counter.name.lower(): values[counter] for counter in Counter},
            **{name: int(rows[table]) for name, rows in rows_now.items()},
        )
        for table, (name, values) in enumerate(columns)
    }
