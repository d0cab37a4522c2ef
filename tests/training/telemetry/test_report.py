"""Totals, the `--json` object, and the text at the end of a run."""

import json
from dataclasses import replace

from support.records import interval_record

from adaptive.training.telemetry.record import IntervalRecord, RunTotals, TableCounts
from adaptive.training.telemetry.report import RunSummary, details_text, run_text

SITE = TableCounts(
    lookups=1000,
    lookup_hits=900,
    unique_rows=400,
    row_hits=200,
    resident_rows=50,
    admitted=20,
    evicted=10,
    fetched=20,
    written_back=8,
    bytes_h2d=2048,
    bytes_d2h=1024,
)
USER = TableCounts(lookups=1000, lookup_hits=500, unique_rows=600, row_hits=200, resident_rows=70)


def interval(step: int, **changes) -> IntervalRecord:
    fields = {"samples": step * 100, "tables": {"site": SITE, "user": USER}, "policy": {}}
    return interval_record(step, **fields | {"time_ms": {"plan": 1.0, "wait": 0.5}} | changes)


def totals_of(*records: IntervalRecord) -> RunTotals:
    totals = RunTotals()
    for record in records:
        totals.add(record)
    return totals


SIZES = {"site": 100, "user": 20}


def text_of(*records: IntervalRecord, **more) -> str:
    totals = totals_of(*records)
    return details_text(summary_of(totals, **more), totals, SIZES)


def summary_of(totals: RunTotals, policy: str = "lru", **more) -> RunSummary:
    return RunSummary.of(policy, totals, {"auc": 0.75, "log_loss": 0.4, "accuracy": None} | more)


def test_summary_of_two_intervals():
    """10 steps at 1,000 samples/s and 30 at 3,000 take one second each; the second's plan takes three times as long."""
    later = interval(40, samples_per_s=3000.0, time_ms={"plan": 3.0, "wait": 0.5})
    totals = totals_of(interval(10), later)
    assert summary_of(totals, accuracy=0.9).to_json() == {
        "schema": 1,
        "policy": "lru",
        "steps": 40,
        "samples": 4000,
        "samples_per_s": 2000.0,
        "samples_per_s_later": 3000.0,
        "auc": 0.75,
        "log_loss": 0.4,
        "accuracy": 0.9,
        "hit_rate": 0.7,
        "row_hit_rate": 0.4,
        "fetched_rows": 40,
        "written_back_rows": 16,
        "bytes_h2d": 4096,
        "bytes_d2h": 2048,
        "admitted_rows": 40,
        "evicted_rows": 20,
        "hot_rows": 0,
        "saturated_rows": 0,
        "saturated_row_share": None,
        "skipped_update_share": 0.0,
        "deferred_update_share": 0.0,
        "skipped_lookup_share": 0.0,
        "time_ms": {"plan": 3.0, "wait": 0.5},
        "policy_numbers": {},
    }


def test_a_run_without_a_step_has_a_summary():
    totals = RunTotals()
    summary = summary_of(totals, auc=None, log_loss=float("nan"))
    assert json.loads(json.dumps(summary.to_json(), allow_nan=False))["log_loss"] is None
    assert (summary.steps, summary.samples_per_s, summary.hit_rate, summary.time_ms) == (0, None, None, {})
    assert "0 steps" in details_text(summary, totals, {})


def test_text_written_out():
    assert text_of(interval(10)) == (
        "policy lru: 10 steps, 1,000 samples, 1,000 samples/s\n"
        "hit rate: 70.0% of lookups, 40.0% of distinct rows per batch\n"
        "moved: 20 rows (2.0 KiB) to the device, 8 rows (1.0 KiB) to the host\n"
        "ms per step: wait 0.50\n"
        "ms per step of look-ahead (overlaps with training, or part of wait if training plans): plan 1.00\n"
        "\n"
        "table  lookups  hit rate  rows on device  to device  to host\n"
        "site     1,000     90.0%              50    2.0 KiB  1.0 KiB\n"
        "user     1,000     50.0%              70        0 B      0 B\n"
    )


def test_speed_and_times_exclude_the_first_interval():
    """Times, too: means over the 20 later steps."""
    compiling = interval(10, samples_per_s=100.0, time_ms={"plan": 35.0, "wait": 47.0})
    text = text_of(compiling, interval(20), interval(30, time_ms={"plan": 2.0, "wait": 0.5}))
    assert "3,000 samples, 250 samples/s (1,000 without the first interval)\n" in text
    assert "\nms per step without the first interval: wait 0.50\nms per step of look-ahead " in text
    assert ": plan 1.50\n" in text


SKIPPING = replace(SITE, skipped_updates=100, skipped_lookups=500, saturated_rows=7)


def test_skipping_is_reported_if_it_happened():
    text = text_of(interval(10, tables={"site": SKIPPING, "user": USER}))
    assert "skipped: 10.0% of row updates (25.0% of lookups)\n" in text, "there is one interval"
    assert (
        "table  lookups  hit rate  rows on device  to device  to host  saturated  skipped\n"
        "site     1,000     90.0%              50    2.0 KiB  1.0 KiB          7    25.0%\n"
        "user     1,000     50.0%              70        0 B      0 B          0     0.0%\n"
    ) in text
    text = text_of(interval(10), interval(20, tables={"site": SKIPPING, "user": USER}))
    assert "skipped: 5.0% of row updates (12.5% of lookups); 10.0% in the last interval, as more rows" in text


def test_speed_before_and_since_skipping():
    """The first interval compiles and does not count. Then 1,000 samples were read in a second, and later, half of them
    trained, 2,000 in a second."""
    before = [interval(10, samples_per_s=10.0), interval(20)]
    line = "speed       2,000 samples/s since skipping began, 1,000 before: 2.0 times as fast\n"
    assert line in short(*before, interval(30, samples_read=4000, samples_per_s=2000.0))
    compiled = interval(30, samples_read=2500, samples_per_s=10.0, compiled=True)
    assert line in short(*before, compiled, interval(40, samples_read=6500, samples_per_s=2000.0))
    skipping = {"site": replace(SITE, skipped_updates=1), "user": USER}
    assert ": 1.0 times as fast\n" in short(*before, interval(30, tables=skipping))
    for records in ((*before, interval(30)), (before[0], interval(20, samples_read=4000))):
        assert "since skipping began" not in short(*records)


def test_numbers_of_a_policy_are_reported():
    """Its own numbers as it said them last; batches in parts over the whole run: (0.5 * 10 + 1 * 30) / 40."""
    first = interval(10, policy={"hot_rows": 3.0, "in_parts_share": 0.5, "waited_share": 1.0})
    later = interval(40, policy={"hot_rows": 12345.0, "rate": 12.5, "in_parts_share": 1.0, "waited_share": 0.0})
    totals = totals_of(first, later)
    summary = summary_of(totals, "hotline")
    assert summary.policy_numbers == {
        "hot_rows": 12345.0, "rate": 12.5, "in_parts_share": 0.875, "waited_share": 5 / 35,
    }  # fmt: skip
    expected = "policy reports: hot_rows 12,345, rate 12.5, in_parts_share 87.5%, waited_share 14.3%\n"
    assert expected in details_text(summary, totals, SIZES)
    assert "policy reports" not in text_of(interval(10))


def test_the_ten_largest_tables_have_lines():
    tables = {f"t{i}": replace(USER, lookups=i, lookup_hits=0, resident_rows=1) for i in range(1, 15)}
    totals = totals_of(interval(10, tables=tables))
    summary = summary_of(totals)
    lines = details_text(summary, totals, {f"t{i}": i for i in range(1, 15)}).splitlines()
    assert [line.split()[0] for line in lines[-11:-1]] == [f"t{i}" for i in range(14, 4, -1)]
    assert lines[-1].split() == ["4", "other", "tables", "10", "0.0%", "4", "0", "B", "0", "B"]


RUN = {"rows": 120, "misses": "prefetch", "run": "runs/a"}


def short(*records, **more):
    totals = totals_of(*records)
    return run_text(summary_of(totals, "slipstream", **more), totals, **RUN)


def test_the_text_of_a_run_is_short():
    """Everything else is in the details."""
    waits = replace(SITE, hot_rows=40, saturated_rows=30, skipped_updates=60, deferred_updates=60)
    tables = {"site": waits, "user": USER}
    later = interval(30, tables=tables, samples_read=4000, samples_per_s=2000.0)
    text = short(interval(10), interval(20), later, skipped_input_share=0.25, compile_s=11.2)
    first = text.splitlines()[0]
    assert first.startswith("slipstream: 4,000 samples read in ") and "(and 11 s to compile, once)" in first
    for fact in (
        "placement   120 of 120 rows on the device; 70.0% of lookups had their row there,\n"
        "            the others were fetched ahead (",
        "saturated   30 of 40 popular rows: an update moves them by less than 5% of their length\n",
        "skipped     2.0% of row updates were postponed and applied together later\n"
        "            25.0% of the samples were left out\n",
        "speed       2,000 samples/s since skipping began, 1,000 before: 2.0 times as fast\n",
        "quality     not compared. Measure it on your data:\n"
        "              adaptive-train compare --config runs/a/run.json --policies lfu,slipstream\n",
    ):
        assert fact in text, text
    assert len(text.splitlines()) <= 15
    for word in ("waiting", "at rest", "judged", "watched", "worth", "differ", "ms per step"):
        assert word not in text


def test_a_rule_that_rests_is_the_control():
    """Intervals in which it works and skips nothing count in no speed; they are slower than those without a rule."""
    works = interval(30, samples_read=3000, samples_per_s=500.0, policy={"rule.rest": 0.0})
    skips = interval(40, samples_read=5000, samples_per_s=3000.0, policy={"rule.rest": 0.0})
    records = [interval(step, policy={"rule.rest": 60.0 - step}) for step in (10, 20)]
    text = short(*records, works, skips, skipped_input_share=0.25)
    assert "speed       3,000 samples/s since skipping began, 1,000 before: 3.0 times as fast\n" in text
