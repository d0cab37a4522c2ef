"""Several ranks with their rows on a GPU, in separate processes.

Two ranks share one GPU over gloo. NCCL refuses two ranks on one GPU, so a single rank uses it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.rank_pool import ROOT, RankPool

pytestmark = pytest.mark.gpu
WORKER = str(ROOT / "tests/support/rank_process.py")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    ranks = RankPool(tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.close()


def trained(pool: RankPool, size: int, out: Path, device: str, way: str = "gloo") -> dict[str, Any]:
    """Checksums after 20 steps of a DLRM in four blocks, the dense part on the same device."""
    for rank in pool.run(size, [WORKER, str(out), "4", "20", "adagrad", device, way]):
        assert rank.code == 0, rank.err
    checksums: dict[str, Any] = json.loads(out.read_text())
    return checksums


def test_two_ranks_on_one_gpu_give_the_bits_of_one(pool: RankPool, tmp_path: Path, device: str) -> None:
    single, pair = (trained(pool, size, tmp_path / f"{size}.json", device) for size in (1, 2))
    assert single == pair


def test_one_rank_by_nccl_gives_the_bits_of_gloo(pool: RankPool, tmp_path: Path, device: str) -> None:
    if device == "cuda" and not dist.is_nccl_available():
        pytest.skip("this torch was built without NCCL")
    way = "nccl" if device == "cuda" else "stand-in"
    assert trained(pool, 1, tmp_path / "a.json", device, way) == trained(pool, 1, tmp_path / "b.json", device)


def test_ranks_that_share_a_gpu_by_mistake_fail(pool: RankPool, tmp_path: Path, device: str) -> None:
    if device != "cuda" or torch.cuda.device_count() > 1:
        pytest.skip("needs exactly one GPU")
    for rank in pool.run(2, [WORKER, str(tmp_path / "out.json"), "4", "1", "sgd", device, "auto"]):
        assert rank.code != 0 and "share one GPU" in rank.err
