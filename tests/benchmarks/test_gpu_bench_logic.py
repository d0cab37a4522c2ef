"""The logic of `benchmarks.gpu`: floors, popular rows, plans of stages, bars, the command."""

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import DeviceType

from benchmarks import ending
from benchmarks import run_all as cpu_run_all
from benchmarks.bars import GPU_BARS, GPU_REQUIRED
from benchmarks.gpu import accelerator, bench_gpu_probe, bench_gpu_step, run_all, suite
from benchmarks.gpu.accelerator import Accelerator
from benchmarks.gpu.floors import Rates, traffic
from benchmarks.gpu.turns import Point, batches_needed
from benchmarks.gpu.variants import DEVICE, POLICIES, Spec
from benchmarks.gpu.workloads import Workload, covering_batches, popular_counts
from benchmarks.harness import Report
from benchmarks.streams import kaggle_tables, rank_ids, zipf

ROOT = Path(__file__).resolve().parents[2]


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
        assert len(differs) <= 1 and next(iter(wanted[workload])) == DEVICE
    assert {one.optimizer for one in wanted} == {"sgd", "adam", "rowwise_adagrad"}
    assert set(POLICIES) >= {spec.kind for spec in wanted[base]}


def test_memory_is_counted_before_it_is_taken() -> None:
    workload = Workload(gigabytes=1.0, dim=64, optimizer="adam")
    rows, row = 3_906_250, 4 * (3 * 64 + 1)
    assert Spec("lru", 10).memory_bytes(workload) == (rows * (row + 12), rows * row // 10)
    assert Spec("hybrid").memory_bytes(workload) == (rows * (row + 12), 0)
    assert DEVICE.memory_bytes(workload) == (rows * (row + 12), rows * row)
    assert Spec("torch").memory_bytes(workload) == (0, rows * 4 * 64 * 3)
    assert Spec("torch_host").memory_bytes(workload) == (rows * 4 * 64 * 3, 0)


def test_batches_last_for_all_turns() -> None:
    assert batches_needed(depth=4, steps=16, turns=6) >= (4 + 2 + 2) + 6 * (4 + 2 + 16)


def test_every_bar_has_a_ratio_of_a_stage() -> None:
    names = [bar.name for bar in GPU_BARS]
    assert len(names) == len(set(names)) and names == list(GPU_REQUIRED)
    source = "".join(path.read_text() for path in (ROOT / "benchmarks" / "gpu").glob("*.py"))
    for name in names:
        assert f'"{name.removesuffix("_hybrid")}' in source, name


# --- the accelerator -----------------------------------------------------------------------------------------------


def test_copies_over_the_link_are_no_time_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """With events as torch's profiler reports them for a GPU."""

    def event(name: str, us: float, *, device: DeviceType = DeviceType.CUDA, note: bool = False) -> SimpleNamespace:
        span = SimpleNamespace(elapsed_us=lambda: us)
        return SimpleNamespace(name=name, device_type=device, is_user_annotation=note, time_range=span)

    events = [
        event("pool_kernel", 20), event("Memcpy HtoD (Pinned -> Device)", 300), event("Memset (Device)", 1),
        event("Memcpy DtoH (Device -> Pinned)", 40), event("Memcpy DtoD (Device -> Device)", 2),
        event("a stretch", 999, note=True), event("cudaStreamSynchronize", 7, device=DeviceType.CPU),
        event("aten::add", 7, device=DeviceType.CPU),
    ]  # fmt: skip
    seen = nullcontext(SimpleNamespace(events=lambda: events))
    monkeypatch.setattr(torch.profiler, "profile", lambda activities, acc_events: seen)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    work = Accelerator("cuda").profile(lambda: None)
    assert (work.kernels, work.host_waits) == (5, 1)
    assert (work.device_ms, work.link_ms) == pytest.approx((0.023, 0.34))


def test_only_two_devices_are_known() -> None:
    with pytest.raises(SystemExit, match="expected device=cuda, or cpu-torch for a rehearsal, got tpu"):
        accelerator.open_accelerator("tpu")


def test_the_gpu_is_described_by_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(stdout="NVIDIA H100 80GB HBM3, 81559 MiB, 580.1\n")
    monkeypatch.setattr(accelerator.subprocess, "run", lambda *_, **__: answer)
    assert "GPU: NVIDIA H100 80GB HBM3, 81559 MiB, driver 580.1" in accelerator.describe("cuda")
    answer.stdout = "No devices were found"
    assert "nvidia-smi does not answer" in accelerator.describe("cuda")
    assert "no GPU numbers" in accelerator.describe("cpu-torch")


# --- the command ---------------------------------------------------------------------------------------------------


def test_without_a_gpu_it_says_so_and_fails(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu.run_all", "--smoke", "--document", str(tmp_path / "gpu.md")]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
                           env={"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""})  # fmt: skip
    assert process.returncode == 1
    assert "no CUDA device here: nothing was checked and nothing was timed" in process.stderr
    assert "Traceback" not in process.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Stages that only record their arguments."""
    calls: list[tuple[str, float]] = []

    def stage(name: str, size: str, tier: str, seconds: float) -> Report:
        calls.append((name, seconds))
        report = Report(ratios={f"ratio_{name}": 1.0, "gpu_tests_failed": 0.0})
        report.table(f"table of {name}", "what").add(1)
        return report

    monkeypatch.setattr(run_all, "run_stage", stage)
    monkeypatch.setattr(run_all, "check_machine", lambda tier: None)
    monkeypatch.setattr(run_all.harness, "quietness", lambda: "load average 0")
    return calls


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["run_all", *arguments])
    run_all.main()


def test_stages_are_merged_in_one_document(
    stages: list[tuple[str, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, results = tmp_path / "gpu.md", tmp_path / "results.json"
    document.write_text(f"# GPU\n\n{run_all.BEGIN}\nold\n{run_all.END}\n\nafter\n")
    common = ("--reports", str(tmp_path / "out"), "--document", str(document), "--json", str(results))
    call(monkeypatch, "--only", "suite", "probe", *common)
    call(monkeypatch, "--only", "step", *common)
    assert [name for name, _ in stages] == ["probe", "suite", "step"]
    text = document.read_text()
    assert text.startswith("# GPU") and text.endswith("after\n") and "old" not in text
    assert all(f"table of {name}" in text for name in ("suite", "probe", "step"))
    assert "GPU" in text and "probe: 20" in text
    result = json.loads(results.read_text())
    assert result["ratios"]["ratio_step"] == 1.0 and result["absent"]["gpu_staged_vs_device"]


def test_no_stage_begins_without_time(
    stages: list[tuple[str, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ("--reports", str(tmp_path), "--device", "cpu-torch", "--json", str(tmp_path / "results.json"))
    call(monkeypatch, "--seconds", "100", "--only", "suite", "probe", *common)
    assert [name for name, _ in stages] == ["probe", "suite"]
    assert [seconds for _, seconds in stages] == pytest.approx([(100 - 30 - 30) / 1.25] * 2, abs=2)  # ends in time
    call(monkeypatch, "--seconds", "1", "--only", "step", *common)
    assert (
        len(stages) == 2
        and "no time was left" in json.loads((tmp_path / "results.json").read_text())["absent"]["gpu step"]
    )


def test_a_failed_stage_fails_the_command(
    stages: list[tuple[str, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_all, "run_stage", lambda *_: Report(absent={"bench_gpu_step": "ended with code 1"}))
    with pytest.raises(SystemExit, match="failed: bench_gpu_step"):
        call(monkeypatch, "--only", "step", "--device", "cpu-torch")
    monkeypatch.setattr(run_all, "run_stage", lambda *_: Report(ratios={"gpu_tests_failed": 2.0}))
    with pytest.raises(SystemExit, match="failed: tests"):
        call(monkeypatch, "--only", "suite", "--device", "cpu-torch")


def test_a_stage_is_a_process_with_the_settings_of_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(ending, "run_module", lambda *a, limit: calls.append((*a, limit)) or Report())
    run_all.run_stage("step", "smoke", "cuda", 100)
    assert calls == [("benchmarks.gpu.bench_gpu_step", "--smoke", "--set", "device=cuda", "seconds=100", 155.0)]
    for stage, loaded in {"step": bench_gpu_step, "probe": bench_gpu_probe}.items():
        for size in run_all.SECONDS:
            cpu_run_all.harness.changed(loaded.SETTINGS[size], ["device=cpu-torch", *run_all.TINY[stage]])


def test_no_stage_takes_more_than_ten_minutes_however_it_ends() -> None:
    for size in run_all.SECONDS.values():
        assert size.keys() == set(run_all.STAGES)
        for seconds in size.values():
            assert run_all.limit_of(seconds) == pytest.approx(seconds * run_all.MARGIN + run_all.START_SECONDS)
            assert run_all.limit_of(seconds) + ending.GRACE_SECONDS <= run_all.MOST_SECONDS
    assert run_all.limit_of(10_000) + ending.GRACE_SECONDS == run_all.MOST_SECONDS


def test_the_document_is_written_from_saved_reports(
    stages: list[tuple[str, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No stage runs, and no GPU is needed; machine and command are those of the run."""
    document, folder = tmp_path / "page.md", tmp_path / "reports"
    with pytest.raises(SystemExit, match="expected --reports FOLDER"):
        call(monkeypatch, "--write")
    with pytest.raises(SystemExit, match=r"expected .*machine.json, which a run with --reports writes"):
        call(monkeypatch, "--write", "--reports", str(folder))
    folder.mkdir()
    Report(ratios={"gpu_staged_vs_device": 1.25}).save(folder / "step.json")
    about = {"machine": "a machine of dreams", "quietness": "quiet", "command": "python -m x", "size": "full"}
    (folder / "machine.json").write_text(json.dumps(about))
    monkeypatch.setattr(run_all, "check_machine", lambda tier: pytest.fail("nothing is needed"))
    call(monkeypatch, "--write", "--reports", str(folder), "--document", str(document))
    text = document.read_text()
    assert "a machine of dreams" in text and "`python -m x`" in text and "1.25" in text and stages == []


STAGE = """
import time
from dataclasses import dataclass
from benchmarks import harness
from benchmarks.ending import kept_when_ended
from benchmarks.harness import Report

@dataclass(frozen=True)
class Settings:
    seconds: float = 0.0
    code: int = 0

def run(settings):
    report = Report(ratios={"measured": 2.0})
    with kept_when_ended(report):
        time.sleep(settings.seconds)
        report.ratios["more"] = 3.0
    if settings.code:
        raise OSError
    return report

harness.main("", run, {"full": Settings()})
"""


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that is a stage."""
    (tmp_path / "bench_stage.py").write_text(STAGE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    return "bench_stage"


def test_the_report_of_a_stage_is_read(stage: str) -> None:
    assert ending.run_module(stage, limit=60).ratios == {"measured": 2.0, "more": 3.0}
    report = ending.run_module(stage, "--set", "code=1", limit=60)
    assert (report.ratios, list(report.absent)) == ({}, ["bench_stage"])


def test_a_stage_that_takes_too_long_keeps_its_results(stage: str) -> None:
    report = ending.run_module(stage, "--set", "seconds=600", limit=6)
    assert report.ratios == {"measured": 2.0}
    assert report.absent == {"bench_stage: the rest": "did not end within 6 s"}
    assert any("Ended from outside" in note for note in report.notes)


def test_a_process_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "GRACE_SECONDS", 0.1)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        assert not ending.wait([process], 0.1, signal.SIGTERM)
    assert process.returncode == -signal.SIGKILL


def test_every_test_for_the_gpu_is_run() -> None:
    files = (ROOT / "tests" / "gpu").glob("test_*.py")
    assert {path.name for path in files} == {f"test_gpu_{name}.py" for names in suite.PROCESSES for name in names}


def test_results_of_the_tests_are_read(tmp_path: Path) -> None:
    path = tmp_path / "results.xml"
    path.write_text(
        '<testsuites><testsuite><testcase classname="a.b" name="one" time="1"/>'
        '<testcase classname="a.b" name="two" time="1"><failure/></testcase>'
        '<testcase classname="a.c" name="three" time="0"><skipped/></testcase></testsuite></testsuites>'
    )
    report = suite._report([path], "cuda")
    assert report.tables[0].rows == [["a.b", "1", "1", "0", "2"], ["a.c", "0", "0", "1", "0"]]
    assert report.ratios == {"gpu_tests_failed": 1.0} and report.figures == {"gpu_tests_passed": 1.0}
    assert report.notes == ["FAILED: a.b::two"]
    path.write_text("<testsuites/>")
    assert suite._report([path], "cuda").absent == {"bench_gpu_suite": "no test was found"}
