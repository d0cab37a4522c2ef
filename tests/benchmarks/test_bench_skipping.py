"""The benchmarks of skipping at their smallest size, and what they do when results differ."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adaptive.config import SkipConfig
from adaptive.policies.slipstream import Slipstream
from benchmarks import bench_backward, bench_deferral, bench_overhead
from benchmarks.deferral_account import Account, Differences, Watch
from benchmarks.harness import NotEqual, Report
from benchmarks.skipping import Line, fixed_gradient
from benchmarks.streams import kaggle_tables, make_batches
from benchmarks.variants import Ours, Setup

SETUP = Setup(kaggle_tables(20_000, 4), "rowwise_adagrad")


@pytest.fixture
def line() -> Iterator[Line]:
    """All rows on the device, many of them popular after a few batches."""
    one = Line(
        Ours(SETUP, policy=Slipstream(warmup=0), device_rows="100%", skip=SkipConfig()), fixed_gradient(SETUP, 64)
    )
    one.start(make_batches(SETUP.tables, 80, 64))
    one.block(70)
    yield one
    one.close()


def cells(report: Report, table: int, column: str) -> list[str]:
    found = report.tables[table]
    return [row[found.header.index(column)] for row in found.rows]


def test_backward() -> None:
    report = bench_backward.run(bench_backward.SETTINGS["smoke"])
    assert {"update_skip85_d16", "update_and_plan_skip85_d16", "update_skip0_d16"} <= set(report.ratios)
    assert cells(report, 0, "saturated") == ["off", "0 %", "85 %"]
    left_out = [float(share.rstrip("%")) for share in cells(report, 0, "look-ups left out")]
    assert left_out[:2] == [0, 0] and left_out[2] == pytest.approx(85, abs=3)


def test_backward_stops_where_a_saturated_row_has_moved_or_another_has_not() -> None:
    settings = bench_backward.SETTINGS["smoke"]
    batches = make_batches(SETUP.tables, 3, settings.batch)
    for claimed in (slice(0, 0), slice(0, 20_000)):
        lines, saturated = bench_backward._lines(SETUP, settings, batches)
        bench_backward.check(lines, saturated, batches)
        popular, _ = bench_backward.by_popularity(lines["off"].ours, batches)
        wrong = saturated | {"85 %": popular[claimed]}
        with pytest.raises(NotEqual, match="85 % saturated"):
            bench_backward.check(lines, wrong, batches)
        for one in lines.values():
            one.close()


def test_deferral() -> None:
    settings = bench_deferral.SETTINGS["smoke"]
    report = bench_deferral.run(settings)
    saved = {name: value for name, value in report.figures.items() if name.startswith("deferral_host_bytes_saved")}
    assert saved["deferral_host_bytes_saved_file_0pct_adam"] > 0.05
    assert saved["deferral_host_bytes_saved_memory_100pct_adam"] == 0
    assert report.ratios["deferral_speed_file_20pct_recent_adam"] > 0
    assert cells(report, 0, "host tier") == ["memory", "file", "file", "file"]
    assert cells(report, 0, "device rows") == ["100%", "0%", "20%", "20%"]
    assert cells(report, 1, "every ... steps") == ["1", "4"]


def test_deferral_stops_where_nothing_is_deferred() -> None:
    settings = replace(bench_deferral.SETTINGS["smoke"], file_shares=(), recent_shares=(), warmup=10_000)
    with pytest.raises(NotEqual, match="nothing was deferred"):
        bench_deferral.run(settings)


def test_deferral_knows_which_rows_were_written(line: Line) -> None:
    account, watch = Account(line.ours), Watch(line.ours)
    line.seen = lambda planned: watch.written.append(account.see(planned))
    line.block(2)
    watch.check()
    watch.written = [watch.written[0][1:]]
    with pytest.raises(NotEqual, match="are said to have been written"):
        watch.check()


def test_the_account_of_a_step(line: Line) -> None:
    """All rows stay on the device: nothing leaves, nothing reaches the host, some wait."""
    account = Account(line.ours)
    rows: list[int] = []
    line.seen = lambda planned: rows.append(len(account.see(planned)))
    line.block(4)
    found = account.read()
    assert found["leaving"] == found["written_back"] == found["bytes"] == 0
    assert found["not_written"] == found["visits"] - np.mean(rows) > 0
    assert account.row_bytes == 4 * (4 + 1)
    assert account.sum_bytes == 4 * (4 + 1)  # row-wise Adagrad: the gradients, and the mean of their squares


def test_differences_by_hand() -> None:
    """Row 2's gradient waits in step 1 and is applied in step 2, rows of 12 bytes, sums of 12, numbers of 8."""
    hot, book = SimpleNamespace(rows=np.array([5, 2])), SimpleNamespace(waiting=np.array([0, 1], np.uint8))
    lane = SimpleNamespace(planner=SimpleNamespace(skipper=SimpleNamespace(hot=hot, deferral=book)))
    written = iter([np.array([0, 1]), np.array([0, 2])])
    account: Any = SimpleNamespace(_lane=lane, row_bytes=12, sum_bytes=12, see=lambda planned: next(written))
    differences = Differences(account, (1, 2), 6)
    planned: Any = SimpleNamespace(works=[SimpleNamespace(plan=SimpleNamespace(deferred=row_updates([2])))])
    differences.see(planned)
    book.waiting[:] = 0
    differences.see(planned)
    assert differences.bytes(1) == ((2 + 2) * 20 / 2, (2 + 2) * 20 / 2 + 20 / 2)
    assert differences.bytes(2) == (3 * 20, 3 * 20)


def row_updates(rows: list[int]) -> SimpleNamespace:
    return SimpleNamespace(row_updates=SimpleNamespace(rows=np.array(rows)))


def test_overhead() -> None:
    report = bench_overhead.run(bench_overhead.SETTINGS["smoke"])
    assert set(report.ratios) == {"deferral_overhead", "tracker_and_deferral_overhead"}
    assert cells(report, 0, "variant") == ["defer", "off", "bare"]
    assert len(set(cells(report, 0, "hit rate"))) == 1, "the same rows must move"
    defer, *others = (float(share.rstrip("%")) for share in cells(report, 0, "not written"))
    assert defer > 1 and others == [0, 0]
