"""What a GPU will run first, run on the CPU: the tests in `tests/gpu`, the copying kernel, the one command."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptive.optim import SGD, Adam, RowwiseAdagrad
from adaptive.policies.device import Device
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lru import LRU
from benchmarks.gpu.suite import run_suite

ROOT = Path(__file__).resolve().parents[2]
CALLS: list[tuple[str, str, tuple[Any, ...]]] = [
    ("bf16", "placement_changes_nothing_under_bf16", ()),
    ("bf16", "rows_and_state_stay_float32", ()),
    ("bf16", "it_learns_as_on_the_cpu", ()),
    ("determinism", "five_repeats_are_equal", (LRU, Adam())),
    ("determinism", "placement_leaves_the_dense_part_alone_too", (Hybrid,)),
    ("determinism", "delays_in_every_stream_and_thread_change_nothing", (1,)),
    ("invariance", "any_width", (63, RowwiseAdagrad())),
    ("lookups", "placement_never_changes_the_numbers_of_long_bags", (Adam(),)),
    ("lookups", "no_host_waits_in_a_step", ()),
    ("saving", "saved_there_and_loaded_here", ()),
    ("waits", "no_host_waits_in_a_step", (Device, SGD())),
    ("waits", "twice_the_steps_cost_no_more_waits", ()),
    ("waits", "a_tier_takes_the_memory_it_was_given", ("25%", SGD())),
    ("waits", "training_longer_takes_no_more_memory", ()),
]


@pytest.fixture(autouse=True)
def gpu_tests_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "gpu")


@pytest.mark.parametrize(("module", "name", "arguments"), CALLS, ids=lambda one: one if isinstance(one, str) else "")
def test_a_test_for_the_gpu_passes_on_the_cpu(module: str, name: str, arguments: tuple[Any, ...]) -> None:
    getattr(import_module(f"test_gpu_{module}"), f"test_{name}")("cpu-torch", *arguments)


def test_delays_reach_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a stand-in for torch.cuda: every record comes after a delay, every wait before one, in the given stream."""
    helpers: Any = import_module("support.gpu_helpers")
    log: list[str] = []
    here = ["main"]

    class Event:
        def record(self, stream: Any = None) -> None:
            log.append(f"record {stream}")

        def wait(self, stream: Any = None) -> None:
            log.append(f"wait {stream}")

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            here.append(self.name)

        def __exit__(self, *_: object) -> None:
            here.pop()

        def __str__(self) -> str:
            return self.name

    copies = Stream("copies")
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream("main"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: log.append(f"sleep in {here[-1]}"))
    monkeypatch.setattr(helpers.time, "sleep", lambda seconds: log.append(f"sleep in {here[-1]}"))
    before = Event.record
    with helpers.Delays("cuda", 0).around_events():
        Event().record(copies)
        Event().wait()
    assert log == ["sleep in copies", "record copies", "wait None", "sleep in main"]
    assert Event.record is before


@pytest.mark.nightly  # all of tests/gpu, in a process of its own
def test_the_whole_suite_on_the_cpu() -> None:
    report = run_suite("cpu-torch", "smoke", 600)
    assert report.absent == {} and report.ratios["gpu_tests_failed"] == 0, report.notes
    assert report.figures["gpu_tests_passed"] > 60


@pytest.mark.nightly  # a process for each stage
def test_the_one_command_on_the_cpu(tmp_path: Path) -> None:
    found = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks.gpu.run_all", "--smoke", "--device", "cpu-torch", "--json", str(found)]
    subprocess.run([*command, "--only", "probe", "step"], cwd=ROOT, check=True, timeout=900)
    result = json.loads(found.read_text())
    assert not [name for name in result["absent"] if name.startswith("bench_")]
    assert result["ratios"]["gpu_staged_vs_hybrid_0.0008gb"] > 0
