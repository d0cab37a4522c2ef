"""A machine that gives out: no memory, no threads, small disks. The run ends with its exit code or continues; resumed,
it comes to the same numbers."""

import _thread
import ctypes
import os
import resource
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from support.attacks import Campaign, attack
from support.forked import Nursery, train, trained
from support.interrupted import POLICIES, assert_equal, config_of, numbers

from adaptive import system
from adaptive.storage.checkpoint import Checkpoints

pytestmark = attack

is_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount a small disk")

SETTINGS: Final = config_of("lru", depth=2, save_every=4, tensorboard=True).model_dump(mode="json")


def after_a_checkpoint(action: Callable[[], None], number: int) -> None:
    """Call this after the checkpoint of this number, from 1, has been added; 0: at once."""
    add, added = Checkpoints.add, [0]

    def and_act(self: Checkpoints, *arguments: Any) -> Any:
        result = add(self, *arguments)
        added[0] += 1
        if added[0] == number:
            action()
        return result

    Checkpoints.add = and_act  # type: ignore[method-assign]
    if number == 0:
        action()


def warm(nursery: Nursery, folder: Path, settings: dict[str, Any] = SETTINGS) -> None:
    """Kernels are loaded, where memory is not limited."""
    nursery.here(train, str(folder / "warm"), settings, False, str(folder / "warm.log"))


def goes_on(nursery: Nursery, out: Path, *, is_whole: bool, settings: dict[str, Any] = SETTINGS) -> None:
    """Resume a run to its end, or, if it has saved nothing, run it from scratch."""
    log, expected = out.with_suffix(".again"), numbers(out.parent / "warm")
    if not is_whole:
        saved = list(out.glob("checkpoint-*")) or (out / "weights").exists()
        if not saved:
            shutil.rmtree(out, ignore_errors=True)
        code = nursery.start(trained, str(out), settings, bool(saved), str(log)).ended()
        assert code == 0 or (code == 2 and "finished run" in log.read_text()), log.read_text()[-2000:]
    assert_equal(numbers(out), expected)
    assert not [path for path in out.rglob("*") if ".tmp-" in path.name]
    assert not (out / "lock").exists()
    shutil.rmtree(out)


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


def test_out_of_threads(tmp_path: Path, nursery: Nursery) -> None:
    campaign = Campaign("out of threads", 1)
    warm(nursery, tmp_path)
    for seed, rng in campaign.tries():
        out, log = tmp_path / f"run{seed}", tmp_path / f"{seed}.log"
        most, behind = int(rng.integers(0, 4)), int(rng.integers(0, 3))
        code = nursery.start(without_threads, most, behind, str(out), str(log)).ended()
        text = log.read_text() if log.exists() else "it did not begin"
        campaign.came(f"exit {code}")
        assert code in (0, 1), (most, behind, text)
        assert code == 0 or "can't start new thread" in text, (most, behind, text)
        assert "Traceback" not in text, (most, behind, text)
        goes_on(nursery, out, is_whole=code == 0)


def without_memory(kib: int, checkpoint: int, out: str, log: str) -> None:
    """In a child: no more than so many KiB of address space are left behind this checkpoint; 0: at once."""

    def limit() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + (kib << 10)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    system.START_SECONDS = 3  # a thread that has no memory to begin is not waited for as long as elsewhere
    after_a_checkpoint(limit, checkpoint)
    trained(out, SETTINGS, False, log)


def test_out_of_memory(tmp_path: Path, nursery: Nursery) -> None:
    """At first nothing is left from the first checkpoint on, where that once hung."""
    campaign = Campaign("out of memory", 2)
    warm(nursery, tmp_path)
    for seed, rng in campaign.tries():
        out, log = tmp_path / f"run{seed}", tmp_path / f"{seed}.log"
        kib, checkpoint = (0, 1) if seed == 0 else (int(2 ** rng.uniform(0, 17)), int(rng.integers(0, 4)))
        code = nursery.start(without_memory, kib, checkpoint, str(out), str(log)).ended()
        campaign.came(f"exit {code}")
        text = log.read_text()
        aborted = code == -6 and "LLVM ERROR" in text  # what it does where a kernel is loaded without memory
        assert code in (0, 1, 5, 6, 143) or aborted, (kib, checkpoint, code, text[-2000:])
        assert "bug" not in text, (kib, checkpoint, text[-2000:])
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
