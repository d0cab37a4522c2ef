"""The benchmarks of skipping at their smallest size, and what they do when results differ."""

import pytest

from adaptive.embeddings.planning.books import Tracker
from benchmarks import bench_overhead
from benchmarks.harness import NotEqual, Report
from benchmarks.streams import kaggle_tables, make_batches
from benchmarks.variants import Ours, Setup

SETUP = Setup(kaggle_tables(20_000, 4), "rowwise_adagrad")


def cells(report: Report, table: int, column: str) -> list[str]:
    columns = report.tables[table]
    return [row[columns.header.index(column)] for row in columns.rows]


def test_overhead() -> None:
    settings = bench_overhead.SETTINGS["smoke"]
    report = bench_overhead.run(settings)
    names = "rule_speed_defer_vs_lru", "rule_speed_slipstream_vs_lru", "tracker_overhead"
    assert set(report.ratios) == {f"{name}_{optimizer}_b64" for name in names for optimizer in settings.optimizers}
    for table in range(len(settings.optimizers)):
        assert cells(report, table, "variant") == ["lru", "defer", "slipstream", "bare"]
        lru, defer, slipstream, bare = cells(report, table, "hit rate")
        assert lru == defer == bare != slipstream, "the same rows must move, but for another policy"
        not_written = [float(share.rstrip("%")) for share in cells(report, table, "not written")]
        assert not_written[0] == not_written[3] == 0 and not_written[1] == not_written[2] > 1


def test_rows_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without feedback nothing else changes; here the learning rate does."""
    monkeypatch.setattr(bench_overhead, "switch_feedback_off", lambda ours: setattr(ours.bag.optimizer, "lr", 0.2))
    with pytest.raises(NotEqual, match="rows trained as lru and as bare differ"):
        bench_overhead.run(bench_overhead.SETTINGS["smoke"])


def test_switching_feedback_off_reaches_the_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Ours(SETUP, device_rows="10%", policy="lru", depth=0)
    bench_overhead.switch_feedback_off(ours)

    def used(*args: object) -> None:
        raise AssertionError("norms were taken in")

    monkeypatch.setattr(Tracker, "add_norms", used)
    bench_overhead.fill(SETUP, ours, make_batches(SETUP.tables, 3, 16))
    ours.close()
