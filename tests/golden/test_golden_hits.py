"""Hits of every policy on the drifting trace: as frozen, as a slow twin counts them, and never above Belady's bound.

When a change moves a number on purpose, `ADAPTIVE_UPDATE_GOLDEN=1 pytest tests/golden` rewrites `hits.json`; the
commit says why the number moved.
"""

import hashlib
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from support.cache_twins import NEVER, History, belady_hits, staged_hits
from support.example_policies import Sieve
from support.golden_runs import CALIBRATION_BATCHES, drifting_ids, planned_hits, trace
from support.make_trace import RANKS

from adaptive.policies.device import Device
from adaptive.policies.hotline import Hotline
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lfu import LFU
from adaptive.policies.lru import LRU
from adaptive.policies.scratchpipe import ScratchPipe
from adaptive.policies.slipstream import Slipstream
from adaptive.policies.static import Static
from adaptive.policies.tables import Tables
from adaptive.policy import Policy

HITS = Path(__file__).with_name("hits.json")
SHA256 = {
    "ranks": "04766ec9dee8a12ed52b2a7afe151411e3a41ecdc8df5397a54d9bc6c4e25e5e",
    "drifting": "5e7670befd5b31a0b4c8a4e91b6b3c28c97643a630480074cd6f438b4354f6ab",
}

SIZES = [(300, 0), (500, 0), (1000, 0), (1000, 2), (2000, 0), (2000, 2), (4000, 2)]  # device rows, depth
FREE: dict[str, Callable[[], Policy]] = {  # policies for any size of device tier
    "static": Static,
    "lru": LRU,
    "lfu": LFU,
    "lfu half_life=17.3": lambda: LFU(half_life=17.3),
    "scratchpipe": ScratchPipe,
    "scratchpipe window=64": lambda: ScratchPipe(window=64),
    "slipstream": Slipstream,
    "hotline learn=20": lambda: Hotline(learn=20),
    "sieve": Sieve,
    "tables": Tables,
}


@cache
def sample_counts() -> dict[int, int]:
    seen = [row for batch in trace()[:CALIBRATION_BATCHES] for row in batch]
    return dict(zip(*(part.tolist() for part in np.unique(seen, return_counts=True)), strict=True))


def soonest(history: History, row: int) -> float:
    following = history.next_access(row)
    return history.last_access[row] - NEVER if following == NEVER else -following


TWINS: dict[str, Callable[[History, int], float]] = {
    "static": lambda history, row: sample_counts().get(row, 0),
    "lru": lambda history, row: history.last_access[row],
    "lfu": lambda history, row: history.accesses[row] + history.last_access[row] / 1e6,
    "lfu half_life=17.3": lambda history, row: float(
        np.log2(history.accesses[row]) - (history.step - history.last_access[row]) / 17.3
    ),
    "scratchpipe": soonest,
    "scratchpipe window=64": soonest,
    "slipstream": lambda history, row: history.accesses[row],
}


def test_the_trace_is_the_stored_one() -> None:
    stored = {"ranks": RANKS.read_bytes(), "drifting": drifting_ids().astype(np.uint16).tobytes()}
    assert {name: hashlib.sha256(part).hexdigest() for name, part in stored.items()} == SHA256


@pytest.mark.parametrize("name", FREE)
def test_hits_are_as_frozen(name: str) -> None:
    found = {f"{rows} rows, depth {depth}": planned_hits(FREE[name](), str(rows), depth) for rows, depth in SIZES}
    if os.environ.get("ADAPTIVE_UPDATE_GOLDEN"):
        frozen = json.loads(HITS.read_text()) if HITS.exists() else {}
        HITS.write_text(json.dumps(frozen | {name: found}, indent=1, sort_keys=True) + "\n")
    assert found == json.loads(HITS.read_text())[name]


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize(("rows", "depth"), [(500, 0), (1000, 2)])
def test_frozen_hits_equal_those_of_the_twin(name: str, rows: int, depth: int) -> None:
    window = FREE[name]().window
    counted = staged_hits(trace(), rows, TWINS[name], depth=depth, window=window)
    assert counted == json.loads(HITS.read_text())[name][f"{rows} rows, depth {depth}"]


def test_no_policy_is_better_than_belady() -> None:
    bounds = {f"{rows} rows, depth {depth}": belady_hits(trace(), rows) for rows, depth in SIZES}
    frozen = json.loads(HITS.read_text())
    assert set(frozen) == set(FREE)
    for name, hits in frozen.items():
        assert set(hits) == set(bounds)
        for case, bound in bounds.items():
            assert hits[case] <= bound, (name, case)


def test_more_room_is_never_worse_for_lru() -> None:
    """LRU is a stack algorithm; the planner keeps that in spite of releasing several rows at once."""
    hits = json.loads(HITS.read_text())["lru"]
    by_size = [hits[f"{rows} rows, depth 0"] for rows, depth in SIZES if depth == 0]
    assert by_size == sorted(by_size)


def test_the_baselines_hit_nothing_and_everything() -> None:
    """`hybrid` has nothing on the device; under `device` only the first use of a row is a miss."""
    first_uses = len({row for batch in trace() for row in batch})
    uses = sum(len(set(batch)) for batch in trace())
    assert planned_hits(Hybrid(), "0", 2) == 0
    assert planned_hits(Device(), "100%", 2) == uses - first_uses


def test_belady_by_hand() -> None:
    """Two slots: 3 comes, 1 is needed before 2, so 2 goes."""
    assert belady_hits([[1], [2], [3], [1], [2]], 2) == 1
    assert belady_hits([[1], [2], [3], [1], [2]], 3) == 2
    assert belady_hits([[1, 2], [3, 4], [1, 2]], 2) == 0


def test_staged_hits_by_hand() -> None:
    """Two slots under LRU: 3 drives out 1, 1 drives out 2, 3 is still there."""
    recent: Callable[[History, int], float] = lambda history, row: history.last_access[row]  # noqa: E731
    assert staged_hits([[1], [2], [3], [1], [3]], 2, recent) == 1
    assert staged_hits([[1], [2], [2], [3], [2]], 2, recent) == 2
