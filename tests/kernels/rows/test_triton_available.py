"""When the Triton kernels can be used, and that asking does not need Triton."""

import importlib
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from adaptive.errors import ConfigError
from adaptive.kernels.rows import gpu
from adaptive.kernels.rows.choose import row_kernels

if find_spec("triton"):
    from support import triton_setup  # noqa: F401 (before torch imports Triton, to compile)

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed; it comes with CUDA builds of torch"
)
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@needs_triton
def test_a_cpu_is_served_only_by_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
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


@needs_triton
def test_an_old_triton_is_refused_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it makes of divisions and roots flushes small numbers to 0."""
    import triton

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(triton, "__version__", "3.5.1")
    assert not gpu.available(CUDA)
    with pytest.raises(ConfigError, match=r"expected Triton 3\.6 or newer for a GPU, got 3\.5\.1\. Install"):
        row_kernels(CUDA)
    for version in ("3.6.0", "3.10.0+git1", "4.0.0"):
        monkeypatch.setattr(triton, "__version__", version)
        assert gpu.available(CUDA)


def test_a_gpu_without_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ConfigError, match=r"expected Triton 3\.6 or newer for a GPU, got none\. .*tier\.device=cpu"):
        row_kernels(CUDA)


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton can launch kernels here")
def test_a_triton_that_cannot_launch_is_told_of_when_the_tiers_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"Triton cannot launch kernels here: .*a C compiler"):
        row_kernels(CUDA)


@needs_triton
def test_two_threads_do_not_make_triton_ready_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    active = SimpleNamespace(get_current_target=lambda: made.append("ready"))
    monkeypatch.setitem(sys.modules, "triton.runtime.driver", SimpleNamespace(driver=SimpleNamespace(active=active)))
    kernels = row_kernels(CUDA)
    assert made == ["ready"] and kernels.pool.__module__ == "adaptive.kernels.rows.gpu.pool"
