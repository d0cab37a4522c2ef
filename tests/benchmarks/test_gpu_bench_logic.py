"""The logic of `benchmarks.gpu`: floors, popular rows, plans of stages, bars, the command."""

import itertools
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import DeviceType

from benchmarks import harness
from benchmarks.gpu import bench_gpu_step, plans
from benchmarks.gpu.accelerator import Accelerator
from benchmarks.gpu.floors import Rates, traffic
from benchmarks.gpu.turns import Point
from benchmarks.gpu.variants import DEVICE, POLICIES, Spec
from benchmarks.gpu.workloads import Workload, covering_batches, popular_counts
from benchmarks.harness import Report
from benchmarks.streams import kaggle_tables, rank_ids, zipf

# --- floors --------------------------------------------------------------------------------------------------------


def test_bytes_of_a_step() -> None:
    # 10 rows of 4 floats with 1 float of state; 5 samples of 2 features: 40 floats of vectors
    step = traffic(10, samples=5, features=2, dim=4, state_width=1, moved=(100, 60))
    assert step.forward == 10 * 16 + 160
    assert step.update == 160 + 2 * 10 * (16 + 4)
    assert step.on_device == step.forward + step.update == 880
    rates = Rates(memory=880_000, to_device=10_000, to_host=10_000)
    assert step.memory_ms(rates) == pytest.approx(1)
    assert step.link_ms(rates) == pytest.approx(10)  # both ways at once
    assert step.step_ms(rates, dense_ms=2) == pytest.approx(10)
    assert step.step_ms(rates, dense_ms=20) == pytest.approx(21)


# --- rows that fill a tier -----------------------------------------------------------------------------------------


def test_popular_rows_are_the_most_looked_up() -> None:
    ids = zipf(np.random.default_rng(0), 200_000, 1000, 1.05)
    most = np.argsort(-np.bincount(ids, minlength=1000))[:5]
    assert set(most) == set(rank_ids(np.arange(5), 1000))
    assert sorted(rank_ids(np.arange(1000), 1000)) == list(range(1000))


def test_popular_counts_take_the_largest_weights() -> None:
    sizes, wanted = [3, 50, 400], 40
    counts = popular_counts(sizes, wanted)
    weights = []
    for table, size in enumerate(sizes):
        total = ((size + 1) ** -0.05 - 1) / -0.05
        weights += [(rank**-1.05 / total, table) for rank in range(1, size + 1)]
    best = [table for _, table in sorted(weights, reverse=True)[:wanted]]
    assert 0 <= wanted - sum(counts) < 3
    assert all(abs(best.count(table) - count) <= 1 for table, count in enumerate(counts))
    assert popular_counts(sizes, 1_000_000) == sizes


def test_covering_batches_have_every_row_once_popular_ones_last() -> None:
    tables = kaggle_tables(20_000, 4)
    batches = list(covering_batches(tables, 20_000, 3000))
    assert len(batches) == 7
    for feature, table in enumerate(tables):
        ids = np.concatenate([batch.ids[batch.feature_span(feature)] for batch in batches])
        assert sorted(ids) == list(range(table.num_embeddings))
    largest = int(np.argmax([table.num_embeddings for table in tables]))
    last = batches[-1].ids[batches[-1].feature_span(largest)]
    assert rank_ids(np.array([0]), tables[largest].num_embeddings)[0] in last


def test_batches_depend_on_their_number_only() -> None:
    workload = Workload(gigabytes=20_000 * 16 / 1e9, dim=4)
    (first,), both = workload.batches(1, 8, seed=6), workload.batches(2, 8, seed=5)
    assert np.array_equal(first.ids, both[1].ids) and not np.array_equal(first.ids, both[0].ids)


# --- plans ---------------------------------------------------------------------------------------------------------


def test_one_dimension_is_varied_at_a_time() -> None:
    wanted = bench_gpu_step.plan(bench_gpu_step.SETTINGS["full"])
    base = Workload("dlrm", 10.0, 64, "rowwise_adagrad")
    staged, here = Spec("lru", 10), Point(16_384, 4)
    assert {point.batch for point in wanted[base][staged]} == {2048, 4096, 8192, 16_384, 32_768, 65_536}
    assert {point.depth for point in wanted[base][staged]} == {0, 1, 2, 4, 8}
    assert all(point.batch == here.batch or point.depth == here.depth for point in wanted[base][staged])
    assert {spec.share for spec in wanted[base] if spec.kind == "lru"} == {1, 5, 10, 25, 100}
    assert {spec.kind for spec in wanted[base]} == {"device", "hybrid", "lru", "lfu", "scratchpipe", "slipstream"}
    assert replace(staged, transfer="staged") in wanted[base]
    (heavy,) = (one for one in wanted if one.model == "heavy")
    assert {spec.lookups for spec in wanted[heavy] if spec.is_staged} == {"host", "device"}
    assert {spec.lookups for one in wanted if one != heavy for spec in wanted[one]} == {"host"}
    for workload in wanted:
        differs = [name for name, value in vars(workload).items() if value != vars(base)[name]]
        assert (len(differs) <= 1 or differs == ["model", "ids"]) and next(iter(wanted[workload])) == DEVICE
    assert [one.precision for one in wanted if one.precision != "float32"] == ["tf32", "bf16"]
    assert {one.optimizer for one in wanted} == {"sgd", "adam", "rowwise_adagrad"}
    assert set(POLICIES) >= {spec.kind for spec in wanted[base]}


def test_a_variant_is_named_in_words() -> None:
    assert Spec.of("device") == DEVICE
    spec = Spec.of("lru:10:plan_threads=6:lookups=device:trainer=1:programs=9:tracker_threads=4:transfer=staged")
    assert spec == Spec("lru", 10, "staged", "device", trainer=1, plan_threads=6, tracker_threads=4, programs=9)
    for text in ("lru:10:speed=3", "lru:10:kind=lfu", "best", "lru:ten"):
        with pytest.raises(SystemExit, match=f"^variant {text}: expected"):
            Spec.of(text)


def test_memory_is_counted_before_it_is_taken() -> None:
    workload = Workload(gigabytes=1.0, dim=64, optimizer="adam")
    rows, row = 3_906_250, 4 * (3 * 64 + 1)
    assert Spec("lru", 10).memory_bytes(workload) == (rows * (row + 12), rows * row // 10)
    assert Spec("hybrid").memory_bytes(workload) == (rows * (row + 12), 0)
    assert DEVICE.memory_bytes(workload) == (rows * (row + 12), rows * row)
    assert Spec("torch").memory_bytes(workload) == (0, rows * 4 * 64 * 3)
    assert Spec("torch_host").memory_bytes(workload) == (rows * 4 * 64 * 3, 0)


# --- the accelerator -----------------------------------------------------------------------------------------------


def test_copies_over_the_link_are_no_time_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """With events as torch's profiler reports them for a GPU."""

    start = itertools.count(0, 1000)

    def event(
        name: str, us: float, *, device: DeviceType = DeviceType.CUDA, note: bool = False, at: float | None = None
    ) -> SimpleNamespace:
        first = next(start) if at is None else at
        span = SimpleNamespace(start=first, end=first + us)
        return SimpleNamespace(name=name, device_type=device, is_user_annotation=note, time_range=span)

    events = [
        event("pool_kernel", 20), event("Memcpy HtoD (Pinned -> Device)", 300), event("Memset (Device)", 1),
        event("Memcpy DtoH (Device -> Pinned)", 40), event("Memcpy DtoD (Device -> Device)", 2),
        event("a stretch", 999, note=True), event("cudaStreamSynchronize", 7, device=DeviceType.CPU),
        event("aten::add", 7, device=DeviceType.CPU), event("update_kernel", 15, at=10), event("sort", 3, at=12),
        event("copy_kernel", 400),
    ]  # fmt: skip
    seen = nullcontext(SimpleNamespace(events=lambda: events))
    monkeypatch.setattr(torch.profiler, "profile", lambda activities, acc_events: seen)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    work = Accelerator("cuda").profile(lambda: None)
    assert (work.kernels, work.host_waits) == (8, 1)
    assert (work.busy_ms, work.link_ms) == pytest.approx((0.028, 0.74))  # kernels of two streams at once count once


def test_a_queue_sleeps_until_all_work_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a simulated device: a launch takes 1 ms, a kernel 0.1 ms, a million cycles 0.5 ms."""
    host = device = 0.0

    def launch(ms: float) -> None:
        nonlocal host, device
        host += 1.0
        device = max(device, host) + ms

    def mark() -> SimpleNamespace:
        at = max(device, host)
        return SimpleNamespace(at=at, query=lambda: host >= at, elapsed_time=lambda last: last.at - at)

    accelerator = Accelerator("cuda")
    monkeypatch.setattr(accelerator, "mark", mark)
    monkeypatch.setattr(accelerator, "synchronize", lambda: None)
    monkeypatch.setattr(accelerator, "_fill_queue", lambda cycles: launch(cycles * 0.5e-6))
    times = accelerator.times_ms(lambda: [launch(0.1) for _ in range(5)], rounds=3)
    assert times == pytest.approx([0.5] * 3)


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """The command with a plan of two stages that only say that they ran."""

    def stage(name: str, **report: Any) -> plans.Stage:
        def run(tier: str, seconds: float) -> Report:
            found = Report(ratios={f"ran_{name}": seconds}, **report)
            found.table(f"table of {name}", "device").add(tier)
            return found

        return plans.Stage(name, 60, run)

    made = stage("first"), stage("second", absent={"bench_gpu_second": "no"}), stage("third")
    monkeypatch.setitem(plans.PLANS, "limits", made)
    monkeypatch.setattr(harness, "quietness", lambda: "load average 0")

    def call(*arguments: str) -> None:
        monkeypatch.setattr(
            sys, "argv", ["plans", "limits", "--device", "cpu-torch", "--out", str(tmp_path), *arguments]
        )
        plans.main()

    return call


def test_stages_of_a_plan_are_kept_and_added_to(
    command: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command("--only", "third")
    command("--only", "first")
    usual = 60 * plans.REHEARSAL
    assert json.loads((tmp_path / "results.json").read_text())["ratios"] == {"ran_first": usual, "ran_third": usual}
    with pytest.raises(SystemExit, match="failed: bench_gpu_second"):
        command("--seconds", "170")
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["ratios"] == {f"ran_{name}": pytest.approx(88, abs=1) for name in ("first", "second", "third")}
    assert results["absent"] == {"bench_gpu_second": "no"}
    text = (tmp_path / "tables.md").read_text()
    assert text.index("table of first") < text.index("table of second") < text.index("table of third")
    assert capsys.readouterr().out.rindex("table of third") > 0
    with pytest.raises(SystemExit):
        command("--only", "fourth")


def test_what_there_is_no_time_for_is_named(command: Callable[..., None], tmp_path: Path) -> None:
    command("--seconds", "50")
    absent = json.loads((tmp_path / "results.json").read_text())["absent"]
    assert list(absent) == ["gpu first", "gpu second", "gpu third"]


@pytest.mark.parametrize("name", plans.PLANS)
def test_a_plan_fits_a_quarter_of_an_hour(name: str) -> None:
    stages = plans.PLANS[name]
    assert sum(stage.seconds for stage in stages) <= 900
    assert len({stage.name for stage in stages}) == len(stages)
