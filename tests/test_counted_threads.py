"""Cores: threads that OpenMP counts, how long they spin, and what other processes take of them."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from adaptive import TableConfig, TierConfig, TieredEmbeddingBag, one_hot_batch, system
from adaptive.embeddings.engine import lookahead

TEAMS = """
import os, threading
import torch
from adaptive import system

system.usable_cores = lambda: {cores}
torch.set_num_threads(2)
torch.zeros(1 << 20).add_(1)  # the main thread's own team
tasks = lambda: len(os.listdir("/proc/self/task"))
before, inside = tasks(), []


def work():
    system.count_as_thread()
    inside.append(tasks())


thread = threading.Thread(target=work)
thread.start()
thread.join()
print(inside[0] - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize(("cores", "threads"), [(2, 2), (4, 2), (5, 1)])
def test_a_counted_thread_has_a_team_if_cores_are_few(cores: int, threads: int) -> None:
    """The thread itself and, where cores are few, one that shares its loops: OpenMP counts teams."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_"))}
    found = subprocess.run(
        [sys.executable, "-c", TEAMS.format(cores=cores)], env=plain, capture_output=True, text=True, check=True
    )
    assert int(found.stdout) == threads


@pytest.mark.parametrize(("depth", "many", "times"), [(0, 3, 0), (1, 3, 1), (1, 4, 0)])
def test_the_look_ahead_thread_is_counted_once_for_large_batches(
    depth: int, many: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a look-ahead the training thread plans, and is counted as it is."""
    monkeypatch.setattr(lookahead, "MANY_LOOKUPS", many)
    counted: list[str] = []
    monkeypatch.setattr(lookahead, "count_as_thread", lambda: counted.append(threading.current_thread().name))
    bag = TieredEmbeddingBag([TableConfig(name="a", num_embeddings=9, embedding_dim=4)], TierConfig(), policy="lru")
    batch = one_hot_batch(np.zeros((3, 0), np.float32), np.array([[1], [2], [1]]), np.zeros(3, np.float32))
    for planned in bag.look_ahead([batch, batch], depth=depth):
        bag.stack(planned).sum().backward()
        bag.step()
    bag.close()
    assert counted == ["adaptive-look-ahead"] * times


@pytest.mark.parametrize(("waits", "times"), [(0.6, 0), (0.4, 1)])
def test_a_busy_look_ahead_thread_is_counted_once(waits: float, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches take a second each, of which it waits for a share; the first of them, which compile, do not count."""
    worker = lookahead._Worker.__new__(lookahead._Worker)
    worker._handed_over, worker._since, worker._waited = 0, 0.0, 0.0
    worker._pipeline = SimpleNamespace(is_busy=False)  # type: ignore[assignment]
    now = 100.0
    monkeypatch.setattr(lookahead.time, "perf_counter", lambda: now)
    answers = []
    for _ in range(2 * lookahead.BUSY_BATCHES):
        now += 1
        worker._waited += waits
        worker._measure_load()
        answers.append(worker._pipeline.is_busy)
    assert answers == [False] * (2 * lookahead.BUSY_BATCHES - 1) + [times == 1]


def test_one_thread_shares_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(system, "usable_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(torch, "zeros", lambda *_: pytest.fail("a loop was shared out"))
    system.count_as_thread()


def test_the_share_of_the_cores_that_other_processes_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three cores are ours to use; in a second of each they were busy for 1.2 seconds, 0.3 stolen by the host
    and 0.5 our own: others took 0.7 of 2 seconds."""
    idle = "0 0 0 0 0 0 0 0 0 0"
    texts = iter(
        [
            f"cpu 9\ncpu0 {idle}\ncpu1 {idle}\ncpu2 {idle}\nintr 7",
            "cpu 9\ncpu0 90 0 0 0 10 0 0 0 0 0\ncpu1 0 0 0 70 0 0 0 30 0 0\ncpu2 100 0 0 0 0 0 0 0 0 0\nintr 7",
        ]
    )
    own = iter([(1.0, 1.0, 0.0, 0.0, 9.0), (1.25, 1.0, 0.0, 0.25, 9.0)])
    monkeypatch.setattr(system.Path, "read_text", lambda path: next(texts))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    monkeypatch.setattr(os, "times", lambda: next(own))
    assert system.OtherWork().share() == pytest.approx(0.35)


def test_where_the_system_does_not_say_the_share_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(system.Path, "read_text", missing)
    assert system.OtherWork().share() is None


SPINS = """
import os, sys, types

before = "torch" in sys.modules
sys.modules["adaptive.cli.app"] = types.SimpleNamespace(main=lambda: print(os.environ.get("GOMP_SPINCOUNT"), before))
from adaptive.__main__ import main

main()
"""


@pytest.mark.parametrize(
    ("chosen", "spins"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")]
)
def test_waiting_threads_sleep_soon_unless_the_environment_decides(chosen: dict[str, str], spins: str) -> None:
    """The command line decides before torch loads OpenMP, which reads the variable then."""
    plain = {name: value for name, value in os.environ.items() if name not in system.SPINNING}
    words = [sys.executable, "-c", SPINS]
    printed = subprocess.run(words, env=plain | chosen, capture_output=True, text=True, check=True).stdout
    assert printed.split() == [spins, "False"]
