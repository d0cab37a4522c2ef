"""Hits of every policy on one stored trace: as frozen, as a slow twin counts them, and never above Belady's bound.

When a change moves a number on purpose, `ADAPTIVE_UPDATE_GOLDEN=1 pytest tests/golden` rewrites `hits.json`; the
commit says why the number moved.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from cache_twins import NEVER, History, belady_hits, staged_hits
from make_trace import NUM_EMBEDDINGS, TRACE
from numpy.typing import NDArray

from adaptive.batch import Batch, one_hot_batch
from adaptive.config import TableConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embedding import TieredEmbeddingBag
from adaptive.policy import Policy, make_policy
from policies.device import Device
from policies.hotline import Hotline
from policies.hybrid import Hybrid
from policies.lfu import LFU
from policies.lru import LRU
from policies.scratchpipe import ScratchPipe
from policies.sieve import Sieve
from policies.slipstream import Slipstream
from policies.static import Static

HITS = Path(__file__).with_name("hits.json")
SHA256 = "1148105f7c45f591258e7aee6460887cfa5cb045746247e713c4651cc46e0b5e"
CALIBRATION_BATCHES = 16

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
}


@cache
def trace() -> list[list[int]]:
    """Rows of each batch, table by table; rows of the second table follow those of the first."""
    starts = np.array([0, NUM_EMBEDDINGS[0]])
    return [(ids + starts).T.ravel().tolist() for ids in stored()]


def stored() -> NDArray[np.int64]:
    """(batches, samples, tables) ids."""
    ids: NDArray[np.int64] = np.load(TRACE, allow_pickle=False).astype(np.int64)
    return ids


def batches() -> Iterator[Batch]:
    for ids in stored():
        zeros = np.zeros(len(ids), np.float32)
        yield one_hot_batch(zeros[:, None], ids, zeros)


def planned_hits(policy: Policy, device_rows: str, depth: int) -> int:
    """Distinct rows that the planner found on the device, summed over the trace."""
    tables = [
        TableConfig(name=f"t{table}", num_embeddings=rows, embedding_dim=1) for table, rows in enumerate(NUM_EMBEDDINGS)
    ]
    tier = TierConfig(device_rows=device_rows, device="cpu")
    with TieredEmbeddingBag(tables, tier, policy=policy) as embeddings:
        embeddings.calibrate([batch for batch, _ in zip(batches(), range(CALIBRATION_BATCHES), strict=False)])
        for planned in embeddings.look_ahead(batches(), depth=depth):
            embeddings.stack(planned).sum().backward()  # type: ignore[no-untyped-call]
            embeddings.step()
        counts = embeddings.take_statistics().counts
    assert counts[:, Counter.UNIQUE_ROWS].sum() == sum(len(set(batch)) for batch in trace())
    return int(counts[:, Counter.ROW_HITS].sum())


@cache
def sample_counts() -> dict[int, int]:
    lookups = [row for batch in trace()[:CALIBRATION_BATCHES] for row in batch]
    return dict(zip(*(part.tolist() for part in np.unique(lookups, return_counts=True)), strict=True))


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
    assert hashlib.sha256(TRACE.read_bytes()).hexdigest() == SHA256


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


def sieve_hits(num_slots: int, depth: int, release_share: float = 0.02) -> int:
    """Hits of SIEVE: a list, a set of marks and a hand, one row at a time."""
    queue: list[int] = []  # oldest first
    marked: set[int] = set()
    hand = hits = 0
    for number, batch in enumerate(trace()):
        held = set().union(*trace()[max(number - depth, 0) : number + 1])
        coming = sorted(set(batch) - set(queue))
        hits += len(set(batch)) - len(coming)
        marked |= set(batch) - set(coming)
        shortage = len(queue) + len(coming) - num_slots
        leaving = min(max(shortage, int(release_share * num_slots)), len(set(queue) - held)) if shortage > 0 else 0
        while leaving:
            hand = hand if hand < len(queue) else 0
            if queue[hand] in held:
                hand += 1
            elif queue[hand] in marked:
                marked.remove(queue[hand])
                hand += 1
            else:
                del queue[hand]
                leaving -= 1
        queue += coming
    return hits


@pytest.mark.parametrize(("rows", "depth"), [(500, 0), (1000, 2)])
def test_frozen_hits_of_sieve_equal_those_of_its_twin(rows: int, depth: int) -> None:
    assert sieve_hits(rows, depth) == json.loads(HITS.read_text())["sieve"][f"{rows} rows, depth {depth}"]


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


def test_a_long_window_comes_close_to_belady() -> None:
    hits = json.loads(HITS.read_text())["scratchpipe window=64"]
    total = sum(len(set(batch)) for batch in trace())
    for rows in (500, 1000, 2000):
        assert (belady_hits(trace(), rows) - hits[f"{rows} rows, depth 0"]) / total < 0.02


def test_the_baselines_hit_nothing_and_everything() -> None:
    """`hybrid` has nothing on the device; under `device` only the first use of a row is a miss."""
    first_uses = len({row for batch in trace() for row in batch})
    lookups = sum(len(set(batch)) for batch in trace())
    assert planned_hits(Hybrid(), "0", 2) == 0
    assert planned_hits(Device(), "100%", 2) == lookups - first_uses


@pytest.mark.parametrize("policy", [LRU, LFU])
def test_hits_do_not_depend_on_how_the_policy_is_named(policy: type[Policy]) -> None:
    assert planned_hits(make_policy(policy.__name__.lower()), "500", 0) == planned_hits(policy(), "500", 0)


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
