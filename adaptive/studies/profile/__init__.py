"""Results of `profile`: lookups by row, step time by stage, movement of hot rows.

`Profile` is the object that `adaptive-train profile --json` prints. All its numbers are measured. A share of nothing is
None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA = 1
KIND = "profile"


@dataclass(frozen=True)
class TableSkew:
    """Access skew of one table.

    Attributes:
        seen: rows that were looked up.
        rows_for_half, rows_for_90: smallest number of rows with 50% and 90% of the lookups.
    """

    table: str
    rows: int
    lookups: int
    lookups_per_sample: float
    seen: int
    top_share: float | None
    rows_for_half: int
    rows_for_90: int
    hottest_over_median: float | None
    seen_once_share: float | None


@dataclass(frozen=True)
class HashCollisions:
    """Ids of a table that share a row because they are hashed.

    Attributes:
        seen: rows that were looked up.
        ids: expected number of distinct ids, from how many rows they fill; None if they fill all.
        shared_share: expected share of the ids, and of lookups, whose row has other ids, too.
    """

    table: str
    rows: int
    seen: int
    ids: float | None
    shared_share: float


@dataclass(frozen=True)
class SkewCurve:
    """(rank from 1, lookups) of rows, most frequent first, in all inputs and a sample."""

    table: str
    full: Sequence[tuple[int, int]]
    sampled: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class HotShares:
    """Hot rows, and their shares of the lookups and inputs.

    `hot_batch_share` has, by batch size, the share of mini-batches with such inputs only.
    """

    hot_rows: int
    lookup_share: float | None
    hot_input_share: float | None
    hot_batch_share: Mapping[str, float | None]


@dataclass(frozen=True)
class HotByThreshold(HotShares):
    """Rows are hot from a share of their table's lookups on."""

    threshold: float
    bytes: int


@dataclass(frozen=True)
class HotBySample(HotShares):
    """Hot rows chosen from a sample for the same memory, and FAE's estimate."""

    same_rows_share: float | None
    estimated_rows: float
    estimated_margin: float
    estimated_bytes: float


@dataclass(frozen=True)
class HotByMemory(HotShares):
    """The hottest rows that fit; `threshold` is None if only whole tables are hot."""

    memory: str
    rows_that_fit: int
    bytes: int
    threshold: float | None
    sampled: HotBySample


@dataclass(frozen=True)
class Reuse:
    """Rows that batches share.

    `reused_from` has, by number n, the share of a batch's distinct rows that one of the n batches before it also looked
    up. `distinct_by_batch_size` has mean distinct rows.
    """

    batch_size: int
    batches: int
    reused_from: Mapping[str, float | None]
    distinct_by_batch_size: Mapping[str, float]


@dataclass(frozen=True)
class SuggestedSize:
    """Device tier size: the larger of `rows_for_90` and `rows_in_flight`."""

    device_rows: int
    bytes: int
    rows_for_90: int
    rows_in_flight: int
    depth: int


@dataclass(frozen=True)
class DataProfile:
    """Exact lookup counts of a data set; `lookups_per_s` is on one core."""

    samples: int
    lookups: int
    rows: int
    row_bytes: int
    table_bytes: int
    was_stopped: bool
    tables: Sequence[TableSkew]
    collisions: Sequence[HashCollisions]
    curves: Sequence[SkewCurve]
    sample_share: float
    sampled_samples: int
    hot: Sequence[HotByMemory]
    thresholds: Sequence[HotByThreshold]
    reuse: Reuse
    suggested: SuggestedSize
    seconds: Mapping[str, float]
    lookups_per_s: float | None


@dataclass(frozen=True)
class StepProfile:
    """A training step under one policy; times are medians in milliseconds.

    Attributes:
        training_ms: by stage, without look-ahead.
        look_ahead_ms: look-ahead stages, which run next to training.
        serial_ms: the whole step without look-ahead.
        step_ms: the whole step with look-ahead, including `wait_ms` of waiting for it.
        counts: per step, by name of the counter.
        vectors: per step: one per bag, or per lookup without pooling.
        hidden_share: share of the shorter of training and look-ahead that runs behind the longer.
    """

    policy: str
    device: str
    misses: str
    device_rows: int
    device_share: float
    batch_size: int
    depth: int
    training_ms: Mapping[str, float]
    look_ahead_ms: Mapping[str, float]
    other_ms: float
    serial_ms: float
    step_ms: float
    wait_ms: float
    counts: Mapping[str, float]
    vectors: float
    hit_rate: float | None
    bytes_h2d: float
    bytes_d2h: float
    flops_per_sample: float
    dense_bytes: int
    hidden_share: float

    @property
    def stages_ms(self) -> dict[str, float]:
        """All stages, including those of look-ahead."""
        return {**self.training_ms, **self.look_ahead_ms}


@dataclass(frozen=True)
class LeftOut:
    """Shares that a movement threshold would leave out.

    Attributes:
        all, most, any: inputs for which all, 75%, or any of their lookups are of stale rows.
        hot: inputs for which 75% are, and all rows are watched.
        updates: row updates.
    """

    all: float | None
    most: float | None
    any: float | None
    hot: float | None
    updates: float | None


@dataclass(frozen=True)
class MovementPoint:
    """Movement in one interval.

    Attributes:
        below: share of the judged rows that moved less than each threshold.
        bands: quantiles of movement by band of rows; None without a judged row.
        dropped: shares that each threshold would leave out.
    """

    steps: int
    judged_rows: int
    below: Sequence[float | None]
    bands: Mapping[str, Sequence[float] | None]
    dropped: Sequence[LeftOut]


@dataclass(frozen=True)
class MovementProfile:
    """Movement of hot rows in intervals of `every` steps."""

    optimizer: str
    lr: float
    policy: str
    batch_size: int
    watched_rows: int
    every: int
    judged_from: int
    thresholds: Sequence[float]
    was_stopped: bool
    points: Sequence[MovementPoint]


@dataclass(frozen=True)
class Profile:
    """The profiled sections; `machine` has this machine's rates as in its file, if requested."""

    data_of: str
    data: DataProfile | None = None
    step: Sequence[StepProfile] = ()
    movement: MovementProfile | None = None
    machine: Mapping[str, Any] | None = None
    schema: int = SCHEMA
    kind: str = KIND
