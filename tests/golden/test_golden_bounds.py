"""How far policies stay behind Belady's eviction on the golden traces, and a policy of one's own against LRU.

A *hit rate* is the share of the lookups whose row was on the device, as in the README; where distinct rows are meant
it says so. Sizes are 5 to 31 % of the rows.
"""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from support.golden_runs import Hits, Ids, best, drifting_ids, lookups, planned, still_ids

from adaptive.plugins import load_policy_class
from adaptive.policies.lfu import LFU
from adaptive.policies.lru import LRU
from adaptive.policies.scratchpipe import ScratchPipe
from adaptive.policy import Policy

ROOT = Path(__file__).parents[2]
TRACES = {"drifting": drifting_ids, "still": still_ids}
SIZES = [(300, 0), (500, 0), (1000, 0), (1000, 2), (2000, 0), (2000, 2)]  # device rows, depth


def behind(policy: Policy, ids: Ids, rows: int, depth: int) -> tuple[float, float]:
    """Points of the hit rate that Belady's eviction is ahead: of distinct rows, and of lookups."""
    found, bound = planned(policy, ids, str(rows), depth), best(ids, rows)
    uses = sum(len(set(batch)) for batch in lookups(ids))
    return 100 * (bound.rows - found.rows) / uses, 100 * (bound.lookups - found.lookups) / ids.size


@pytest.mark.nightly
@pytest.mark.parametrize("trace", TRACES)
def test_a_window_of_64_batches_comes_within_2_points_of_belady(trace: str) -> None:
    for rows, depth in SIZES:
        assert max(behind(ScratchPipe(window=64), TRACES[trace](), rows, depth)) < 2, (rows, depth)


def test_lfu_is_within_5_points_of_belady_without_drift() -> None:
    for rows, depth in SIZES:
        _, of_lookups = behind(LFU(), still_ids(), rows, depth)
        assert of_lookups < 5, (rows, depth)


@pytest.mark.nightly
def test_lfu_with_a_half_life_is_as_close_under_drift() -> None:
    """With a twentieth of them it stays 8 points behind; knowing each row's popularity of the moment, 3.4."""
    for rows, depth in SIZES:
        _, fading = behind(LFU(half_life=10), drifting_ids(), rows, depth)
        _, lasting = behind(LFU(), drifting_ids(), rows, depth)
        assert fading < lasting, (rows, depth)
        assert fading < (5 if rows >= 1000 else 8), (rows, depth)


@pytest.mark.nightly
@pytest.mark.parametrize("document", ["README.md", "policies/README.md"])
def test_the_policy_in_the_readme_beats_lru_under_drift(document: str, tmp_path: Path) -> None:
    mine = policy_of(document, tmp_path / "my_policy.py")
    for rows, depth in SIZES:
        found, lru = (planned(policy(), drifting_ids(), str(rows), depth) for policy in (mine, LRU))
        assert found.rows > lru.rows and found.lookups > lru.lookups, (rows, depth)


def policy_of(document: str, path: Path) -> type[Policy]:
    """The policy that a document shows, of at most 10 lines, written to a file as its reader would."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.S)
    (source,) = (block for block in blocks if "(Policy):" in block)
    (node,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    assert node.end_lineno is not None and node.end_lineno - node.lineno < 10
    path.write_text(source)
    return load_policy_class(f"{path}:{node.name}")


def test_beladys_look_ups_by_hand() -> None:
    """One table of 2 rows behind another of 6000: with 3 slots row 7 leaves for row 8, as 5 is looked up again."""
    ids = np.array([[[5, 0], [5, 0]], [[7, 0], [7, 0]], [[8, 0], [8, 0]], [[5, 0], [5, 0]]])
    assert best(ids, 3) == Hits(rows=4, lookups=8)
