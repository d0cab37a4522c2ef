"""Faults of the machine at operation N of a run, for N in turn: disk, files of rows. The
run continues or ends with a promised exit code, and what is on disk is whole: resumed, it ends as one without."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import pytest
from support.attacks import Campaign, attack
from support.interrupted import Killed, assert_equal, config_of, numbers, resume_run, run, small_world
from support.rank_pool import ROOT, SAVING_RUN, RankPool

from adaptive.embeddings.tiers.host_file import FileHost
from adaptive.errors import AdaptiveError, CheckpointError
from adaptive.storage.durable import Disk
from adaptive.training.telemetry import jsonl, tensorboard_view

pytestmark = attack

FAULTS: Final = ("kill", "torn", "error", "lasting")
DISK: Final = ("create", "write", "sync", "make_directory", "sync_directory", "rename", "remove")
CODES: Final = (5, 6)


class Counted:
    """Counts the operations of a run, and spoils one, or all from there on."""

    def __init__(self, at: int, fault: str, error: int = errno.EIO) -> None:
        self.at, self.fault, self.error, self.count = at, fault, error, 0

    def passes(self) -> bool:
        """Return True if an operation may be done; False: it is torn."""
        self.count += 1
        is_hit = self.count >= self.at if self.fault == "lasting" else self.count == self.at
        if is_hit and self.fault == "kill":
            raise Killed
        if is_hit and self.fault in ("error", "lasting"):
            raise OSError(self.error, os.strerror(self.error))
        return not is_hit


@contextmanager
def spoiled(patch: pytest.MonkeyPatch, found: Counted) -> Iterator[None]:
    """Inside, operations on the run directory and on files of rows are counted."""
    with pytest.MonkeyPatch.context() as own:
        for name in DISK:
            own.setattr(Disk, name, _counting(getattr(Disk, name), found))
        for name in ("_read_runs", "_write_runs"):
            own.setattr(FileHost, name, _failing(getattr(FileHost, name), found, name))
        for module in (jsonl, tensorboard_view):
            own.setattr(module, "open", _opening(found), raising=False)
        yield


def _counting(operation: Callable[..., Any], found: Counted) -> Callable[..., Any]:
    def maybe(self: Disk, *arguments: Any) -> Any:
        if not found.passes():
            if operation.__name__ == "write":
                file, data = arguments
                file.write(bytes(data)[: len(data) // 2])
                file.flush()
            raise Killed
        return operation(self, *arguments)

    return maybe


def _failing(operation: Callable[..., Any], found: Counted, name: str) -> Callable[..., Any]:
    def maybe(self: FileHost) -> Any:
        try:
            if not found.passes():
                raise Killed
        except OSError as error:
            self._fail(name.split("_")[1], error)
        return operation(self)

    return maybe


def _opening(found: Counted) -> Callable[..., BinaryIO]:
    def maybe(path: Any, mode: str = "r", *arguments: Any) -> Any:
        if not found.passes():
            raise Killed
        return open(path, mode, *arguments)

    return maybe


def failed_with(action: Callable[[], Any]) -> BaseException | None:
    """The error that it ends with; any that is neither for users nor the kill is raised."""
    try:
        action()
    except (AdaptiveError, Killed) as error:
        return error
    return None


@pytest.mark.parametrize("host", ["memory", "files"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_operation_n(tmp_path: Path, fault: str, host: str) -> None:
    tier = {"device_rows": "60%", "host": "memory" if host == "memory" else f"mmap:{tmp_path / 'rows'}"}
    config = config_of("lru", save_every=6, tensorboard=True, tier=tier)
    campaign = Campaign(f"fault at operation n, {fault}, {host}", 2)
    with small_world(num_train=256) as patch:
        counted = Counted(10**9, "none")
        with spoiled(patch, counted):
            run(tmp_path / "whole", config)
        expected = numbers(tmp_path / "whole")
        for seed, rng in campaign.tries():
            out = tmp_path / "run"
            shutil.rmtree(out, ignore_errors=True)
            at = 1 + (seed % counted.count if campaign.least < seed else int(rng.integers(counted.count)))
            number = (errno.EIO, errno.ENOSPC)[int(rng.integers(2))]
            with spoiled(patch, Counted(at, fault, number)):
                error = failed_with(lambda: run(out, config))  # noqa: B023 (called at once)
            campaign.came(type(error).__name__)
            if error is None:
                assert_equal(numbers(out), expected)  # all that it promises is on disk
                continue
            if isinstance(error, AdaptiveError):
                assert error.exit_code in CODES, (at, error)
                assert str(out) in str(error) or "rows" in str(error), (at, error)
                assert f"[Errno {number}]" in str(error), (at, error)
            error = failed_with(lambda: resume_run(out))  # noqa: B023 (called at once)
            if isinstance(error, CheckpointError):
                assert not list(out.glob("checkpoint-*")), (at, error)
                shutil.rmtree(out, ignore_errors=True)
                run(out, config)
            else:
                assert error is None or "finished run" in str(error), (at, error)
            assert_equal(numbers(out), expected)
            assert not [path for path in out.rglob("*") if ".tmp-" in path.name], at
            assert not (out / "lock").exists()


SMALL: Final = [*SAVING_RUN, "--steps", "6"]


def test_a_disk_that_fails_one_of_two_ranks(tmp_path: Path, pool: RankPool) -> None:
    """At any create, write, fsync or rename: both end with code 6 and the cause, or the run is as one without."""
    campaign, whole, out = Campaign("disk of one of two ranks", 1), tmp_path / "whole", tmp_path / "run"
    assert [one.code for one in pool.run(2, ["-m", "adaptive", "run", *SMALL, "--out", str(whole)])] == [0, 0]
    for _, rng in campaign.tries():
        stage = ("creating", "filling", "syncing", "renaming")[int(rng.integers(4))]
        rank, at, number = int(rng.integers(2)), int(rng.integers(1, 16)), (errno.EIO, errno.ENOSPC)[rng.integers(2)]
        trouble = [str(ROOT / "tests/support/rank_trouble.py"), str(rank), stage, str(at), f"errno-{number}"]
        outcomes = pool.run(2, [*trouble, "run", *SMALL, "--out", str(out)])
        codes = [one.code for one in outcomes]
        campaign.came(f"exit {codes[0]}")
        assert codes in ([0, 0], [6, 6]), (trouble, outcomes)
        if codes[0]:
            assert all(f"[Errno {number}]" in one.err for one in outcomes), (trouble, outcomes)
            saved = list(out.glob("checkpoint-[0-9]"))
            again = ["--resume", str(out)] if saved else [*SMALL, "--out", str(out), "--overwrite"]
            resumed = pool.run(2, ["-m", "adaptive", "run", *again])
            assert [one.code for one in resumed] == [0, 0], (trouble, resumed)
        assert_equal(numbers(out), numbers(whole))
        assert not [path for path in out.rglob("*") if ".tmp-" in path.name], trouble
        shutil.rmtree(out)


def test_kills_of_a_random_rank_end_as_none(tmp_path: Path, pool: RankPool) -> None:
    """20 kills, each of a random rank at a random call of a random stage; the same command resumes every time."""
    campaign, whole, out = Campaign("kills of a random rank", 20), tmp_path / "whole", tmp_path / "run"
    command = ["run", *SMALL, "--steps", "24", "--auto-resume", "--out"]
    assert [one.code for one in pool.run(2, ["-m", "adaptive", *command, str(whole)])] == [0, 0]

    def resume(rank: int, stage: str, at: int) -> bool:
        """Return True if the run ends before the rank is killed."""
        trouble = [str(ROOT / "tests/support/rank_trouble.py"), str(rank), stage, str(at), "kill"]
        outcomes = pool.run(2, [*trouble, *command, str(out)])
        codes = [one.code for one in outcomes]
        if codes == [0, 0]:
            assert_equal(numbers(out), numbers(whole))
            assert not [path for path in out.rglob("*") if ".tmp-" in path.name], trouble
            shutil.rmtree(out)
            return True
        assert codes == ([-9, 10] if rank == 0 else [10, -9]), (trouble, outcomes)
        assert f"No response from rank {rank} of 2" in outcomes[1 - rank].err, (trouble, outcomes)
        return False

    for _, rng in campaign.tries():
        stage = ("reading", "requesting", "forward", "backward", "update", "saving", "creating", "renaming")
        while resume(int(rng.integers(2)), stage[int(rng.integers(len(stage)))], int(rng.integers(1, 13))):
            campaign.came("ended before")  # ... and is compared
        campaign.came("killed")
    assert resume(0, "reading", 1000)
