"""Checkpoints in shards: what some ranks have saved is what any others load, and nobody reads more than it needs."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.attacks import copied
from support.failing_disk import FailingDisk
from support.helpers import LFU, random_batches
from support.rank_cases import OPTIMIZERS, TABLES, Case, assert_same_rows, train_parts
from support.skip_rules import LeaveOut
from support.thread_ranks import on_ranks, outcomes

from adaptive.batch import Batch
from adaptive.config import SkipConfig
from adaptive.embeddings.engine.saving import row_arrays
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import CheckpointError, OutputError
from adaptive.optim import Adam, RowOptimizer
from adaptive.policy import Policy, RowStats
from adaptive.storage import shards
from adaptive.storage.checkpoint import Checkpoint, load_checkpoint
from adaptive.storage.durable import DISK, Disk
from adaptive.storage.run_checkpoints import load_best, load_whole
from adaptive.storage.run_directory import RunDirectory
from adaptive.training.runs import distributed
from adaptive.training.runs.distributed import CheckpointsOfRanks, checkpoints_of, readers_of, require_shared_directory

SKIP = SkipConfig(interval=4, hot_rows="100%", min_accesses=3, feedback_delay=5)
BATCHES = tuple(random_batches(TABLES, 9, samples=9, max_bag=5))

Work = Callable[[Ranks], Any]


@pytest.fixture(autouse=True, scope="module")
def rows_stay_in_files() -> Iterator[None]:
    """As those of large tables do, and are read and written in many blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SMALL_BYTES", 100)
        patch.setattr(row_arrays, "BLOCK_BYTES", 3000)
        yield


class Both(Policy):
    """Some rows are left alone, the gradients of others wait."""

    def __init__(self) -> None:
        self.rule = LeaveOut(self.choose, most=4, warmup=2)

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.last_access

    def choose(self, rows: RowStats) -> NDArray[np.bool_]:
        return (rows.update_size < 0.3) & (rows.rows % 3 == 0)


def built(ranks: Ranks, optimizer: RowOptimizer = OPTIMIZERS[1], *, skips: bool = False) -> TieredEmbeddingBag:
    tier = Case(()).tier
    policy, skip = (Both, SKIP) if skips else (LFU, None)
    return TieredEmbeddingBag(TABLES, tier, policy=policy, optimizer=optimizer, skip=skip, ranks=ranks)


def train(embeddings: TieredEmbeddingBag, batches: Sequence[Batch]) -> None:
    train_parts(embeddings, TABLES, batches, depth=1)


def content(embeddings: TieredEmbeddingBag, **meta: int) -> Checkpoint:
    return Checkpoint(embeddings.rows.state_parts(), {}, {"own": np.arange(3)}, meta)


def trained_and_saved(directory: Path, number: int = 1, **options: Any) -> Work:
    def work(ranks: Ranks) -> dict[str, Any]:
        embeddings = built(ranks, **options)
        train(embeddings, BATCHES)
        checkpoints_of(directory, ranks, keep=2).add(number, content(embeddings, steps=number))
        return embeddings.rows.state_arrays()

    return work


def loaded(directory: Path, **options: Any) -> Work:
    def work(ranks: Ranks) -> dict[str, Any]:
        _, results, damaged = load_whole(directory, readers_of(ranks))
        assert not damaged and results.policy["own"].tolist() == [0, 1, 2]
        embeddings = built(ranks, **options)
        embeddings.rows.load_state_arrays(results.rows)
        return embeddings.rows.state_arrays()

    return work


@pytest.fixture(scope="module", name="saved")
def saved_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a checkpoint of three ranks. Not to be changed."""
    directory = tmp_path_factory.mktemp("shards")
    on_ranks(3, trained_and_saved(directory), blocks=6, gradients="sum")
    return directory


# --- any number of ranks -----------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("first", [1, 2, 3, 4, 5])
def test_rows_that_some_ranks_saved_others_load(
    tmp_path: Path, first: int, optimizer: RowOptimizer, skips: bool
) -> None:
    """With what is watched, and what waits."""
    for then in (1, 2, 3, 4, 5):
        (tmp_path / str(then)).mkdir()
        check_loaded(tmp_path / str(then), first, then, optimizer=optimizer, skips=skips)


def check_loaded(directory: Path, first: int, then: int, **options: Any) -> None:
    expected = on_ranks(first, trained_and_saved(directory, **options), blocks=5, gradients="sum")[0]
    files = {file.name.rpartition("-")[0] for file in (directory / "checkpoint-1").iterdir()}
    assert files == {"", "policy", "rows"} | {f"shard-{rank}" for rank in range(first)}
    for results in on_ranks(then, loaded(directory, **options), blocks=5, gradients="sum"):
        assert_same_rows(expected, results)
        assert len(results["rows0.changed"]) > 100
        if options["skips"]:
            assert sum(map(len, (results["rows0.watched.row"], results["rows1.watched.row"]))) > 20


def test_what_waits_is_saved_with_its_rows(tmp_path: Path) -> None:
    """Sums belong to rows, whose entries have other numbers in every shard."""
    expected = on_ranks(3, trained_and_saved(tmp_path, skips=True), blocks=3, gradients="sum")[0]
    results = load_checkpoint(tmp_path / "checkpoint-1").rows
    for prefix in ("rows0.watched.", "rows1.watched."):
        assert len(expected[prefix + "summed"]) > 1
        assert np.array_equal(results[prefix + "summed"], expected[prefix + "summed"])
        assert np.array_equal(results[prefix + "sums"], expected[prefix + "sums"])


@pytest.mark.parametrize("skips", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_run_on_changing_ranks_equals_one_that_never_stopped(tmp_path: Path, skips: bool) -> None:
    """By way of the files, bit for bit; the one that never stopped saves at the same places."""

    def stretch(directory: Path, first: int, last: int) -> Work:
        def work(ranks: Ranks) -> dict[str, Any]:
            embeddings = built(ranks, Adam(lr=0.01), skips=skips)
            if first:
                embeddings.rows.load_state_arrays(load_whole(directory, readers_of(ranks))[1].rows)
            train(embeddings, BATCHES[first:last])
            checkpoints_of(directory, ranks, keep=1).add(last, content(embeddings))
            return embeddings.rows.state_arrays()

        return work

    results: dict[str, dict[str, Any]] = {}
    for name, sizes in (("same", (1, 1, 1, 1)), ("changing", (4, 2, 3, 1))):
        (tmp_path / name).mkdir()
        for size, first, last in zip(sizes, (0, 3, 5, 7), (3, 5, 7, 9), strict=True):
            work = stretch(tmp_path / name, first, last)
            results[name] = on_ranks(size, work, blocks=4, gradients="sum")[0]
        assert [entry.name for entry in (tmp_path / name).iterdir()] == ["checkpoint-9"]
    assert_same_rows(results["same"], results["changing"])


# --- damage ------------------------------------------------------------------------------------------------------


def test_what_one_rank_finds_damaged_is_told_by_all(saved: Path, tmp_path: Path) -> None:
    """A byte flipped in a shard that only one of them reads; a shard that is gone."""
    folder = copied(saved / "checkpoint-1", tmp_path / "checkpoint-1")

    def read(ranks: Ranks) -> None:
        load_best(tmp_path, readers_of(ranks))

    files = sorted(folder.glob("shard-*"))
    assert len(files) == 3 * 2 * 7
    for file in files[::8]:
        good = file.read_bytes()
        file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        for outcome in outcomes(2, read):
            assert isinstance(outcome, CheckpointError) and f"{file.name}: expected sha256" in str(outcome)
        file.unlink()
        assert all(f"{file.name}: expected a regular file" in str(one) for one in outcomes(2, read))
        file.write_bytes(good)
    on_ranks(2, read)


def test_a_damaged_shard_takes_all_to_the_checkpoint_before(saved: Path, tmp_path: Path) -> None:
    """Also those that did not read it."""
    older, newer = (copied(saved / "checkpoint-1", tmp_path / f"checkpoint-{number}") for number in (1, 2))
    file = newer / "shard-2-1.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    for rank, (path, results, damaged) in enumerate(on_ranks(3, lambda ranks: load_whole(tmp_path, readers_of(ranks)))):
        assert (path, list(damaged)) == (older, [newer]) and len(results.rows)
        assert damaged[newer].startswith("rank 2 of 3") == (rank != 2) and "shard-2-1.npy" in damaged[newer]


# --- writing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_whole_or_absent_whichever_rank_fails(tmp_path: Path, rank: int) -> None:
    """Each operation of a rank's disk fails in turn: no rank goes on alone, and the folder is there or not."""
    passed: list[bool] = []

    def attempt(number: int, disk: FailingDisk) -> Work:
        def work(ranks: Ranks) -> None:
            embeddings = built(ranks)
            train(embeddings, BATCHES[:1])
            own: Disk = disk if ranks.rank == rank else DISK
            saved = CheckpointsOfRanks(tmp_path, ranks, keep=1, damaged=(), disk=own)
            try:
                saved.add(number, content(embeddings))
            except OutputError as error:
                ranks.report(ranks.rows, error)
                raise

        return work

    for number in (2, 4, 6, 9, 30, 200) if rank else (2, 4, 9, 14, 60, 200):
        disk = FailingDisk(number)
        results = outcomes(3, attempt(number, disk), blocks=3, gradients="sum")
        folder = tmp_path / f"checkpoint-{number}"
        passed.append(all(one is None for one in results))
        assert folder.exists() or not passed[-1]
        assert len({one is None for one in results}) == 1, (number, results)
        for other, one in enumerate(results):
            if one is not None:
                assert isinstance(one, OutputError) and (f"rank {rank} of 3" in str(one)) == (other != rank)
        assert not list(tmp_path.glob("*.tmp-*"))
        if folder.exists():
            load_checkpoint(folder)
        else:
            assert disk.count >= number
    assert passed[-1] and passed.count(False) > 2


def test_what_killed_ranks_were_writing_is_removed(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as directory:
        directory.begin()
    litter = tmp_path / "run" / "checkpoint-7.tmp-4711"
    litter.mkdir()
    (litter / "shard-0-3.npy").write_bytes(b"half")
    with RunDirectory(tmp_path / "run", resume=True):
        assert not litter.exists()
    litter.mkdir()
    (litter / "shard-12-3.npy").write_bytes(b"half")
    with RunDirectory(tmp_path / "run", overwrite=True) as directory:
        assert [entry.name for entry in directory.path.iterdir()] == ["lock"]


def test_a_directory_that_some_rank_does_not_see_is_told_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "LATE_S", 0.0)

    def look(ranks: Ranks, own: Path) -> None:
        require_shared_directory(own, ranks)

    with RunDirectory(tmp_path / "run") as directory:
        on_ranks(3, lambda ranks: look(ranks, directory.path if ranks.is_first else tmp_path / "scratch"))
        sees = distributed._sees
        monkeypatch.setattr(distributed, "_sees", lambda *one: seen_by.pop() and sees(*one))
        seen_by = [True, True, False]
        for one in outcomes(3, lambda ranks: look(ranks, directory.path)):
            assert isinstance(one, OutputError) and "got none on rank" in str(one) and "save=false" in str(one)
