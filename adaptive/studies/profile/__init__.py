"""What `profile` finds before training: who is looked up how often, where a step's time goes, how rows come to rest.

`Profile` is what `adaptive-train profile --json` prints; all its numbers are measured. Shares are None of nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA = 1
KIND = "profile"


@dataclass(frozen=True)
class TableSkew:
    """How unevenly rows of a table are looked up; `seen`: rows that are; `rows_for_half`, `rows_for_90`: the least
    number of rows with 50 and 90 % of the lookups."""

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
class SkewCurve:
    """(rank from 1, lookups) of the rows of a table, most frequent first: of all inputs, and of the sample."""

    table: str
    full: Sequence[tuple[int, int]]
    sampled: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class HotShares:
    """Hot rows, the lookups that they take, inputs all of whose rows are hot; by size: mini-batches all of whose
    inputs are."""

    hot_rows: int
    lookup_share: float | None
    hot_input_share: float | None
    hot_batch_share: Mapping[str, float | None]


@dataclass(frozen=True)
class HotByThreshold(HotShares):
    """Rows with at least a share of their table's lookups are hot."""

    threshold: float
    bytes: int


@dataclass(frozen=True)
class HotBySample(HotShares):
    """What a random sample of the inputs chooses for the same memory, and FAE's estimate of its number of rows."""

    same_rows_share: float | None
    estimated_rows: float
    estimated_margin: float
    estimated_bytes: float


@dataclass(frozen=True)
class HotByMemory(HotShares):
    """The hottest rows that fit; `threshold`: the least share of a hot row, None where only whole tables are hot."""

    memory: str
    rows_that_fit: int
    bytes: int
    threshold: float | None
    sampled: HotBySample


@dataclass(frozen=True)
class Reuse:
    """Of a batch's distinct rows, the share that one of so many batches before had; mean distinct rows by batch
    size."""

    batch_size: int
    batches: int
    known_from: Mapping[str, float | None]
    distinct_by_batch_size: Mapping[str, float]


@dataclass(frozen=True)
class SuggestedSize:
    """Of the device tier: the larger of the rows with 90 % of the lookups and those that batches in flight hold."""

    device_rows: int
    bytes: int
    rows_for_90: int
    rows_in_flight: int
    depth: int


@dataclass(frozen=True)
class DataProfile:
    """What a data set looks up, exactly; `seconds`: spent by part, `lookups_per_s`: counted on one core."""

    samples: int
    lookups: int
    rows: int
    row_bytes: int
    table_bytes: int
    was_stopped: bool
    tables: Sequence[TableSkew]
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
    """The step of one policy: milliseconds of a step, medians.

    Attributes:
        training_ms: by stage, without look-ahead; `beside_ms`: of what look-ahead does next to training.
        serial_ms: the whole step without look-ahead; `step_ms`: with it, of which `wait_ms` are waited.
        counts: of a step, by name of the counter.
        hidden_share: of the shorter of training and look-ahead, hidden behind the longer.
    """

    policy: str
    device: str
    misses: str
    device_rows: int
    device_share: float
    batch_size: int
    depth: int
    training_ms: Mapping[str, float]
    beside_ms: Mapping[str, float]
    other_ms: float
    serial_ms: float
    step_ms: float
    wait_ms: float
    counts: Mapping[str, float]
    hit_rate: float | None
    bytes_h2d: float
    bytes_d2h: float
    flops_per_sample: float
    dense_bytes: int
    hidden_share: float

    @property
    def stages_ms(self) -> dict[str, float]:
        """All stages, those of look-ahead, too."""
        return {**self.training_ms, **self.beside_ms}


@dataclass(frozen=True)
class LeftOut:
    """Shares of the inputs that a rule would drop: all, 75 % or any of their lookups are of resting rows; hot: 75 % of
    them, all of whose rows are watched; and of the row updates."""

    all: float | None
    most: float | None
    any: float | None
    hot: float | None
    updates: float | None


@dataclass(frozen=True)
class MovementPoint:
    """After an interval: shares that moved less than each threshold, quantiles of movement by band, what each
    threshold would leave out."""

    steps: int
    judged_rows: int
    below: Sequence[float | None]
    bands: Mapping[str, Sequence[float] | None]
    dropped: Sequence[LeftOut]


@dataclass(frozen=True)
class MovementProfile:
    """How far hot rows move; `every`: steps of an interval, `judged_from`: lookups in it."""

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
    """The sections that were profiled; `machine`: this machine's rates as its file has them, if they were asked for."""

    data_of: str
    data: DataProfile | None = None
    step: Sequence[StepProfile] = ()
    movement: MovementProfile | None = None
    machine: Mapping[str, Any] | None = None
    schema: int = SCHEMA
    kind: str = KIND
