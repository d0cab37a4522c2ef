"""`bench_ranks` at its smallest size: two processes, results compared, ratios that do not depend on the machine."""

import pytest

from benchmarks import bench_ranks


@pytest.mark.slow
def test_two_ranks_at_the_smallest_size() -> None:
    report = bench_ranks.run(bench_ranks.SETTINGS["smoke"])
    assert 0.9 < report.ratios["payload_over_formula"] < 1.2  # short messages: counts of requests weigh
    assert report.ratios["vector_bytes_defer"] < 1 and report.ratios["gradient_bytes_defer"] == 1
    assert report.ratios["gradient_bytes_updates"] <= 1 and report.ratios["vector_bytes_updates"] <= 1
    assert {"weak_scaling_2_ranks", "one_rank_over_one_process"} <= set(report.ratios)
    assert "embedding_ranks_vs_torchrec_by_table" in report.ratios | report.absent
