"""The record of a run: plain values, from which all files and views derive.

Numbers of an interval belong to the batches trained in it, unless a comment says "so far" or "now".
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive.counters import Counter

STAGES: Final = (
    "read", "learn", "plan", "write_back", "fetch", "wait", "forward", "backward", "update", "row_update",
    "other",
)  # fmt: skip
"""The stages of a step, in order; keys of `time_ms`.

Stages after the look-ahead's are the training thread's and add up to the step: `update` is the optimizer of the dense
part, `row_update` that of the rows, `other` the rest of the step's wall time.
"""
LOOK_AHEAD_STAGES: Final = (*STAGES[:5], "policy")
"""Keys of `time_ms` for work in parallel to training; `policy` is the part of `learn` and `plan` inside the policy."""


def share(part: int, whole: int) -> float | None:
    """Return part / whole, or None if whole is 0."""
    return part / whole if whole else None


@dataclass(frozen=True, kw_only=True)
class TableCounts:
    """Counts of one table (or several) in an interval; `counters.Counter` explains each."""

    lookups: int = 0
    unique_rows: int = 0
    lookup_hits: int = 0
    row_hits: int = 0
    resident_rows: int = 0  # on the device now
    admitted: int = 0
    evicted: int = 0
    fetched: int = 0
    written_back: int = 0
    bytes_h2d: int = 0
    bytes_d2h: int = 0
    hot_rows: int = 0  # popular rows, whose updates are measured; as of the skip rule's latest call
    saturated_rows: int = 0  # those of them whose latest updates moved them by less than 5% of their length each
    skipped_updates: int = 0
    skipped_lookups: int = 0
    deferred_updates: int = 0
    live_keys: int = 0  # keys with a row now, in tables with keys; so are the next four
    admitted_keys: int = 0
    expired_keys: int = 0
    evicted_keys: int = 0
    unadmitted_lookups: int = 0

    @property
    def hit_rate(self) -> float | None:
        """Share of lookups with their row on the device at planning; None without any."""
        return share(self.lookup_hits, self.lookups)

    @property
    def row_hit_rate(self) -> float | None:
        """Share of distinct rows on the device at planning; None without lookups."""
        return share(self.row_hits, self.unique_rows)

    @property
    def saturated_row_share(self) -> float | None:
        """Share of hot rows that are saturated; None without hot rows."""
        return share(self.saturated_rows, self.hot_rows)

    @property
    def has_keys(self) -> bool:
        return bool(self.live_keys or self.unadmitted_lookups or self.admitted_keys)

    @property
    def unadmitted_lookup_share(self) -> float | None:
        """Share of lookups of keys without a row; None without lookups."""
        return share(self.unadmitted_lookups, self.lookups)

    @property
    def skipped_update_share(self) -> float | None:
        """Share of row updates (distinct row and batch) that were dropped or deferred."""
        return share(self.skipped_updates, self.unique_rows)

    @property
    def deferred_update_share(self) -> float | None:
        """Share of row updates that were deferred: accumulated and applied later."""
        return share(self.deferred_updates, self.unique_rows)

    @property
    def skipped_lookup_share(self) -> float | None:
        """Share of lookups of rows whose update was skipped."""
        return share(self.skipped_lookups, self.lookups)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Facts of a run: the first line of `metrics.jsonl`."""

    policy: str
    table_rows: dict[str, int]  # rows of each table, in the model's order
    config: str = ""  # all settings as JSON text
    wall_time: float = field(default_factory=time.time, compare=False)  # seconds since 1970


@dataclass(frozen=True, kw_only=True)
class IntervalRecord:
    """One logging interval of training."""

    step: int  # batches trained so far
    samples: int  # so far
    loss: float  # mean of the interval
    auc: float | None  # running, None while only one class was seen
    log_loss: float | None  # running, nats
    samples_per_s: float  # read: samples that a rule dropped count
    time_ms: dict[str, float]  # mean per step of each of STAGES
    hit_rate: float | None  # of lookups, all tables
    row_hit_rate: float | None  # of distinct rows, all tables
    tables: dict[str, TableCounts]
    policy: dict[str, float] = field(default_factory=dict)  # numbers that a policy or tier reports
    device_rows: int | None = None  # size of the device tier now; None: several intervals
    cpu_seconds: float | None = field(default=None, compare=False)  # processor time of this process, all threads
    samples_read: int | None = None  # so far, with those that a rule dropped; None: all are trained
    compiled: bool = field(default=False, compare=False)  # a kernel was compiled, so the interval counts in no speed
    accuracy: float | None = None  # running, of training's predictions
    wall_time: float = field(default_factory=time.time, compare=False)  # seconds since 1970


@dataclass(frozen=True, kw_only=True)
class EvalRecord:
    """One evaluation on held-out data."""

    step: int  # batches trained before it
    samples: int  # evaluated
    auc: float | None
    log_loss: float | None
    accuracy: float | None = None  # share of predictions on the correct side of 0.5
    calibration: float | None = None  # predicted over observed positives
    gauc: float | None = None  # if `eval_by` names a feature
    file: str | None = None  # with `follow`: the file, which is trained next
    samples_read: int | None = None  # by training so far, with those that a rule skipped
    seconds: float | None = field(default=None, compare=False)  # of training so far; see `RunTotals.counted`
    cpu_seconds: float | None = field(default=None, compare=False)  # processor time of the same
    wall_time: float = field(default_factory=time.time, compare=False)  # seconds since 1970


@dataclass(frozen=True, kw_only=True)
class ResumeRecord:
    """The run was resumed here."""

    step: int  # batches trained before it
    dropped: int  # removed records, whose batches are trained again
    wall_time: float = field(default_factory=time.time, compare=False)  # seconds since 1970


Record = RunRecord | IntervalRecord | EvalRecord | ResumeRecord

ROWS_NOW: Final = (
    "resident_rows",
    "hot_rows",
    "saturated_rows",
    "live_keys",
)


def sum_tables(tables: list[TableCounts]) -> TableCounts:
    """Return the counts of all tables together."""
    return TableCounts(**{f.name: sum(getattr(table, f.name) for table in tables) for f in fields(TableCounts)})


def add_counts(first: TableCounts, second: TableCounts) -> TableCounts:
    """Add the counts of two consecutive intervals; rows "now" are of the second."""
    names = [f.name for f in fields(TableCounts) if f.name not in ROWS_NOW]
    flows = {name: getattr(first, name) + getattr(second, name) for name in names}
    return TableCounts(**flows, **{name: getattr(second, name) for name in ROWS_NOW})


def table_counts(
    names: Sequence[str], counts: NDArray[np.int64], **rows_now: NDArray[np.int64]
) -> dict[str, TableCounts]:
    """Return the counts of an interval by table name.

    Args:
        names: the tables, T of them.
        counts: (T, len(Counter)) of the interval.
        rows_now: (T,) each, by names of `ROWS_NOW`; missing ones count as 0.
    """
    assert counts.shape == (len(names), len(Counter)), (counts.shape, len(names))
    assert set(rows_now) <= set(ROWS_NOW) and all(len(rows) == len(names) for rows in rows_now.values())
    columns = zip(names, counts.tolist(), strict=True)
    return {
        name: TableCounts(
            **{counter.name.lower(): values[counter] for counter in Counter},
            **{name: int(rows[table]) for name, rows in rows_now.items()},
        )
        for table, (name, values) in enumerate(columns)
    }


IN_PARTS: Final = "in_parts_share"  # share of batches trained in parts
RESTS: Final = "rule.rest"  # batches for which the input rule is not asked yet
WAITED: Final = "waited_share"  # share of these in which training waited for rows between two parts


@dataclass(kw_only=True)
class Work:
    """What some intervals took."""

    steps: int = 0
    read: int = 0  # samples, with those that a rule dropped
    seconds: float = 0.0  # from each interval's samples per second
    cpu_seconds: float = 0.0  # processor time of this process, all threads
    stage_ms: dict[str, float] = field(default_factory=dict)

    def add_work(self, work: "Work") -> None:
        self.steps += work.steps
        self.read += work.read
        self.seconds += work.seconds
        self.cpu_seconds += work.cpu_seconds
        for stage, total in work.stage_ms.items():
            self.stage_ms[stage] = self.stage_ms.get(stage, 0.0) + total

    @property
    def samples_per_s(self) -> float | None:
        """Samples read per second."""
        return self.read / self.seconds if self.seconds else None

    @property
    def time_ms(self) -> dict[str, float]:
        """Mean milliseconds per step of each stage."""
        return {stage: total / self.steps for stage, total in self.stage_ms.items()} if self.steps else {}


@dataclass(kw_only=True)
class RunTotals(Work):
    """The sums of a run's intervals, which checkpoints have too.

    Attributes:
        counted: the intervals that count in speeds: all but the first, and those in which a kernel was compiled.
        plain, skipping: those of them without skipping, and with it.
    """

    samples: int = 0
    counted: Work = field(default_factory=Work)
    plain: Work = field(default_factory=Work)
    skipping: Work = field(default_factory=Work)
    latest_skipped_share: float | None = None  # of row updates, in the latest interval
    tables: dict[str, TableCounts] = field(default_factory=dict)  # rows "now" are those of the latest interval
    policy: dict[str, float | None] = field(default_factory=dict)  # the policy's latest numbers
    in_parts: float = 0.0  # batches trained in parts
    waited: float = 0.0  # those of them in which training waited for rows

    def add(self, record: IntervalRecord) -> None:
        """Add the next interval."""
        steps = record.step - self.steps
        read = (record.samples if record.samples_read is None else record.samples_read) - self.read
        work = Work(
            steps=steps,
            read=read,
            seconds=read / record.samples_per_s if record.samples_per_s > 0 else 0.0,
            cpu_seconds=record.cpu_seconds or 0.0,
            stage_ms={stage: mean * steps for stage, mean in record.time_ms.items()},
        )
        if self.steps and not record.compiled:
            self.counted.add_work(work)
            drops = read > record.samples - self.samples
            if drops or any(counts.skipped_updates for counts in record.tables.values()):
                self.skipping.add_work(work)
            elif record.policy.get(RESTS, 1):  # a rule that works and skips nothing is slower than none
                self.plain.add_work(work)
        self.add_work(work)
        self.samples = record.samples
        self.latest_skipped_share = sum_tables(list(record.tables.values())).skipped_update_share
        for name, counts in record.tables.items():
            self.tables[name] = add_counts(self.tables.get(name, TableCounts()), counts)
        self._add_policy(record.policy, steps)

    def _add_policy(self, numbers: Mapping[str, float], steps: int) -> None:
        in_parts = numbers.get(IN_PARTS, 0.0) * steps
        self.in_parts += in_parts
        self.waited += numbers.get(WAITED, 0.0) * in_parts
        self.policy = dict(numbers)
        if self.in_parts:
            self.policy |= {IN_PARTS: self.in_parts / self.steps, WAITED: self.waited / self.in_parts}


# -- names of all numbers in views and summaries ----------------------------------------------------------------------

# TensorBoard sorts groups by name; the numbers put the important ones first and single tables last.
TRAINING, EVALUATION, TIERS, KEYS, SKIPPING = "1_training", "2_evaluation", "3_tiers", "3_keys", "4_skipping"
TIME, POLICY, TABLES = "5_time", "6_policy", "7_tables"
QUALITY: Final = ("auc", "log_loss", "accuracy")

Numbers = dict[str, float | None]


class CountField(NamedTuple):
    """Names of a number of `TableCounts` in views and summaries."""

    name: str
    tag: str | None  # TensorBoard tag for all tables together
    summary: str | None  # key in the run's summary
    per_step: float = 0.0  # for flows, shown per step: the unit; 0: a current value
    by_table: bool = False  # each table has a tag too

    def applies_to(self, counts: TableCounts) -> bool:
        """True if the number has a meaning for tables with these counts."""
        return counts.has_keys or self.tag is None or not self.tag.startswith(KEYS)


COUNT_FIELDS: Final = (
    CountField("hit_rate", f"{TIERS}/hit_rate", "hit_rate", by_table=True),
    CountField("row_hit_rate", f"{TIERS}/row_hit_rate", "row_hit_rate", by_table=True),
    CountField("resident_rows", f"{TIERS}/resident_rows", None, by_table=True),
    CountField("admitted", f"{TIERS}/admitted_rows_per_step", "admitted_rows", 1, by_table=True),
    CountField("evicted", f"{TIERS}/evicted_rows_per_step", "evicted_rows", 1),
    CountField("fetched", f"{TIERS}/fetched_rows_per_step", "fetched_rows", 1),
    CountField("written_back", f"{TIERS}/written_back_rows_per_step", "written_back_rows", 1),
    CountField("bytes_h2d", f"{TIERS}/kib_to_device_per_step", "bytes_h2d", 1024),
    CountField("bytes_d2h", f"{TIERS}/kib_to_host_per_step", "bytes_d2h", 1024),
    CountField("live_keys", f"{KEYS}/live_keys", "live_keys", by_table=True),
    CountField("admitted_keys", f"{KEYS}/admitted_keys_per_step", "admitted_keys", 1, by_table=True),
    CountField("expired_keys", f"{KEYS}/expired_keys_per_step", "expired_keys", 1, by_table=True),
    CountField("evicted_keys", f"{KEYS}/evicted_keys_per_step", "evicted_keys", 1, by_table=True),
    CountField("unadmitted_lookup_share", f"{KEYS}/unadmitted_lookup_share", "unadmitted_lookup_share", by_table=True),
    CountField("hot_rows", f"{SKIPPING}/hot_rows", "hot_rows"),
    CountField("saturated_rows", f"{SKIPPING}/saturated_rows", "saturated_rows", by_table=True),
    CountField("saturated_row_share", f"{SKIPPING}/saturated_row_share", "saturated_row_share"),
    CountField("skipped_update_share", f"{SKIPPING}/skipped_update_share", "skipped_update_share", by_table=True),
    CountField("deferred_update_share", f"{SKIPPING}/deferred_update_share", "deferred_update_share"),
    CountField("skipped_lookup_share", None, "skipped_lookup_share"),
)


def count_numbers(counts: TableCounts, steps: int, table: str | None = None, *, skips: bool = True) -> Numbers:
    """Return tag -> number for all tables or one, in an interval of `steps`."""
    numbers: Numbers = {}
    for shown in COUNT_FIELDS:
        if shown.tag is None or (table is not None and not shown.by_table) or not shown.applies_to(counts):
            continue
        if skips or not shown.tag.startswith(SKIPPING):
            value = getattr(counts, shown.name)
            tag = shown.tag if table is None else f"{TABLES}/{table}/{shown.tag.partition('/')[2]}"
            numbers[tag] = value / shown.per_step / steps if shown.per_step else value
    return numbers


def interval_numbers(record: IntervalRecord, steps: int, *, skips: bool = True) -> Numbers:
    """Return tag -> number for an interval of `steps`, all tables together.

    Tags with `so_far` are since the start of the run, with each batch predicted before it was trained.
    """
    return {
        f"{TRAINING}/loss": record.loss,
        **{f"{TRAINING}/{name}_so_far": getattr(record, name) for name in QUALITY},
        f"{TRAINING}/samples_per_s": record.samples_per_s,
        f"{TIERS}/device_rows": record.device_rows,
        **count_numbers(sum_tables(list(record.tables.values())), steps, skips=skips),
        **{f"{TIME}/{stage}_ms": value for stage, value in record.time_ms.items()},
        **{f"{POLICY}/{name}": value for name, value in record.policy.items()},
    }


MORE_QUALITY: Final = ("calibration", "gauc")


def evaluation_numbers(record: EvalRecord) -> Numbers:
    """Return tag -> quality on held-out data."""
    return {f"{EVALUATION}/{name}": getattr(record, name) for name in (*QUALITY, *MORE_QUALITY)}
