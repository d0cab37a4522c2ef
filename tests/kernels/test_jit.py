"""How kernels are compiled: once for all callers, and shared among threads."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core import event

from adaptive.kernels import jit
from adaptive.kernels.jit import in_parallel, kernel


@kernel()
def add_one(item, counts, amounts):
    counts[item] += amounts[item % 2]


@kernel()
def add_each(counts, amounts):
    in_parallel(add_one, counts.size, counts, amounts)


@kernel(makes_arrays=True)
def take_memory(item, sizes):
    scratch = np.empty(sizes[item], np.float64)
    scratch[0] = item
    sizes[item] = np.int64(scratch[0])


@kernel()
def take_memories(sizes):
    in_parallel(take_memory, sizes.size, sizes)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000])
def test_each_item_is_worked_on_once(count: int) -> None:
    counts = np.zeros(count, np.int64)
    add_each(counts, np.array([1, 3]))
    expected = np.where(np.arange(count) % 2, 3, 1)
    np.testing.assert_array_equal(counts, expected)
    add_each.py_func(counts, np.array([1, 3]))
    np.testing.assert_array_equal(counts, 2 * expected)


def test_callers_with_constants_and_variables_share_one_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_CACHE_DIR", None)

    @kernel()
    def fill(item, counts, number):
        counts[item] = number

    @kernel()
    def fill_thrice(counts, number):
        fill(0, counts, 5)
        fill(counts.size - 1, counts, number)
        in_parallel(fill, 1, counts, 7)

    counts = np.zeros(3, np.int64)
    fill_thrice(counts, 9)
    assert counts.tolist() == [7, 0, 9]
    assert len(fill.callee.overloads) == 1
    assert not fill.overloads  # no code that only Python calls
    fill(1, counts, 4)
    assert counts.tolist() == [7, 4, 9] and len(fill.overloads) == 1


def test_a_parallel_kernel_without_memory_raises() -> None:
    sizes = np.array([10, 2**58, 10, 20])
    with pytest.raises(MemoryError):
        take_memories(sizes)
    assert sizes.tolist() == [0, 2**58, 2, 3]
    take_memories(sizes[:0])


class Interrupts(event.Listener):
    def on_start(self, compilation: event.Event) -> None:
        signal.raise_signal(signal.SIGINT)

    def on_end(self, compilation: event.Event) -> None:
        pass


def test_an_interrupt_comes_after_a_kernel_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_CACHE_DIR", None)

    @kernel()
    def plus_one(number: int) -> int:
        return number + 1

    with event.install_listener("numba:compile", Interrupts()), pytest.raises(KeyboardInterrupt):
        plus_one(1)
    assert len(plus_one.signatures) == 1 and plus_one(1) == 2  # type: ignore[attr-defined]


def test_garbage_is_collected_again_after_compiling() -> None:
    @kernel()
    def half(number):
        return number // 2

    assert gc.isenabled()
    assert half(5) == 2 and gc.isenabled()
    gc.disable()
    try:
        assert half(5.0) == 2.0 and not gc.isenabled()
    finally:
        gc.enable()


LAYER = """
import numba, numpy as np
from test_jit import add_each
counts = np.zeros(11, np.int64)
add_each(counts, np.array([1, 3]))
print(numba.threading_layer(), counts.tolist())
"""


@pytest.mark.nightly
@pytest.mark.parametrize("layer", ["workqueue", "omp"])
def test_two_threads_of_each_layer_run_cached_code(layer: str) -> None:
    """In a process of its own, which reads the code that the first one has compiled."""
    paths = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent)])
    environment = {**os.environ, "NUMBA_NUM_THREADS": "2", "NUMBA_THREADING_LAYER": layer, "PYTHONPATH": paths}
    command = [sys.executable, "-c", LAYER]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{layer} {[1, 3] * 5 + [1]}\n"
