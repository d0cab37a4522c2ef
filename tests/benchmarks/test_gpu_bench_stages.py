"""Every stage of `benchmarks.gpu` at tiny sizes on the CPU."""

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adaptive.counters import Counter
from adaptive.training.trainer import Trainer
from benchmarks import harness
from benchmarks.gpu import (
    bench_gpu_probe,
    bench_gpu_step,
    plans,
    workloads,
)
from benchmarks.gpu.accelerator import Accelerator
from benchmarks.gpu.comparison import Comparison, Effort, fill
from benchmarks.gpu.turns import Point, Timing
from benchmarks.gpu.variants import STORED, Spec, Tiers
from benchmarks.gpu.workloads import Workload
from benchmarks.harness import Report
from benchmarks.peers_torch import EmbeddingBags

TINY: dict[str, Any] = {
    "device": "cpu-torch", "copy_megabytes": 1, "rounds": 1, "steps": 1, "turn_seconds": 0.01, "check_samples": 16,
    "batch": 16, "gigabytes": 20_000 * 16 / 1e9, "seconds": 600.0,
}  # fmt: skip
EFFORT = Effort(rounds=1, steps=1, turn_seconds=0.01, check_samples=16)
SMALL = Workload(gigabytes=20_000 * 16 / 1e9, dim=4, optimizer="sgd")
HERE = Point(32, 1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small dense part, and no garbage collection of the whole test session."""
    monkeypatch.setitem(workloads.LAYERS, "dlrm", ((8,), (8, 1)))
    monkeypatch.setattr(gc, "collect", lambda: 0)


def no_faults(report: Report) -> None:
    assert [reason for name, reason in report.absent.items() if name.startswith("bench_")] == []


def test_probe() -> None:
    changes = ["device=cpu-torch", *plans.TINY["probe"]]
    report = bench_gpu_probe.run(harness.changed(bench_gpu_probe.SETTINGS["full"], changes))
    no_faults(report)
    figures = {"b32_d8_update_usual_ms", "b16_d8_heavy_pool_over_floor", "find_832_lookups_ms"}
    assert {f"gpu_probe_{name}" for name in figures} <= set(report.figures)
    assert all(value >= 0 for value in report.figures.values())


def test_whole_step() -> None:
    settings = replace(
        bench_gpu_step.SETTINGS["full"], **TINY, dim=4, shares=(25,), batches=(64,), depths=(0,), dims=(6,),
        sizes=(0.0004,),
    )  # fmt: skip
    report = bench_gpu_step.run(settings)
    no_faults(report)
    size = "_0.00032gb"
    variants = {
        "",
        "_lru_10pct_transfer_staged",
        "_lru_10pct_trainer_1",
        "_lfu_10pct",
        "_scratchpipe_10pct",
        "_slipstream_10pct",
        "_lru_25pct",
    }
    assert {f"gpu_staged_vs_device{one}{size}" for one in variants} <= set(report.ratios)
    for ratio in ("gpu_staged_vs_hybrid", "gpu_staged_vs_torch_sgd", "gpu_staged_vs_torch_host_adam",
                  "gpu_staged_vs_hybrid_d6", "gpu_staged_vs_hybrid_heavy"):  # fmt: skip
        assert report.ratios[f"{ratio}{size}"] > 0
    assert report.ratios[f"gpu_staged_vs_device_lru_10pct_lookups_device_heavy{size}"] > 0
    assert "gpu_staged_vs_device_0.00032gb_bf16" in report.ratios and "gpu_staged_vs_device_0.0004gb" in report.ratios
    assert not [note for note in report.notes if "NOT bit for bit" in note]
    table = report.tables[0]
    lines = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    rows = {
        (row["variant"], row["depth"]): row for row in lines if row["workload"].endswith("width 4, rowwise_adagrad")
    }
    assert rows["device", "4"]["hit rate"] == "100.0%" and rows["hybrid", "4"]["hit rate"] == "0.0%"
    assert ("lru, 10%", "0") in rows
    assert rows["lru, 10%, trainer=1", "4"]["rows moved"] != "-"


def test_variants_by_name_are_timed_at_every_batch_size() -> None:
    changes = [*plans.TINY["step"], "device=cpu-torch", "batches=16,32", "precisions=tf32", "ids=2"]
    variants = "device,lru:20:trainer=1,lru:20:plan_threads=2:tracker_threads=2:lookups=device"
    settings = harness.changed(bench_gpu_step.SETTINGS["full"], [*changes, f"variants={variants}"])
    report = bench_gpu_step.run(settings)
    no_faults(report)
    assert not report.notes
    rows = [(row[0].rpartition("2 ids a bag, ")[2], row[1], row[2]) for row in report.tables[0].rows]
    names = ["device", "lru, 20%, trainer=1", "lru, 20%, lookups=device, plan_threads=2, tracker_threads=2"]
    assert rows == [("tf32", batch, name) for name in names for batch in ("16", "32")]


# --- the comparison ------------------------------------------------------------------------------------------------


def timings(workload: Workload, wanted: dict[Spec, list[Point]], report: Report, seconds: float = 600) -> list[Timing]:
    comparison = Comparison(Accelerator("cpu-torch"), workload, EFFORT, report)
    return list(comparison.run(wanted, seconds=seconds))


def test_variants_that_learn_differently_are_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(EmbeddingBags, "update", lambda self: None)
    report = Report()
    timed = timings(SMALL, {Spec("torch"): [HERE], Spec("lfu", 20): [HERE]}, report)
    assert [one.spec.kind for one in timed] == ["lfu"]
    ((name, reason),) = report.absent.items()
    assert name.startswith("bench_gpu dlrm") and "results differ" in reason


def test_differences_in_bits_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Tiers.rows

    def nudged(self: Tiers, ids: Any) -> Any:
        values = rows(self, ids)
        if self.title.startswith("lru"):
            values[0, 0, 0] = np.nextafter(values[0, 0, 0], np.float32(1))
        return values

    monkeypatch.setattr(Tiers, "rows", nudged)
    report = Report()
    assert len(timings(SMALL, {Spec("lru", 20): [HERE]}, report)) == 1
    assert any("NOT bit for bit" in note for note in report.notes)


def test_every_row_is_stored_and_evicted_rows_written_back() -> None:
    workload = replace(SMALL, optimizer="adam")
    tiers = Tiers(workload.setup(), Spec("lru", 10), Accelerator("cpu-torch"))
    arrays = tiers.bag.rows.state_arrays()
    assert len(arrays["rows0.changed"]) == workload.num_rows == 20_000
    assert (arrays["rows0.weights"] == np.float32(STORED)).all() and not arrays["rows0.state"].any()
    fill(tiers, workload, train=True)
    assert tiers.statistics().resident_rows.sum() == pytest.approx(2000, abs=26)
    tiers.close()
    report = Report()
    (timing,) = timings(SMALL, {Spec("lru", 10): [HERE]}, report)
    fetched, back = (timing.it.per_step(counter) for counter in (Counter.FETCHED, Counter.WRITTEN_BACK))
    assert fetched > 0 and back > 0.9 * timing.it.per_step(Counter.EVICTED) > 0


def test_a_line_by_trainer_trains_the_same_and_counts_every_step() -> None:
    report = Report()
    comparison = Comparison(Accelerator("cpu-torch"), SMALL, replace(EFFORT, rounds=3, steps=4), report)
    (timing,) = comparison.run({Spec("lru", 20, trainer=1): [HERE]}, seconds=600)
    no_faults(report)
    assert not report.notes and len(timing.it.seconds) == 3
    statistics = timing.it.statistics
    assert statistics is not None and statistics.batches == 4 * (HERE.depth + 2 + 4)  # with the warm-up's turn
    assert statistics.counts.sum(axis=0)[Counter.LOOKUPS] == statistics.batches * HERE.batch * 26


def test_an_error_in_training_ends_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "measure", lambda self, planned: {}["lost"])
    report = Report()
    assert timings(SMALL, {Spec("lru", 20, trainer=1): [HERE]}, report) == []
    assert "KeyError: 'lost'" in report.absent.popitem()[1]


def test_a_turn_leaves_out_batches_of_the_look_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu import turns

    trained: list[int] = []

    class Counting(turns.Line):
        def train(self, steps: int) -> float:
            trained.append(steps)
            return super().train(steps)

    monkeypatch.setattr("benchmarks.gpu.comparison.Line", Counting)
    report = Report()
    effort = replace(EFFORT, rounds=2, steps=3, turn_seconds=60.0)
    comparison = Comparison(Accelerator("cpu-torch"), SMALL, effort, report)
    (timing,) = comparison.run({Spec("torch"): [Point(32, 4)]}, seconds=600)
    no_faults(report)
    check, ours, others = 3, [6, 3], [1, 3]
    chosen = [1, 2, 6, 2]  # for the peer, then the reference
    assert trained[:2] == [check, check] and trained[2:6] == chosen
    pairs = [trained[i : i + 2] for i in range(6, len(trained), 2)]
    assert sorted(pairs) == sorted([ours, others] * 3)
    assert len(timing.it.seconds) == 2
