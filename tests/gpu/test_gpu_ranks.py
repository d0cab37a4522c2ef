"""Several ranks with their rows on a GPU, in separate processes.

Two ranks share one GPU over gloo. NCCL refuses two ranks on one GPU, so a single rank uses it.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.rank_pool import ROOT, RankPool, rank_pool

pytestmark = pytest.mark.gpu
JOBS = str(ROOT / "tests/support/sharded_jobs.py")


pool = pytest.fixture(scope="module")(rank_pool)


def trained(pool: RankPool, size: int, out: Path, device: str, backend: str = "gloo") -> dict[str, np.ndarray]:
    """Tables after 20 steps."""
    out.mkdir()
    for rank in pool.run(size, [JOBS, "on_device", str(out), device], ADAPTIVE_TEST_BACKEND=backend):
        assert rank.code == 0, rank.err
    return dict(np.load(out / "weights.npz"))


def test_two_ranks_on_one_gpu_give_the_bits_of_two_on_cpus(pool: RankPool, tmp_path: Path, device: str) -> None:
    on_device, on_cpu = (trained(pool, 2, tmp_path / kind, kind) for kind in (device, "cpu"))
    assert all(np.array_equal(on_device[name], on_cpu[name]) for name in on_cpu)


def test_one_rank_by_nccl_gives_the_bits_of_gloo(pool: RankPool, tmp_path: Path, device: str) -> None:
    if device != "cuda" or not dist.is_nccl_available():
        pytest.skip("needs a GPU and a torch with NCCL")
    by_nccl, by_gloo = (trained(pool, 1, tmp_path / way, device, way) for way in ("nccl", "gloo"))
    assert all(np.array_equal(by_nccl[name], by_gloo[name]) for name in by_gloo)


def test_ranks_that_share_a_gpu_by_mistake_fail(pool: RankPool, tmp_path: Path, device: str) -> None:
    if device != "cuda" or torch.cuda.device_count() > 1:
        pytest.skip("needs exactly one GPU")
    for rank in pool.run(2, [JOBS, "on_device", str(tmp_path), device], ADAPTIVE_TEST_BACKEND="auto"):
        assert rank.code != 0 and "ranks share one" in rank.err
