"""A machine that gives out: no threads, small disks, files of rows that fail. The run ends with its exit code or
continues; resumed, it comes to the same numbers."""

import _thread
import ctypes
import errno
import os
import resource
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from support.attacks import Campaign, attack
from support.failing_calls import CAN_FAIL, READING, WRITING, fail
from support.forked import Nursery, trained
from support.interrupted import POLICIES, config_of, interrupted, resume_run, run, small_world
from test_faults import SETTINGS, after_a_checkpoint, goes_on, warm

from adaptive.embeddings.tiers.host_file import FileHost
from adaptive.storage.checkpoint import load_checkpoint
from adaptive.training.components import first_batches
from adaptive.training.runs import resuming

pytestmark = attack

NOBODY: Final = 65534
is_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be somebody else or to mount a small disk")


def others_may_enter(*folders: str) -> bool:
    """Return True if another user can read the code in these folders."""
    paths = [path for folder in folders for path in (Path(folder).resolve(), *Path(folder).resolve().parents)]
    return all(path.stat().st_mode & 0o001 for path in paths)


can_be_nobody = pytest.mark.skipif(
    os.getuid() != 0 or not others_may_enter(sys.prefix, str(Path(__file__).parent)),
    reason="needs root, to be somebody else, and an environment that somebody else may enter",
)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that others may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        yield Path(made)


def without_threads(most: int, behind: int, out: str, log: str) -> None:
    """In a child: no more than so many threads can be started, at once or behind the first checkpoint."""
    start, started, begins = _thread.start_new_thread, [0], [False]

    def limited(*arguments: Any, **options: Any) -> Any:
        started[0] += begins[0]
        if started[0] > most:
            raise RuntimeError("can't start new thread")
        return start(*arguments, **options)

    threading._start_new_thread = limited  # type: ignore[attr-defined]
    after_a_checkpoint(lambda: begins.__setitem__(0, True), behind)
    trained(out, SETTINGS, False, log)


def become_nobody(folder: Path) -> None:
    """From here on this process is somebody else, whom limits and permissions bind, and who owns this folder."""
    os.chown(folder, NOBODY, NOBODY)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def as_nobody(most: int, behind: int, out: str, log: str) -> None:
    """The same by the kernel's limit, which does not bind root."""
    become_nobody(Path(out).parent)
    count = 1 + most  # this process, and nobody else's

    after_a_checkpoint(lambda: resource.setrlimit(resource.RLIMIT_NPROC, (count, count)), behind)
    trained(out, SETTINGS, False, log)


@pytest.mark.parametrize("how", [without_threads, pytest.param(as_nobody, marks=can_be_nobody)])
def test_out_of_threads(open_folder: Path, nursery: Nursery, how: Callable[..., None]) -> None:
    campaign = Campaign(f"out of threads, {how.__name__}", 1)
    warm(nursery, open_folder)
    for seed, rng in campaign.tries():
        out, log = open_folder / f"run{seed}", open_folder / f"{seed}.log"
        most, behind = int(rng.integers(0, 4)), int(rng.integers(0, 3))
        code = nursery.start(how, most, behind, str(out), str(log)).ended()
        text = log.read_text() if log.exists() else "it did not begin"
        campaign.came(f"exit {code}")
        assert code in (0, 1), (most, behind, text)
        assert code == 0 or "can't start new thread" in text, (most, behind, text)
        assert "Traceback" not in text, (most, behind, text)
        goes_on(nursery, out, is_whole=code == 0)


def on_a_small_disk(kib: int, settings: dict[str, Any], out: str, log: str, rows: bool = False) -> None:
    """In a child: the run's directory lies on a disk of this size; what it left is then copied to `out`. `rows`: its
    files of rows lie there instead."""
    libc = ctypes.CDLL(None, use_errno=True)
    disk = Path(out).parent / "disk"
    disk.mkdir(exist_ok=True)
    private, new_namespace = 1 << 14 | 1 << 18, 1 << 17  # MS_REC | MS_PRIVATE, CLONE_NEWNS
    if libc.unshare(new_namespace) or libc.mount(b"none", b"/", None, private, None):
        os._exit(77)
    if libc.mount(b"none", str(disk).encode(), b"tmpfs", 0, f"size={kib}k".encode()):
        os._exit(77)
    pid = os.fork()
    if pid == 0:
        trained(out if rows else str(disk / "run"), settings, False, log)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if (disk / "run").exists():
        shutil.copytree(disk / "run", out)
    os._exit(code)


@is_root
def test_a_disk_of_64_kib_to_enough(tmp_path: Path, nursery: Nursery) -> None:
    campaign = Campaign("small disks", 2)
    warm(nursery, tmp_path)
    for seed, rng in campaign.tries():
        kib = int((64, 300, 450)[seed % 3] if seed < 3 else 64 * 2 ** rng.uniform(0, 4))
        out, log = tmp_path / f"run{seed}", tmp_path / f"{seed}.log"
        code = nursery.start(on_a_small_disk, kib, SETTINGS, str(out), str(log)).ended()
        if code == 77:
            pytest.skip("no disk can be mounted here")
        campaign.came(f"exit {code}")
        assert code in (0, 6), (kib, log.read_text())
        assert code == 0 or str(tmp_path / "disk/run") in log.read_text()
        assert "bug" not in log.read_text()
        goes_on(nursery, out, is_whole=code == 0)


@is_root
@pytest.mark.parametrize("policy", ["hybrid", "lru"])
def test_rows_in_files_on_a_disk_of_64_kib_to_enough(tmp_path: Path, nursery: Nursery, policy: str) -> None:
    """Only rows that were trained take room there: a run may end well on a disk that could not hold all of them. One
    that does not ends with an error, not by a signal, also where rows are used through a map."""
    campaign = Campaign(f"small disks for rows, {policy}", 1)
    settings = rows_in_files(policy, tmp_path / "disk")
    warm(nursery, tmp_path, settings)
    for seed, rng in campaign.tries():
        first = (64, 300, 450) if policy == "hybrid" else (300, 64, 450)
        kib = first[seed] if seed < 3 else int(8 * 2 ** rng.uniform(0, 6))
        out, log = tmp_path / "run", tmp_path / f"{seed}.log"
        code = nursery.start(on_a_small_disk, kib, settings, str(out), str(log), True).ended()
        if code == 77:
            pytest.skip("no disk can be mounted here")
        campaign.came(f"exit {code}")
        assert code in (0, 5), (kib, code, log.read_text())
        assert code == 0 or f"rows in {tmp_path / 'disk'}: [Errno 28]" in log.read_text(), log.read_text()
        assert code == 0 or kib < 300
        goes_on(nursery, out, is_whole=code == 0, settings=settings)


def rows_in_files(policy: str, folder: Path) -> dict[str, Any]:
    """Settings of a run whose rows are in files of this folder; all rows take 180 KB there."""
    name, options = POLICIES[policy]
    tier = {"device_rows": "auto" if policy == "hybrid" else "40%", "host": f"mmap:{folder}"}
    model = {"embedding_dim": 64, "bottom_mlp": (8, 64), "top_mlp": (8, 1)}
    return {**SETTINGS, "policy": name, "policy_options": options, "tier": tier, "model_options": model}


def rows_fail(calls: Sequence[str], behind: int, settings: dict[str, Any], out: str, log: str) -> None:
    """In a child: these calls fail from now on, or once rows have been read, or written, so often."""
    name, done = "_read_runs" if calls == READING else "_write_runs", [0]
    move = getattr(FileHost, name)

    def and_fail(self: FileHost) -> Any:
        if done[0] == behind and not fail(calls, errno.EIO):
            os._exit(77)
        done[0] += 1
        return move(self)

    setattr(FileHost, name, and_fail)
    trained(out, settings, False, log)


@pytest.mark.skipif(not CAN_FAIL, reason="needs numbers of system calls")
@pytest.mark.parametrize("policy", ["lru", "hybrid"])
@pytest.mark.parametrize("calls", [READING, WRITING], ids=["pread64", "pwrite64"])
def test_files_of_rows_that_fail_from_some_call_on(
    tmp_path: Path, nursery: Nursery, calls: Sequence[str], policy: str
) -> None:
    campaign = Campaign(f"files of rows, {calls[0]}, {policy}", 1)
    settings = rows_in_files(policy, tmp_path / "rows")
    warm(nursery, tmp_path, settings)
    for seed, rng in campaign.tries():
        out, log = tmp_path / "run", tmp_path / f"{seed}.log"
        first = (0, 12) if policy == "lru" else (12, 0)
        behind = first[seed] if seed < 2 else int(rng.integers(0, 60))
        code = nursery.start(rows_fail, calls, behind, settings, str(out), str(log)).ended()
        if code == 77:
            pytest.skip("the system lets no calls be filtered")
        campaign.came(f"exit {code}")
        assert code in (0, 5), (behind, log.read_text())
        assert code == 5 or behind, "nothing was moved"
        assert code == 0 or f"rows in {tmp_path / 'rows'}: [Errno 5]" in log.read_text(), log.read_text()
        goes_on(nursery, out, is_whole=code == 0, settings=settings)


def test_a_resumed_run_keeps_its_number_of_device_rows(tmp_path: Path) -> None:
    config = config_of("lru", save_every=4, tier={"device_rows": "auto"})
    with small_world(num_train=256) as patch:
        with interrupted(patch, "kill", 6):
            run(tmp_path / "run", config)
        before = load_checkpoint(tmp_path / "run/checkpoint-4").meta["progress"]["device_rows"]
        patch.setattr(
            resuming, "first_batches", lambda config, dataset: _few(config, dataset)
        )  # of which less is needed
        resume_run(tmp_path / "run")
        after = load_checkpoint(tmp_path / "run/weights").meta["progress"]["device_rows"]
    assert before and after == before


def _few(config: Any, dataset: Any) -> list[Any]:
    return [batch.take(np.arange(2)) for batch in first_batches(config, dataset)[:1]]
