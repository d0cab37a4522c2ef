"""`ShardedEmbeddingBag` on one to four processes, against one `TieredEmbeddingBag`."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.rank_pool import ROOT, RankPool

from adaptive.errors import OutputError
from adaptive.storage.run_directory import LOCK
from adaptive.training.runs.distributed import require_shared_directory

JOBS = str(ROOT / "tests/support/sharded_jobs.py")


def run(pool: RankPool, size: int, out: Path, job: str, *arguments: str) -> None:
    outcomes = pool.run(size, [JOBS, job, str(out), *arguments])
    assert [outcome.code for outcome in outcomes] == [0] * size, "\n".join(one.err[-3000:] for one in outcomes)


@pytest.mark.parametrize(
    ("size", "optimizers"),
    [
        pytest.param(1, "sgd adagrad rowwise adam ftrl", marks=pytest.mark.nightly),
        (2, "adam"),
        pytest.param(2, "ftrl", marks=pytest.mark.nightly),
        pytest.param(3, "adagrad", marks=pytest.mark.nightly),
        pytest.param(4, "rowwise", marks=pytest.mark.nightly),
    ],
)
def test_ranks_agree_with_one_process(pool: RankPool, tmp_path: Path, size: int, optimizers: str) -> None:
    run(pool, size, tmp_path, "agree", optimizers)


@pytest.mark.nightly
def test_a_number_of_ranks_repeats_bit_for_bit(pool: RankPool, tmp_path: Path) -> None:
    run(pool, 3, tmp_path, "repeat+own_samples+keys+rules+out_of_step+large")


@pytest.mark.nightly
def test_any_number_of_ranks_loads_what_any_number_saved(pool: RankPool, tmp_path: Path) -> None:
    for saved, loaded in ((3, (3, 2, 1)), (1, (1, 2)), (2, (3,))):
        out = tmp_path / str(saved)
        out.mkdir()
        run(pool, saved, out, "save")
        for size in loaded:
            run(pool, size, out, "load", str(saved))


def test_a_directory_that_a_rank_does_not_see_is_an_error_before_training(tmp_path: Path) -> None:
    """As on two servers whose run directory is on a local disk of the first."""
    (tmp_path / LOCK).touch()
    rows = SimpleNamespace(gather_facts=lambda fact, what: [fact, False])
    peers: Any = SimpleNamespace(rows=rows, names=["rank 0 of 2 on a", "rank 1 of 2 on b"])
    with pytest.raises(OutputError, match=r"on all ranks, got none on rank 1 of 2 on b.*shared file system"):
        require_shared_directory(tmp_path, peers)
    rows.gather_facts = lambda fact, what: [fact, fact]
    require_shared_directory(tmp_path, peers)


@pytest.mark.parametrize(
    "how", ["id", "kill", *(pytest.param(how, marks=pytest.mark.nightly) for how in ("raise", "leave", "settings"))]
)
def test_trouble_on_one_rank_ends_all(pool: RankPool, tmp_path: Path, how: str) -> None:
    outcomes = pool.run(3, [JOBS, "fail", str(tmp_path), how])
    texts = [path.read_text() for path in sorted(tmp_path.glob("?.txt"))]
    if how == "kill":
        assert outcomes[2].code == 9
        assert len(texts) == 2
        assert all(text.startswith("RanksError") and "No response from rank 2 of 3" in text for text in texts), texts
    elif how == "settings":
        assert all("expected settings.lr = 0" in text and "got 1 on rank 2" in text for text in texts), texts
    elif how == "leave":
        assert all(text.startswith("RanksError") for text in texts[:2]), texts
    else:
        expected = "expected ids 0 to" if how == "id" else "trouble"
        assert all(text.startswith("InputError") and expected in text for text in texts), texts
        assert all("rank 2 of 3" in text for text in texts[:2]), texts
