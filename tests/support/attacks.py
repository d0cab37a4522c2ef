"""Shared by attacks: printed seeds, a budget in seconds, copies of run directories, outcomes."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from adaptive.errors import AdaptiveError

SEED: Final = int(os.environ.get("ATTACK_SEED", "0"))
SECONDS: Final = float(os.environ.get("ATTACK_SECONDS", "0"))  # of each attack; 0: the sample of the usual suite


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
        while number < self.least or time.monotonic() - begun < SECONDS:
            seed = SEED + number
            print(f"{self.name}: ATTACK_SEED={seed}")
            yield seed, np.random.default_rng([seed, len(self.name)])
            number += 1
        print(f"{self.name}: {number:,} tries in {time.monotonic() - begun:.0f} s: {self.outcomes}")

    def came(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


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


attack = pytest.mark.attack
