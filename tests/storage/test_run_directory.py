"""Run directories: claimed by one process, emptied of a run's own files only, released on every path."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from adaptive.errors import CheckpointError, OutputError
from adaptive.storage.run_directory import LOCK, RunDirectory, read_record

CLAIM = """
import sys
from pathlib import Path
from adaptive.errors import OutputError
from adaptive.storage.run_directory import RunDirectory
print("ready", flush=True)
sys.stdin.readline()
try:
    with RunDirectory(Path(sys.argv[1])):
        print("runs", flush=True)
        sys.stdin.readline()
except OutputError as error:
    print(f"exit {error.exit_code}: {error}", flush=True)
"""


def start(path: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


def say_go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def answer(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


def end(child: subprocess.Popen[str]) -> None:
    child.communicate(timeout=600)


def test_record_of_a_finished_run(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as run:
        run.begin(config={"policy": "lru"}, data={"name": "synthetic"}, device="cpu")
        assert read_record(run.path)["status"] == "running"
        run.finish({"auc": 0.7})
    record = read_record(tmp_path / "run")
    assert record["schema"] == 2 and record["status"] == "finished"
    assert record["config"] == {"policy": "lru"} and record["data"] == {"name": "synthetic"}
    assert record["device"] == "cpu" and record["summary"] == {"auc": 0.7}
    assert set(record["versions"]) == {"python", "adaptive-train", "torch", "numpy", "numba", "threads"}
    assert record["start"] <= record["end"]
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["run.json"]


@pytest.mark.parametrize("error", [ValueError("bad line"), KeyboardInterrupt()])
def test_a_run_that_raises_is_recorded_and_released(tmp_path: Path, error: BaseException) -> None:
    def fail() -> None:
        with RunDirectory(tmp_path) as run:
            run.begin()
            raise error

    with pytest.raises(type(error)):
        fail()
    record = read_record(tmp_path)
    assert record["status"] == "stopped" and record["error"].startswith(type(error).__name__)
    assert not (tmp_path / LOCK).exists()


def test_a_run_that_never_began_leaves_no_folder(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        with RunDirectory(path):
            raise ValueError("bad line")

    for path in (tmp_path / "new", tmp_path / "there"):
        (tmp_path / "there").mkdir(exist_ok=True)
        with pytest.raises(ValueError, match="bad line"):
            fail(path)
    assert [p.name for p in tmp_path.iterdir()] == ["there"]


def test_a_directory_with_files_is_refused_unless_overwrite(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.begin(device="old")
        run.metrics.write_text("{}\n")
        run.tensorboard.mkdir()
        (run.tensorboard / "events.out.tfevents.1.host.1.0").write_text("")
        (run.path / "weights").mkdir()
        ((run.path / "weights") / "manifest.json").write_text("{}")
        (run.path / "weights.tmp-99").mkdir()
        (run.path / "run.json.tmp-99").write_text("{")
    with pytest.raises(OutputError, match=r"expected an empty directory, got files in it\. Choose another") as caught:
        RunDirectory(tmp_path)
    assert caught.value.exit_code == 6
    assert run.metrics.exists() and not (tmp_path / LOCK).exists()
    with RunDirectory(tmp_path, overwrite=True):
        assert [p.name for p in tmp_path.iterdir()] == [LOCK]


@pytest.mark.parametrize("name", ["thesis.txt", "weights/notes.md", "tensorboard/photo.jpg", "metrics.jsonl.bak"])
def test_overwrite_removes_nothing_that_is_not_a_runs(tmp_path: Path, name: str) -> None:
    with RunDirectory(tmp_path) as run:
        run.begin()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(OutputError, match=f"expected only files of a run, got {name}"):
        RunDirectory(tmp_path, overwrite=True)
    assert (tmp_path / name).read_text() == "mine"
    assert (tmp_path / "run.json").exists()


def test_overwrite_does_not_follow_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "manifest.json").write_text("{}")
    run = tmp_path / "run"
    run.mkdir()
    (run / "weights").symlink_to(outside)
    with pytest.raises(OutputError, match="expected only files of a run, got weights"):
        RunDirectory(run, overwrite=True)
    assert (outside / "manifest.json").exists()


def test_a_busy_directory_names_its_holder(tmp_path: Path) -> None:
    with RunDirectory(tmp_path), pytest.raises(OutputError) as caught:
        RunDirectory(tmp_path, overwrite=True)
    message = f"got one in use by process {os.getpid()} on {socket.gethostname()}, since 20"
    assert message in str(caught.value) and caught.value.exit_code == 6


def test_the_lock_of_a_killed_run_is_taken_over(tmp_path: Path) -> None:
    child = start(tmp_path / "run")
    say_go(child)
    assert answer(child) == "runs\n"
    child.send_signal(signal.SIGKILL)
    end(child)
    assert (tmp_path / "run" / LOCK).read_text().startswith(f"process {child.pid} on ")
    with RunDirectory(tmp_path / "run"):
        assert (tmp_path / "run" / LOCK).read_text().startswith(f"process {os.getpid()} on ")


def test_default_names_are_new(tmp_path: Path) -> None:
    runs = [RunDirectory.named_after(policy, root=tmp_path) for policy in ("lru", "lru", "my/file.py:My Policy")]
    names = [run.path.name for run in runs]
    assert len(set(names)) == 3
    assert names[0].endswith("-lru") and names[2].endswith("-My-Policy")
    for run in runs:
        with run:
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "got no such file"),
        (b"{", "expected JSON"),
        (b'{"schema": 1}', "expected {'schema': 2}, got {'schema': 1}. Read it with the version"),
        (b"[]", "expected {'schema': 2}, got list"),
    ],
)
def test_wrong_records_are_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_record(tmp_path)
    assert caught.value.exit_code == 4
