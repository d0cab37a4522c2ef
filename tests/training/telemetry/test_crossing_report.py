"""Traffic between ranks in records, reports, TensorBoard and pages; none of it in a single process."""

import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from support.report_records import interval
from support.thread_ranks import on_ranks

from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.traffic import RankTraffic
from adaptive.training.runs.distributed import ranks_summary
from adaptive.training.telemetry.jsonl import MetricsFile, from_json, read_metrics, to_json
from adaptive.training.telemetry.record import IntervalRecord, RunTotals
from adaptive.training.telemetry.report import RunSummary, crossed_numbers, rank_lines
from adaptive.training.telemetry.tensorboard import TensorBoardView

FAST = RankTraffic(
    headers=100, requests=1_000, vectors=8_000, gradients=4_000, dense=20_000, rows_served=300, wait_ms=50.0,
    gradients_spared=4_000,
)  # fmt: skip
SLOW = replace(FAST, rows_served=100, wait_ms=10.0, gradients_spared=0)
RANKS = [asdict(one) for one in (FAST, SLOW)]


def with_ranks(number: int) -> IntervalRecord:
    return replace(interval(number), ranks=copy.deepcopy(RANKS))


def test_numbers_are_means_over_ranks_and_steps() -> None:
    found = crossed_numbers(RANKS, 10)
    assert found["bytes_vectors"] == 800 and found["bytes_answers"] == 0
    assert found["bytes"] == 100 / 10 + 1_000 / 10 + 800 + 400 + 2_000
    assert found["gradients_spared_share"] == pytest.approx(4_000 / 12_000) and found["vectors_spared_share"] == 0
    assert found["slowest"] == 1 and found["waited_for_slowest_ms"] == pytest.approx(4.0)
    assert found["owner_load"] == pytest.approx(1.5)
    assert crossed_numbers([], 10) == {}


def test_totals_add_up_and_begin_anew_with_other_ranks() -> None:
    totals = RunTotals()
    for number in (1, 2):
        totals.add(with_ranks(number))
    assert totals.ranks_steps == 20 and totals.ranks[0]["vectors"] == 16_000
    totals.add(replace(interval(3), ranks=[*RANKS, RANKS[0]]))
    assert totals.ranks_steps == 10 and len(totals.ranks) == 3 and totals.ranks[0]["vectors"] == 8_000


def test_a_record_comes_back(tmp_path: Path) -> None:
    assert from_json(to_json(with_ranks(1))) == with_ranks(1)
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.write(with_ranks(2))
    file.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [with_ranks(2)]


def test_the_report_names_the_slowest_and_what_was_spared() -> None:
    totals = RunTotals()
    totals.add(with_ranks(1))  # 1,000 samples at 1,000 a second in 10 steps: 100 ms a step

    def work(ranks: Ranks) -> dict[str, Any]:
        return ranks_summary(ranks, totals, full=ranks.rank == 1)

    one, other = on_ranks(2, work)
    assert one == other
    quality = {"auc": None, "log_loss": None, "accuracy": None}
    assert rank_lines(RunSummary.of("lru", totals, quality, ranks=one)) == [
        "ranks: 2 on 2 hosts, 2 blocks; the others waited for rank 1 (4.00 ms per step, 4.0% of their time)",
        "sent by each rank per step: 3.2 KiB (headers 10 B, requests 100 B, vectors 800 B, gradients 400 B, "
        "dense 2.0 KiB); 33.3% of gradients were not sent again",
        "load of row owners: the busiest rank served 1.50 times the mean",
        "watched rows: the hot set of a rank is full, so another number of ranks may skip other rows. Raise "
        "skip.hot_rows",
    ]
    assert rank_lines(RunSummary.of("lru", totals, quality)) == []


def test_tensorboard_has_them_of_several_ranks_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[dict[str, Any]] = []
    monkeypatch.setattr("adaptive.training.telemetry.events.scalars", lambda numbers: written.append(numbers) or [])
    view = TensorBoardView(tmp_path, ["user", "item"])
    for record in (with_ranks(1), interval(2)):
        view.write(record)
    view.close()
    assert written[0]["8_ranks/bytes_vectors"] == 800 and written[0]["8_ranks/slowest"] == 1
    assert not any(name.startswith("8_ranks") for name in written[1])
