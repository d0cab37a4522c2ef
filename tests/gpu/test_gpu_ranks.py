"""Several ranks with their rows on a GPU, in processes of their own.

Two ranks share one GPU, over gloo: all but NCCL itself. NCCL refuses two ranks on one GPU, so one rank uses it alone.
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
    found = RankPool(tmp_path_factory.mktemp("ranks"))
    yield found
    found.close()


def trained(pool: RankPool, size: int, out: Path, device: str, way: str = "gloo") -> dict[str, Any]:
    """Checksums after 20 steps of a DLRM in four blocks, the dense part on the same device."""
    for one in pool.run(size, [WORKER, str(out), "4", "20", "adagrad", device, way]):
        assert one.code == 0, one.err
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_two_ranks_on_one_gpu_give_the_bits_of_one(pool: RankPool, tmp_path: Path, device: str) -> None:
    one, two = (trained(pool, size, tmp_path / f"{size}.json", device) for size in (1, 2))
    assert one == two


def test_one_rank_by_nccl_gives_the_bits_of_gloo(pool: RankPool, tmp_path: Path, device: str) -> None:
    if device == "cuda" and not dist.is_nccl_available():
        pytest.skip("this torch was built without NCCL")
    way = "nccl" if device == "cuda" else "stand-in"
    assert trained(pool, 1, tmp_path / "a.json", device, way) == trained(pool, 1, tmp_path / "b.json", device)


def test_ranks_that_share_a_gpu_unasked_are_told(pool: RankPool, tmp_path: Path, device: str) -> None:
    if device != "cuda" or torch.cuda.device_count() > 1:
        pytest.skip("there is no GPU that they would have to share")
    for one in pool.run(2, [WORKER, str(tmp_path / "out.json"), "4", "1", "sgd", device, "auto"]):
        assert one.code != 0 and "share one GPU" in one.err
