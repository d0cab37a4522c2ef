"""Decisions of a guard in records, TensorBoard, progress and summary, and rules that disobey it."""

import json
from dataclasses import asdict
from io import StringIO
from pathlib import Path

import pytest
from support.guarded import GUARD, SKIP, run, spec, toy_data  # noqa: F401 (fixtures)
from support.guarded_policies import Freeze
from support.report_records import GUARDED
from support.toy_runs import Hooked, data_fixture, in_model, nothing_is_left_behind, parts_of  # noqa: F401 (fixtures)

from adaptive.training.telemetry.formatting import guard_text
from adaptive.training.telemetry.jsonl import MetricsFile, read_metrics
from adaptive.training.telemetry.progress import Progress
from adaptive.training.telemetry.record import GuardRecord, Record, RunRecord

RUN = RunRecord(policy="slipstream", table_rows={"site": 10})
IDLE = GuardRecord(
    step=0, verdict="idle", reason="nothing", trigger="", budget=0.1, allowance_before=1, allowance=1, from_step=0
)


def written(path: Path, *records: Record) -> Path:
    file = MetricsFile(path / "metrics.jsonl")
    for record in (RUN, *records):
        file.write(record)
    file.close()
    return path / "metrics.jsonl"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    records = read_metrics(written(tmp_path, GUARDED, IDLE))
    assert records == [RUN, GUARDED, IDLE]
    assert [record.wall_time for record in records] == [RUN.wall_time, GUARDED.wall_time, IDLE.wall_time]
    assert isinstance(records[1], GuardRecord) and records[1].samples == 1000
    assert records[1].auc_difference_ci == (-0.002, 0.0)


@pytest.mark.parametrize(
    ("verdict", "allowance", "expected"),
    [
        ("keep", 0.5, "keep skipping at 50.0% of what the policy requests: why"),
        ("reduce", 0.25, "reduce skipping to 25.0% from batch 810 on: why"),
        ("stop", 0.0, "stop skipping from batch 810 on: why"),
        ("idle", 1.0, "idle: why"),
    ],
)
def test_a_line_for_people(verdict: str, allowance: float, expected: str) -> None:
    record = GuardRecord(
        step=800, verdict=verdict, reason="why", trigger="", budget=0.1, allowance_before=1, allowance=allowance,
        from_step=810,
    )  # fmt: skip
    assert guard_text(record) == expected
    stream = StringIO()
    Progress(stream, 1000).write(record)
    assert stream.getvalue() == f"guard after step 800: {expected}\n"


def test_every_decision_is_in_every_view(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stream = StringIO()
    guarded = run(tmp_path, Freeze, {"budget": 0.05}, tensorboard=True, stream=stream)
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("guard")]
    assert len(lines) == len(guarded.decisions) == 2
    about = "reduce skipping to 21.9% from batch 56 on: expected change of AUC by the end: -0.13"
    assert lines[0].startswith(f"guard after step 50: {about}")
    assert [json.loads(json.dumps(asdict(r))) for r in guarded.decisions] == guarded.summary["guard_decisions"]
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for tag, name in (("allowance", "allowance"), ("auc_difference", "auc_difference"), ("auc_change", "auc_change")):
        shown = [(event.step, event.value) for event in events.Scalars(f"7_guard/{tag}")]
        assert shown == [(r.step, pytest.approx(getattr(r, name))) for r in guarded.decisions]
    low = [event.value for event in events.Scalars("7_guard/auc_difference_low")]
    assert low == [pytest.approx(r.auc_difference_ci[0]) for r in guarded.decisions if r.auc_difference_ci]
    texts = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("7_guard/decision")]
    assert texts[0].startswith(about) and texts[1].startswith("keep skipping at 21.9% of what the policy requests")


def test_the_account_of_what_a_guard_costs(tmp_path: Path) -> None:
    guarded = run(tmp_path, Freeze, {"budget": 0.05})
    reduced, kept = guarded.decisions
    assert (reduced.fork_batches, reduced.judged_batches) == (30, 19)  # 600 samples held back
    assert (kept.fork_batches, kept.judged_batches) == (66, 38)  # the same fork continued
    assert (guarded.summary["guard_fork_batches"], guarded.summary["guard_judged_batches"]) == (66, 38)
    assert guarded.summary["guard_undone_batches"] == 36
    assert reduced.fork_bytes > 4 * 4 * 250  # most of 347 rows of width 4
    assert guarded.summary["time_ms"]["guard"] > 0
    assert (
        "guard: decisions: reduce, keep; the policy may do 21.9% of its skipping; forks trained 66 extra batches "
        "(36.7%) and 38 were judged; skipping was undone in 36 batches\n"
    ) in guarded.summary["table"]


def test_a_run_without_a_guard_says_nothing_of_one(tmp_path: Path) -> None:
    guarded = run(tmp_path, Freeze)
    assert guarded.decisions == [] and not [name for name in guarded.summary if name.startswith("guard")]
    assert "guard" not in guarded.saved.meta and "guard: " not in guarded.summary["table"]
