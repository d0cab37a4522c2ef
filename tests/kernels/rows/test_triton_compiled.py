"""What the compiler makes of the Triton kernels, without a GPU: machine code in which every operation rounds by itself.

The interpreter cannot show this: on a GPU, a product and a sum are fused to one operation unless that is forbidden.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton_setup", reason="Triton is not installed; it comes with CUDA builds of torch")

SUPPORT = Path(__file__).parents[2] / "support"
SCRIPT, LAUNCHES = SUPPORT / "compile_triton.py", SUPPORT / "launch_triton.py"


def examined(cache: Path, capability: int, which: str, *widths: int) -> list[dict[str, Any]]:
    return printed(SCRIPT, cache, str(capability), which, *map(str, widths))


def printed(script: Path, cache: Path, *arguments: str) -> list[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(SUPPORT.parents[1])}
    run = subprocess.run(
        [sys.executable, script, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def assert_exact(reports: list[dict[str, Any]]) -> None:
    *reports, fused = reports
    assert fused["inexact"], "a fused operation would not be seen"
    assert [report for report in reports if report["inexact"]] == []


# What a kernel waits for is memory: how many loads a thread must have asked for before it needs the first of them.
LEAST_IN_FLIGHT = {"hot_kernel": 32, "update_kernel": 12, "accumulate_kernel": 12, "pool_kernel": 4, "copy_kernel": 4}


def assert_loads_are_on_their_way(reports: list[dict[str, Any]]) -> None:
    # A program that pools bags of one lookup each has no more to ask for than these.
    found = [
        (report["kernel"], report["in_flight"], report["constants"])
        for report in reports
        if not report["constants"].get("SINGLE")
    ]
    assert [one for one in found if one[1] < LEAST_IN_FLIGHT.get(one[0], 0)] == []
    assert {one[0] for one in found} >= LEAST_IN_FLIGHT.keys()


@pytest.mark.nightly
def test_no_operation_is_fused_flushed_or_approximate(tmp_path: Path) -> None:
    """On a GPU of the H100's kind. Every kernel compiles."""
    reports = examined(tmp_path, 90, "once", 64)
    assert_exact(reports)
    assert_loads_are_on_their_way(reports)


@pytest.mark.nightly
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_interaction_compiles_and_spills_no_register(tmp_path: Path, capability: int) -> None:
    reports = examined(tmp_path, capability, "dense", 16, 64, 128, 200)
    assert len(reports) == 4 * 16
    assert [report for report in reports if report["spilled"]] == []


@pytest.mark.nightly
@pytest.mark.parametrize(("capability", "which"), [(80, "few"), (90, "all"), (100, "few")])
def test_every_width_compiles_to_exact_operations_that_spill_hardly_a_register(
    tmp_path: Path, capability: int, which: str
) -> None:
    reports = examined(tmp_path, capability, which, 1, 3, 4, 16, 64, 100, 128, 1000, 4096)
    assert_exact(reports)
    assert_loads_are_on_their_way([report for report in reports if report.get("width") in (64, 128)])
    assert [report for report in reports if report["spilled"] > 64] == []


@pytest.mark.nightly
def test_batches_of_other_sizes_compile_nothing_anew(tmp_path: Path) -> None:
    """In the middle of training a kernel that is compiled takes as long as a hundred steps. As training launches them:
    Triton takes every argument and option, too."""
    reports = printed(LAUNCHES, tmp_path, "90")
    assert len(reports) == 3 * 8
    expected = {"pool_kernel": 2}  # bags of one lookup, or any
    for report in reports:
        assert report["kinds"] == expected.get(report["kernel"], 1), report
