"""`metrics.jsonl`: what is written can be read, nothing is NaN, and a disk that fails stops nothing."""

import json
import logging
import math
import resource
import shutil

import numpy as np
import pytest
from support.records import interval_record

from adaptive.errors import InputError
from adaptive.training.telemetry.jsonl import MetricsFile, read_metrics, to_line
from adaptive.training.telemetry.record import (
    EvalRecord,
    ResumeRecord,
    RunRecord,
)

RUN = RunRecord(policy="lru", table_rows={"site": 1000, "user": 50}, config="[tier]\ndevice_rows = '10%'\n")
EVAL = EvalRecord(step=20, samples=1000, auc=0.75, log_loss=0.4, accuracy=0.8)


def fail(*_args, **_kwargs):
    raise OSError("a disk that gives no error number")


def test_what_is_written_is_read(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    resumed = ResumeRecord(step=10, dropped=2)
    records = [RUN, interval_record(10), EVAL, resumed, interval_record(20, auc=None)]
    for record in records:
        file.write(record)
    file.close()
    found = read_metrics(tmp_path / "metrics.jsonl")
    assert found == records
    assert [record.wall_time for record in found] == [record.wall_time for record in records]


def test_numbers_that_are_not_finite_are_null(tmp_path):
    bad = interval_record(loss=math.nan, samples_per_s=math.inf, policy={"x": -math.inf}, hit_rate=math.nan)
    data = json.loads(to_line(bad), parse_constant=fail)
    assert (data["loss"], data["samples_per_s"], data["policy"]["x"], data["hit_rate"]) == (None,) * 4
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(to_line(bad))
    (found,) = read_metrics(path)
    assert math.isnan(found.loss)
    assert math.isnan(found.policy["x"])
    assert found.hit_rate is None
    numpy = json.loads(to_line(interval_record(loss=np.float32(0.5), samples=np.int64(2**40), auc=np.float32(np.nan))))
    assert (numpy["loss"], numpy["samples"], numpy["auc"]) == (0.5, 2**40, None)


def test_a_removed_directory_warns_once_and_loses_records(tmp_path, caplog):
    directory = tmp_path / "run"
    directory.mkdir()
    file = MetricsFile(directory / "metrics.jsonl")
    file.write(RUN)
    shutil.rmtree(directory)
    for step in (10, 20, 30):
        file.write(interval_record(step))
    assert file.lost == 3
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "metrics.jsonl" in warning.message and "training continues" in warning.message
    directory.mkdir()
    file.write(interval_record(40))
    file.close()
    assert [record.step for record in read_metrics(file.path)] == [40]
    assert "lost 3 record(s)" in caplog.messages[-1]


def test_a_file_is_continued_after_its_last_complete_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(to_line(RUN) + to_line(interval_record(10))[:-30])
    MetricsFile(path).write(EVAL)
    assert read_metrics(path) == [RUN, EVAL]


def test_a_full_disk_leaves_complete_lines(tmp_path):
    """A limit on the size of files stands for a full disk: it takes a part of a line and then no more."""
    file = MetricsFile(tmp_path / "metrics.jsonl")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        for step in range(10):
            file.write(interval_record(step))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert 0 < file.lost < 10
    file.write(interval_record(10))
    assert [record.step for record in read_metrics(file.path)] == [*range(10 - file.lost), 10]


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[]",
        b"{}",
        b'{"kind":"other"}',
        b'{"kind":"eval","step":1}',
        b'{"kind":"run","schema":2}',
        b"\xff",
    ],
)
def test_lines_that_are_no_record_are_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(InputError, match=r"metrics\.jsonl: expected a regular file, got No such file"):
        read_metrics(path)
    path.write_bytes(to_line(RUN) + line + b"\n")
    with pytest.raises(InputError, match=r"expected a JSON object per line .*metrics\.jsonl:2\)"):
        read_metrics(path)
