"""Equal bits from run to run."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from support.gpu_helpers import Training, assert_same

from adaptive.optim import SGD, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policies.device import Device
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lfu import LFU
from adaptive.policies.lru import LRU
from adaptive.policy import Policy

pytestmark = pytest.mark.gpu

REPEATS = 5


@pytest.mark.parametrize("optimizer", [SGD(), RowwiseAdagrad(), Adam()], ids=lambda optimizer: type(optimizer).__name__)
@pytest.mark.parametrize("policy", [LRU, Hybrid], ids=lambda policy: policy.__name__)
def test_five_repeats_are_equal(device: str, policy: type[Policy], optimizer: RowOptimizer) -> None:
    training = Training(device, policy, optimizer)
    first = training.run()
    for _ in range(REPEATS - 1):
        assert_same(training.run(), first)


@pytest.mark.parametrize("policy", [LFU, Hybrid], ids=lambda policy: policy.__name__)
def test_placement_leaves_the_dense_part_alone_too(device: str, policy: type[Policy]) -> None:
    result = Training(device, policy, RowwiseAdagrad()).run()
    expected = Training(device, Device, RowwiseAdagrad(), depth=0).run()
    for name in expected:
        if not name.startswith("rows "):  # records and batches depend on the policy
            assert (result[name] == expected[name]).all(), name


def test_another_process_gets_the_same_bits(device: str) -> None:
    expected = digest(device)
    code = f"from test_gpu_determinism import digest; print('digest', digest({device!r}))"
    tests = Path(__file__).parents[1]
    paths = [str(tests / "gpu"), str(tests), str(tests.parent)]
    script = f"import sys; sys.path[:0] = {paths!r}; {code}"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert f"digest {expected}" in process.stdout


def digest(device: str) -> str:
    """Digest of all numbers of a training."""
    arrays = Training(device, LRU, RowwiseAdagrad()).run().values()
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
