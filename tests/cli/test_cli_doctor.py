"""`doctor` reports facts and problems."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptive.cli.doctor_command import gpu_problems
from adaptive.embeddings.tiers.gpu.build import WORKS, check_copy

Cli = Callable[..., Any]


def test_doctor_reports_every_part(cli: Cli) -> None:
    result = json.loads(cli("doctor", "--json").out)
    assert result["versions"]["torch"] and result["processor"]["usable_cores"] >= 1
    assert result["processor"]["available_memory"].endswith("iB")
    assert result["gpu"]["torch_build"] and "numba" in result["kernel_cache"]


def test_doctor_names_problems(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptive.kernels.jit._CACHE_DIR", None)
    result = cli("doctor")
    assert result.code == 0
    assert "problem: compiled kernels are not cached" in result.out and "XDG_CACHE_HOME" in result.out


CPU_ONLY = {"torch_build": "CPU", "nvidia_devices": "0", "driver": "none", "triton": "none", "c_compiler": "none",
            "python_h": "none", "usable": "none"}  # fmt: skip
HIDDEN = {**CPU_ONLY, "nvidia_devices": "1", "torch_build": "CUDA 13.0", "driver": "550.90.07"}
SEEN = {"torch_build": "CUDA 13.0", "nvidia_devices": "1", "driver": "580.65.06", "triton": "3.7.1", "c_compiler": "cc",
        "python_h": "installed", "cuda:0": "NVIDIA H100", "kernel_on_cuda:0": WORKS}  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (CPU_ONLY, []),
        (SEEN, []),
        ({**CPU_ONLY, "nvidia_devices": "1"}, ["torch is a CPU build. Run pip uninstall -y torch && pip install"]),
        (HIDDEN, ["torch (CUDA 13.0) cannot use the GPU with driver 550.90.07. Install a newer driver"]),
        ({**SEEN, "triton": "none"}, ["pip install triton"]),
        ({**SEEN, "c_compiler": "none", "python_h": "none"}, ["sudo apt install gcc", "sudo apt install python3-dev"]),
        ({**SEEN, "kernel_on_cuda:0": "failed: copied rows differ"}, ["cuda:0 failed: copied rows differ"]),
    ],
)
def test_a_gpu_that_training_cannot_use_is_a_problem(
    facts: dict[str, str], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    problems = gpu_problems(facts)
    assert len(problems) == len(words)
    for problem, part in zip(problems, words, strict=True):
        assert problem.startswith("problem: ") and part in problem


def test_a_hidden_gpu_is_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_problems(HIDDEN) == ["problem: CUDA_VISIBLE_DEVICES hides the GPU from torch. Unset it"]


def test_doctor_compares_bits_of_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU the same copy runs in numba; a changed bit or an error is reported."""
    assert check_copy(torch.device("cpu")) == WORKS
    monkeypatch.setattr("adaptive.kernels.rows.cpu_tensors.copy_rows", lambda *arguments: None)
    assert check_copy(torch.device("cpu")) == "failed: copied rows differ"
    monkeypatch.setattr("adaptive.kernels.rows.cpu_tensors.copy_rows", None)
    assert check_copy(torch.device("cpu")).startswith("failed: TypeError")


def test_findings_of_data_and_their_exit_code(cli: Cli) -> None:
    """All inputs are large, and half of the rows are equal."""
    Path("schema.toml").write_text(
        'label = {column = "click"}\ndense = [{columns = ["price"]}]\ncategorical = [{columns = ["user"]}]\n'
    )
    words = ("doctor", "--data", "csv:data.csv", "--schema", "schema.toml")
    for scale, code in ((1, 0), (10_000, 1)):
        rows = [f"{n % 3 % 2},{n},{n % 7 * scale}\n" for n in range(90)]
        Path("data.csv").write_text("click,user,price\n" + "".join(rows + rows * (code == 1)))
        result = cli(*words, "--set", "data.hash_rows=200")
        assert result.code == code
    lines = result.out.splitlines()
    assert lines[0] == "2 findings in 180 rows" and len(lines) == 3
    assert "price (3.6e+04)" in result.out and "data.csv:92" in result.out
    result = cli(*words, "--json")
    found = json.loads(result.out)["findings"]
    assert result.code == 1 and [finding["kind"] for finding in found] == ["unscaled", "duplicates"]
    assert list(found[0]) == ["kind", "what", "where", "why", "mend"]


def test_settings_without_data_are_refused(cli: Cli) -> None:
    result = cli("doctor", "--schema", "schema.toml")
    assert result.code == 2 and "expected --data SPEC" in result.err
