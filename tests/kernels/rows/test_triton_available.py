"""Where the Triton kernels can be used; the check does not need Triton."""

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
def test_only_the_interpreter_serves_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert not gpu.available(CPU) and gpu.available(CUDA)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert gpu.available(CPU)


@pytest.mark.parametrize(("version", "printed"), [(None, "none"), ("3.5.1", r"3\.5\.1")])
def test_a_missing_or_old_triton_is_refused_on_a_gpu(
    version: str | None, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old one's divisions and roots flush small numbers to 0."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    installed = None if version is None else SimpleNamespace(__version__=version)
    monkeypatch.setitem(sys.modules, "triton", installed)  # of None: importing it raises ImportError
    assert not gpu.available(CPU) and not gpu.available(CUDA)
    with pytest.raises(
        ConfigError, match=rf"expected Triton 3\.6 or newer for a GPU, got {printed}\. .*tier\.device=cpu"
    ):
        row_kernels(CUDA)


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton can launch kernels here")
def test_a_triton_that_cannot_launch_is_an_error_at_once() -> None:
    with pytest.raises(ConfigError, match=r"Triton cannot launch kernels here: .*a C compiler"):
        row_kernels(CUDA)


@needs_triton
def test_triton_is_made_ready_before_threads_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    active = SimpleNamespace(get_current_target=lambda: made.append("ready"))
    monkeypatch.setitem(sys.modules, "triton.runtime.driver", SimpleNamespace(driver=SimpleNamespace(active=active)))
    kernels = row_kernels(CUDA)
    assert made == ["ready"] and kernels.pool.__module__ == "adaptive.kernels.rows.gpu.pool"
