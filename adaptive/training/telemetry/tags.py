"""Which number stands under which TensorBoard tag, and the page that shows some of them side by side.

TensorBoard sorts groups by name, so they carry numbers: what a newcomer looks for comes first, single tables last.
"""

from typing import Any, Final

import numpy as np

from adaptive.training.telemetry import events
from adaptive.training.telemetry.formatting import guard_text
from adaptive.training.telemetry.record import EvalRecord, GuardRecord, IntervalRecord, TableCounts

TRAINING, EVALUATION, TIERS, SKIPPING = "1_training", "2_evaluation", "3_tiers", "4_skipping"
TIME, POLICY, GUARD, TABLES, RANKS = "5_time", "6_policy", "7_guard", "8_tables", "9_ranks"
UPDATE_NORM: Final = "update_norm"
OTHER: Final = "other"  # tables that have no tags of their own, together
PERCENTILES: Final = (5, 50, 95)  # of a share over tables
KIB: Final = 1024

Numbers = dict[str, float | None]


def training(record: IntervalRecord) -> Numbers:
    """Quality of training's predictions, each made before its batch was learnt: `so_far` since the run began."""
    each = {
        f"{TRAINING}/{name}_so_far_{label}": found.get(name)
        for label, found in record.labels.items()
        for name in ("auc", "log_loss")
    }
    return {
        f"{TRAINING}/loss": record.loss,
        f"{TRAINING}/auc_so_far": record.auc,
        f"{TRAINING}/log_loss_so_far": record.log_loss,
        f"{TRAINING}/accuracy_so_far": record.accuracy,
        f"{TRAINING}/samples_per_s": record.samples_per_s,
        **each,
    }


def evaluation(record: EvalRecord) -> Numbers:
    """Quality on held-out data, of several labels also that of each."""
    names = ("auc", "log_loss", "accuracy")
    numbers: Numbers = {f"{EVALUATION}/{name}": getattr(record, name) for name in (*names, "calibration", "gauc")}
    each = {f"{EVALUATION}/{name}_{label}": q.get(name) for label, q in record.labels.items() for name in names}
    return numbers | each


def tiers(counts: TableCounts, device_rows: int | None, steps: int) -> Numbers:
    """All tables together, in an interval of so many steps. device_rows: that there is room for."""
    return {
        f"{TIERS}/hit_rate": counts.hit_rate,
        f"{TIERS}/row_hit_rate": counts.row_hit_rate,
        f"{TIERS}/resident_rows": counts.resident_rows,
        f"{TIERS}/device_rows": device_rows,
        f"{TIERS}/promoted_rows_per_step": counts.promoted / steps,
        f"{TIERS}/demoted_rows_per_step": counts.demoted / steps,
        f"{TIERS}/fetched_rows_per_step": counts.fetched / steps,
        f"{TIERS}/written_back_rows_per_step": counts.written_back / steps,
        f"{TIERS}/kib_to_device_per_step": counts.bytes_h2d / KIB / steps,
        f"{TIERS}/kib_to_host_per_step": counts.bytes_d2h / KIB / steps,
    }


def spread(tables: list[TableCounts]) -> Numbers:
    """Hit rates over tables: how far the worst ones lie behind."""
    numbers: Numbers = {}
    for rate in ("hit_rate", "row_hit_rate"):
        known = [value for value in (getattr(table, rate) for table in tables) if value is not None]
        if known:
            found = np.percentile(known, PERCENTILES)
            numbers |= {tag: float(value) for tag, value in zip(_spread_tags(rate), found, strict=True)}
    return numbers


def skipping(counts: TableCounts) -> Numbers:
    """Watched and saturated rows now, and updates of an interval that were not written when they came."""
    return {
        f"{SKIPPING}/watched_rows": counts.watched_rows,
        f"{SKIPPING}/saturated_rows": counts.saturated_rows,
        f"{SKIPPING}/judged_row_share": counts.judged_row_share,
        f"{SKIPPING}/skipped_update_share": counts.skipped_update_share,
        f"{SKIPPING}/deferred_update_share": counts.deferred_update_share,
    }


def guard(record: GuardRecord) -> Numbers:
    """What the guard measured and decided."""
    numbers: Numbers = {
        f"{GUARD}/{name}": getattr(record, name)
        for name in ("allowance", "auc_difference", "auc_change", "skipped_share")
    }
    for name in ("auc_difference", "auc_change"):
        low, high = getattr(record, f"{name}_ci") or (None, None)
        numbers |= {f"{GUARD}/{name}_low": low, f"{GUARD}/{name}_high": high}
    return numbers


def decision(record: GuardRecord) -> list[Any]:
    """The guard's decision in words."""
    return events.text(f"{GUARD}/decision", guard_text(record))


def table(name: str, counts: TableCounts, steps: int, *, skips: bool) -> Numbers:
    """One table, in an interval of so many steps; `metrics.jsonl` has all of its counts."""
    group = f"{TABLES}/{name}"
    numbers: Numbers = {
        f"{group}/hit_rate": counts.hit_rate,
        f"{group}/row_hit_rate": counts.row_hit_rate,
        f"{group}/resident_rows": counts.resident_rows,
        f"{group}/promoted_rows_per_step": counts.promoted / steps,
    }
    if skips:
        numbers[f"{group}/saturated_rows"] = counts.saturated_rows
        numbers[f"{group}/skipped_update_share"] = counts.skipped_update_share
    return numbers


def table_name(name: str) -> str:
    """As it stands in tags: changed if it is the name of the tables that have none of their own."""
    return f"{name}_table" if name == OTHER else name


def page(*, skips: bool) -> list[Any]:
    """The page "Tier movement". One line a chart: TensorBoard gives both lines of a run the same colour. What may stay
    the same for long is drawn as a band, which is not smoothed: smoothing would draw its rounding errors.

    Titles say what bands are, since TensorBoard has no legend for them. `skips`: with the charts of skipping, which are
    empty in runs that skip nothing.
    """
    charts = [
        _line("loss (equal runs share one line)", f"{TRAINING}/loss"),
        _line("hit rate: look-ups whose row was on the device", f"{TIERS}/hit_rate"),
        _line("hit rate of distinct rows", f"{TIERS}/row_hit_rate"),
        _line("rows promoted to the device, per step", f"{TIERS}/promoted_rows_per_step"),
        _line("rows demoted to the host, per step", f"{TIERS}/demoted_rows_per_step"),
        _line("KiB to the device, per step", f"{TIERS}/kib_to_device_per_step"),
        _line("KiB to the host, per step", f"{TIERS}/kib_to_host_per_step"),
        _line("waiting for rows, ms per step", f"{TIME}/wait_ms"),
        _up_to("rows on the device; band: free room", f"{TIERS}/resident_rows", f"{TIERS}/device_rows"),
        _band("hit rate: median table; band: 5% to 95%", _spread_tags("hit_rate")),
    ]
    if skips:
        title = "saturated rows; band: other watched rows"
        charts += [
            _line("share of row updates not written", f"{SKIPPING}/skipped_update_share"),
            _up_to(title, f"{SKIPPING}/saturated_rows", f"{SKIPPING}/watched_rows"),
        ]
    return events.layout({"Tier movement": charts})


def _spread_tags(rate: str) -> tuple[str, ...]:
    return tuple(f"{TIERS}/{rate}_of_tables_p{percentile}" for percentile in PERCENTILES)


def _line(title: str, tag: str) -> Any:
    return events.line_chart(title, tag)


def _up_to(title: str, tag: str, most: str) -> Any:
    return events.margin_chart(title, value=tag, lower=tag, upper=most)


def _band(title: str, tags: tuple[str, ...]) -> Any:
    lower, value, upper = tags
    return events.margin_chart(title, value=value, lower=lower, upper=upper)
