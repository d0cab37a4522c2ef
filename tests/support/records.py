"""A record of an interval of training with every number set."""

from typing import Any

from adaptive.training.telemetry.record import IntervalRecord, TableCounts


def interval_record(step: int = 10, **changes: Any) -> IntervalRecord:
    """The interval that ends at a step, by 8 samples a step; `changes` are fields with other values."""
    fields: dict[str, Any] = {
        **{"samples": step * 8, "loss": 0.5, "auc": 0.75, "log_loss": 0.25, "accuracy": 0.625, "samples_per_s": 1000.0},
        **{"time_ms": {"plan": 0.25, "wait": 2.0}, "hit_rate": 0.75, "row_hit_rate": 0.25, "policy": {"score_ms": 1.5}},
        "tables": {"site": TableCounts(lookups=80, lookup_hits=72), "user": TableCounts(resident_rows=2**40)},
    }
    return IntervalRecord(step=step, **fields | changes)
