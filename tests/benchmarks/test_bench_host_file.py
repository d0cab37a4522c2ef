"""The benchmark of the host tier on disk, at its smallest size."""

from dataclasses import replace
from pathlib import Path

from benchmarks import bench_host_file


def test_host_file(tmp_path: Path) -> None:
    """Every way of reading has read the same values, or it would have stopped."""
    report = bench_host_file.run(replace(bench_host_file.SETTINGS["smoke"], directory=str(tmp_path)))
    assert {"host_file_vs_map", "host_file_vs_one_pread", "host_file_write_vs_pwrite"} == set(report.ratios)
    assert min(report.ratios.values()) > 0 and not list(tmp_path.iterdir())
