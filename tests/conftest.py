"""Shared by all tests: one thread a pool, and where optional real data lies.

Thread pools of torch and numba spin while they wait. Where other processes want the cores, two pools of two threads
make small steps ten times slower; tests of thread counts set their own.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, and for subprocesses

import hypothesis
import pytest
import torch

# isort: split
import numba

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("ADAPTIVE_DATA", ROOT / "../shared/data")).resolve()

hypothesis.settings.register_profile("any machine", deadline=None)  # a busy one takes as long as it takes
hypothesis.settings.load_profile("any machine")
torch.set_num_threads(1)
numba.set_num_threads(1)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from all tests but those that ask for one: device "auto" is the CPU on every machine."""
    if "gpu" not in config.option.markexpr and "GPU_SUITE_DEVICE" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


NIGHTLY = ("attack", "benchmarks")  # folders all of whose tests run every night


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(Path(__file__).parent).parts[0] in NIGHTLY:
            item.add_marker(pytest.mark.nightly)


@pytest.fixture
def hangup_heard() -> Iterator[None]:
    """SIGHUP is not ignored, as it is where tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def real_data() -> Path:
    """The folder of real data sets; the test is skipped with a reason where it is absent."""
    if not DATA.is_dir():
        pytest.skip(f"no real data at {DATA}; set ADAPTIVE_DATA to a folder that holds it")
    return DATA
