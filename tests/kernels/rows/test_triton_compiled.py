"""Machine code of the Triton kernels, without a GPU: every operation rounds by itself.

The interpreter cannot show this: on a GPU, a product and a sum are fused to one operation unless that is forbidden.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        find_spec("triton") is None, reason="Triton is not installed; it comes with CUDA builds of torch"
    ),
]

SUPPORT = Path(__file__).parents[2] / "support"
# A kernel waits for memory: the loads that a thread must have issued before it needs the first of them. Sums that need
# neither scales nor a mean square issue 10, and 9 for capability 8.0.
LEAST_IN_FLIGHT = {
    "hot_kernel": 32, "chunks_kernel": 32, "update_kernel": 12, "accumulate_kernel": 10, "pool_kernel": 4,
    "copy_kernel": 4,
}  # fmt: skip


def printed(script: str, cache: Path, *arguments: object) -> list[dict[str, Any]]:
    """Reports of a script in its own process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    paths = [str(SUPPORT.parents[1]), os.environ.get("PYTHONPATH", "")]
    environment |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, SUPPORT / script, *map(str, arguments)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_interaction_spills_no_register(tmp_path: Path, capability: int) -> None:
    *reports, _ = printed("compile_triton.py", tmp_path, capability, "dense", 16, 64, 128, 200)
    assert len(reports) == 4 * 16
    assert [report for report in reports if report["spilled"]] == []


@pytest.mark.parametrize(
    ("capability", "widths"), [(80, (3, 64, 1000)), (90, (1, 3, 4, 16, 64, 100, 128, 1000, 4096)), (100, (3, 64, 1000))]
)
def test_no_operation_is_fused_flushed_or_approximate(tmp_path: Path, capability: int, widths: tuple[int, ...]) -> None:
    """At any width; few bytes are spilled, and several loads are in flight."""
    *reports, fused = printed("compile_triton.py", tmp_path, capability, "rows", *widths)
    assert fused["inexact"], "a fused operation would not be seen"
    assert [report for report in reports if report["inexact"] or report["spilled"] > 64] == []
    # A program that pools bags of one lookup each has no more to load, and a load of bfloat16 brings twice the values.
    others = [one for one in reports if not any(map(one["constants"].get, ("SINGLE", "half", "half_state")))]
    loading = [report for report in others if report["width"] in (64, 128)]
    assert {report["kernel"] for report in loading} >= LEAST_IN_FLIGHT.keys()
    least = LEAST_IN_FLIGHT | ({"accumulate_kernel": 9} if capability == 80 else {})
    assert [one for one in loading if one["in_flight"] < least.get(one["kernel"], 0)] == []


def test_batches_of_other_sizes_compile_nothing_again(tmp_path: Path) -> None:
    """In the middle of training, compiling a kernel takes as long as a hundred steps.

    Kernels are launched as in training, so Triton accepts every argument and option, too.
    """
    reports = printed("launch_triton.py", tmp_path, 90)
    assert len(reports) == 3 * 8
    expected = {
        "pool_kernel": 2,
        "initial_kernel": 2,
    }  # bags of one lookup, or of any number; rows with keys, or without
    for report in reports:
        assert report["kinds"] == expected.get(report["kernel"], 1), report
