"""`benchmarks.gpu` on the CPU: its plans, whose stages are processes, and what its comparisons refuse to time."""

import gc
import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive.counters import Counter
from benchmarks.gpu import plans, workloads
from benchmarks.gpu.accelerator import Accelerator
from benchmarks.gpu.comparison import Comparison, Effort, fill
from benchmarks.gpu.suite import run_suite
from benchmarks.gpu.turns import Point, Timing
from benchmarks.gpu.variants import STORED, Spec, Tiers
from benchmarks.gpu.workloads import Workload
from benchmarks.harness import Report
from benchmarks.peers_torch import EmbeddingBags

ROOT = Path(__file__).resolve().parents[2]
GPU_ONLY = {"ncu", "compute-sanitizer"}
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


# --- plans ---------------------------------------------------------------------------------------------------------


def test_the_whole_suite_on_the_cpu() -> None:
    report = run_suite("cpu-torch", 600)
    assert report.absent == {} and report.ratios["gpu_tests_failed"] == 0, report.notes
    assert report.figures["gpu_tests_passed"] > 60


@pytest.mark.parametrize("plan", sorted(set(plans.PLANS) - {"everything"}))
def test_a_plan_on_the_cpu(plan: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu.plans", plan, "--device", "cpu-torch", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=900)
    absent = json.loads((tmp_path / "results.json").read_text())["absent"]
    assert not [name for name in absent if name.partition(" (")[0] not in GPU_ONLY and "FBGEMM" not in name], absent
    assert (tmp_path / "tables.md").read_text().count("\n| ") > 5


# --- the comparison ------------------------------------------------------------------------------------------------


def timings(workload: Workload, wanted: dict[Spec, list[Point]], report: Report, seconds: float = 600) -> list[Timing]:
    comparison = Comparison(Accelerator("cpu-torch"), workload, EFFORT, report)
    return list(comparison.run(wanted, seconds=seconds))


def test_torchrec_is_timed_or_left_out_with_the_reason() -> None:
    report = Report()
    timed = timings(SMALL, {Spec("torchrec", 10): [HERE]}, report)
    if find_spec("torchrec") is None:
        assert timed == [] and [text[:27] for text in report.absent.values()] == ["torchrec cannot be imported"]
    else:
        assert [one.spec.kind for one in timed] == ["torchrec"] and report.absent == {}


def test_failures_of_all_stages_are_kept(tmp_path: Path) -> None:
    for name in ("tests", "steps"):
        failed = Report(ratios={"gpu_tests_failed": 1.0}, absent={"bench_gpu_suite": "late"})
        failed.save(tmp_path / f"{name}.json")
    report = plans.gather("flag-and-graph", tmp_path)
    assert report.ratios == {"gpu_tests_failed": 2.0}
    assert list(report.absent) == ["bench_gpu_suite (tests)", "bench_gpu_suite (steps)"]


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
