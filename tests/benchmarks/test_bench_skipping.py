"""The benchmarks of skipping at their smallest size, and what they do when results differ."""

from benchmarks import bench_overhead
from benchmarks.harness import Report
from benchmarks.streams import kaggle_tables
from benchmarks.variants import Setup

SETUP = Setup(kaggle_tables(20_000, 4), "rowwise_adagrad")


def cells(report: Report, table: int, column: str) -> list[str]:
    columns = report.tables[table]
    return [row[columns.header.index(column)] for row in columns.rows]


def test_overhead() -> None:
    report = bench_overhead.run(bench_overhead.SETTINGS["smoke"])
    assert set(report.ratios) == {"deferral_overhead", "tracker_overhead", "tracker_and_deferral_overhead"}
    assert cells(report, 0, "variant") == ["defer", "off", "bare"]
    assert len(set(cells(report, 0, "hit rate"))) == 1, "the same rows must move"
    defer, *others = (float(share.rstrip("%")) for share in cells(report, 0, "not written"))
    assert defer > 1 and others == [0, 0]
