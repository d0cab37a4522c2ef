"""Shared by attacks: printed seeds, a budget in seconds, copies of run directories, outcomes."""

import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import pytest

from adaptive.errors import AdaptiveError

SEED: Final = int(os.environ.get("ATTACK_SEED", "0"))
SECONDS: Final = float(os.environ.get("ATTACK_SECONDS", "0"))  # of each attack; 0: the sample of the usual suite
RECORD: Final = os.environ.get("ATTACK_RECORD", "")  # a file for `summary`


@dataclass
class Campaign:
    """Tries with seeds from `ATTACK_SEED` on, until the budget is spent; printed, so that one can be made again.

    Attributes:
        least: tries that are made in any case, and all that the usual suite makes.
        outcomes: how often each came.
    """

    name: str
    least: int
    outcomes: dict[str, int] = field(default_factory=dict)

    def tries(self) -> Iterator[tuple[int, np.random.Generator]]:
        """Seed and generator of each try. What fails inside is shown with the seed of its try by pytest."""
        begun, number = time.monotonic(), 0
        self._note("begun")
        while number < self.least or time.monotonic() - begun < SECONDS:
            seed = SEED + number
            print(f"{self.name}: ATTACK_SEED={seed}")
            yield seed, np.random.default_rng([seed, len(self.name)])
            number += 1
            self._note("tried")
        self._note("ended")
        print(f"{self.name}: {number:,} tries in {time.monotonic() - begun:.0f} s: {self.outcomes}")

    def _note(self, what: str) -> None:
        """A line for `summary`, if `scripts/attack` asks for one."""
        if RECORD:
            with open(RECORD, "a", encoding="utf-8") as file:
                file.write(json.dumps([self.name, what, time.monotonic()]) + "\n")

    def came(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


def summary(path: Path) -> str:
    """A table of what campaigns have noted. Those that began and did not end have failed, in their latest try."""
    notes: dict[str, list[tuple[str, float]]] = {}
    for name, what, at in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        notes.setdefault(name, []).append((what, at))
    lines = [f"{'attack':<50} {'tries':>9} {'failures':>9} {'seconds':>8} {'seed':>6}"]
    for name, found in sorted(notes.items()):
        kinds, seconds = [what for what, _ in found], found[-1][1] - found[0][1]
        tries, failures = kinds.count("tried"), kinds.count("begun") - kinds.count("ended")
        lines.append(f"{name:<50} {tries + failures:>9,} {failures:>9} {seconds:>8.0f} {SEED:>6}")
    return "\n".join(lines)


def told(action: Callable[[], Any], *, codes: Sequence[int], names: str = "") -> str | None:
    """None if the action succeeds, or the message of the error that it may end with: one for users, of one of these
    exit codes, that names what is wrong. Any other error is a fault of ours."""
    found: AdaptiveError | None = None
    try:
        action()
    except AdaptiveError as error:
        found = error
    if found is None:
        return None
    assert found.exit_code in codes, f"exit code {found.exit_code} of {found!r}"
    assert names in str(found), f"{names!r} is not named: {found}"
    return str(found)


def copied(folder: Path, to: Path) -> Path:
    """A copy in the place of what is there."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to, symlinks=True)
    return to


def stored_files(folder: Path) -> list[Path]:
    """All regular files below a folder but the lock, by name."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")


SLOWEST, MOST_MEMORY = 600, 500 << 20  # seconds, bytes


class Hangs(BaseException):
    pass


@contextmanager
def at_once() -> Iterator[None]:
    """Check that the body ends and takes little memory. If it does not end, raise `Hangs`: late enough for kernels to
    be compiled in it on a machine that others use."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, ring)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_REAL, SLOWEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024 < MOST_MEMORY


attack = pytest.mark.attack

if __name__ == "__main__":
    print(summary(Path(sys.argv[1])))
