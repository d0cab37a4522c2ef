"""Cores: how long waiting threads spin, and what other processes take of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adaptive import system


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
