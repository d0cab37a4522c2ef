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

SCRIPT = Path(__file__).parent / "compile_triton.py"


def examined(cache: Path, capability: int, *widths: int) -> list[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(SCRIPT.parents[2])}
    command = [sys.executable, SCRIPT, str(capability), *map(str, widths)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def assert_exact(reports: list[dict[str, Any]]) -> None:
    *reports, fused = reports
    assert fused["inexact"], "a fused operation would not be seen"
    assert [report for report in reports if report["inexact"]] == []


def test_no_operation_is_fused_flushed_or_approximate(tmp_path: Path) -> None:
    """On a GPU of the H100's kind. Every kernel compiles."""
    assert_exact(examined(tmp_path, 90, 64))


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_every_width_compiles_to_exact_operations_that_spill_hardly_a_register(tmp_path: Path, capability: int) -> None:
    reports = examined(tmp_path, capability, 1, 17, 128, 1000)
    assert_exact(reports)
    assert [report for report in reports if report["spilled"] > 64] == []
