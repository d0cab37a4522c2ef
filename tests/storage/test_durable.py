"""Durable writes: let every disk operation fail in turn; the old or the new content is there, never a mix."""

import os
import subprocess
from pathlib import Path

import pytest
from support.failing_disk import FailingDisk, fails_at_each

from adaptive.storage.durable import Disk, temporary_name, write_atomic, write_directory, write_new

OLD, NEW = b"old content", b"new and longer content"


def test_write_atomic_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, OLD)
    write_atomic(path, NEW)
    assert path.read_bytes() == NEW
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_file_is_old_or_new_whatever_fails(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a.json"
    seen = set()

    def attempt(disk: FailingDisk) -> None:
        path.write_bytes(OLD)
        try:
            write_atomic(path, NEW, disk=disk)
        except error:
            assert disk.count >= disk.fail_at
        seen.add(path.read_bytes())
        assert [p.name for p in tmp_path.iterdir()] == ["a.json"]

    assert fails_at_each(attempt, error=error) == 6  # remove, create, write, sync, rename, sync directory
    assert seen == {OLD, NEW}


def test_directory_is_whole_or_absent_whatever_fails(tmp_path: Path) -> None:
    path = tmp_path / "weights"

    def attempt(disk: FailingDisk) -> None:
        def fill(folder: Path) -> None:
            for name in ("one", "two"):
                write_new(folder / name, lambda file: disk.write(file, NEW), disk=disk)

        try:
            write_directory(path, fill, disk=disk)
        except OSError:
            assert disk.count >= disk.fail_at
        if path.exists():
            assert {p.name: p.read_bytes() for p in path.iterdir()} == {"one": NEW, "two": NEW}
            Disk().remove(path)
        assert list(tmp_path.iterdir()) == []

    assert fails_at_each(attempt) == 12


def test_what_dead_processes_left_is_removed(tmp_path: Path) -> None:
    """Of the same name, and not what a running process is writing."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead, alive, own = (tmp_path / f"out.tmp-{pid}" for pid in (ended.pid, os.getppid(), os.getpid()))
    others = [tmp_path / f"out2.tmp-{ended.pid}", tmp_path / "out.tmp-x"]
    for folder in (dead, alive, own, *others):
        folder.mkdir()
        (folder / "file").write_bytes(OLD)
    write_directory(tmp_path / "out", lambda folder: None)
    assert {entry.name for entry in tmp_path.iterdir()} == {"out", alive.name, *(other.name for other in others)}
    (tmp_path / f"scores.csv.tmp-{ended.pid}").write_bytes(OLD)
    write_atomic(tmp_path / "scores.csv", NEW)
    assert [entry.name for entry in tmp_path.glob("scores*")] == ["scores.csv"]


def test_existing_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    with pytest.raises(FileExistsError, match="exists already"):
        write_directory(tmp_path / "weights", lambda folder: None)


def test_a_planted_link_is_replaced_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(OLD)
    path = tmp_path / "a.json"
    temporary_name(path).symlink_to(victim)
    write_atomic(path, NEW)
    assert victim.read_bytes() == OLD
    assert path.read_bytes() == NEW and not path.is_symlink()


def test_remove_takes_the_link_not_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(OLD)
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    Disk().remove(tmp_path / "link")
    assert (tmp_path / "folder" / "file").read_bytes() == OLD
    assert not (tmp_path / "link").exists()
