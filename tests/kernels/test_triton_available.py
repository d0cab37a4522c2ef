"""When the Triton kernels can be used, and that asking does not need Triton."""

import importlib
import sys

import pytest
import torch

from adaptive.kernels import gpu

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_a_cpu_is_served_only_by_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton_setup", reason="Triton is not installed; it comes with CUDA builds of torch")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert not gpu.available(CPU)
    assert gpu.available(CUDA)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert gpu.available(CPU)


def test_without_triton_nothing_is_available_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)  # importing it raises ImportError
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    module = importlib.reload(gpu)
    assert not module.available(CPU)
    assert not module.available(CUDA)
