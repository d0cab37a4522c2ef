"""A decision on disk, in TensorBoard's view of it, and in a line for people."""

from io import StringIO
from pathlib import Path

import pytest

from adaptive.telemetry.jsonl import MetricsFile, read_metrics
from adaptive.telemetry.progress import Progress
from adaptive.telemetry.record import GuardRecord, Record, RunRecord
from adaptive.telemetry.tensorboard import view_from_metrics
from adaptive.telemetry.wording import guard_text

RUN = RunRecord(policy="slipstream", table_rows={"site": 10})
REDUCED = GuardRecord(
    step=800,
    verdict="reduce",
    reason="it costs too much",
    trigger="the warm-up is over",
    budget=0.0005,
    allowance_before=1.0,
    allowance=0.25,
    from_step=810,
    fork_steps=400,
    steps_left=2200,
    samples=100_352,
    skipped_share=0.2,
    auc_difference=-0.0004,
    auc_difference_ci=(-0.0006, -0.0002),
    log_loss_difference=0.0001,
    log_loss_difference_ci=(-0.0001, 0.0003),
    auc_change=-0.0026,
    auc_change_ci=(-0.0039, -0.0013),
    fork_bytes=1 << 20,
    fork_batches=400,
    judged_batches=196,
)
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
    found = read_metrics(written(tmp_path, REDUCED, IDLE))
    assert found == [RUN, REDUCED, IDLE]
    assert [record.wall_time for record in found] == [RUN.wall_time, REDUCED.wall_time, IDLE.wall_time]
    assert isinstance(found[1], GuardRecord) and found[1].fork_bytes == 1 << 20
    assert found[1].auc_difference_ci == (-0.0006, -0.0002)


def test_tensorboard_shows_what_there_is(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert view_from_metrics(written(tmp_path, REDUCED, IDLE), tmp_path / "view") == 3
    events = EventAccumulator(str(tmp_path / "view")).Reload()
    shown = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert shown["guard/allowance"] == [(800, 0.25), (0, 1)]
    expected = {
        "auc_difference": -0.0004, "auc_difference_low": -0.0006, "auc_difference_high": -0.0002,
        "auc_change": -0.0026, "auc_change_low": -0.0039, "auc_change_high": -0.0013, "skipped_share": 0.2,
    }  # fmt: skip
    for name, value in expected.items():
        assert shown[f"guard/{name}"] == [(800, pytest.approx(value))], name


@pytest.mark.parametrize(
    ("verdict", "allowance", "expected"),
    [
        ("keep", 0.5, "keep skipping at 50.0 % of what the policy asks for: why"),
        ("reduce", 0.25, "reduce skipping to 25.0 % from batch 810 on: why"),
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
