"""`adaptive-train run` with live ids on several processes: the keys, rows, quality and reports of one process."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from support.rank_pool import SMALL_RUN, RankPool, quality

from adaptive.training.runs.loading import load_run

KEYS = [
    "--set", "data.keys.capacity=100", "--set", "data.keys.admit=2", "--set", "data.keys.expire=6",
    "--set", "data.synthetic.new_ids=0.3", "--set", "data.synthetic.days=3", "--set", "log_every=5",
]  # fmt: skip
COUNTS = ("samples", "live_keys", "admitted_keys", "expired_keys", "evicted_keys", "unadmitted_lookup_share")


def trained(pool: RankPool, size: int, out: Path, *words: str) -> dict[str, Any]:
    """The summary of a run on so many ranks, with two blocks."""
    first, *others = pool.run(size, ["-m", "adaptive", "run", *SMALL_RUN, *KEYS, *words, "--out", str(out), "--json"])
    assert first.code == 0 and all(one.code == 0 for one in others), first.err
    summary: dict[str, Any] = json.loads(first.out)
    return summary


def digest(out: Path) -> str:
    """Of keys, weights and state, sorted by key."""
    total, lanes = hashlib.sha256(), 0
    with load_run(out) as run:
        for lane in run.embeddings.runtime.pipeline.lanes:
            if lane.keys is not None:
                rows, lanes = lane.keys.live_rows(), lanes + 1
                rows = rows[np.lexsort((lane.keys.row_keys[rows], lane.group.tables_of(rows)))]
                columns = lane.keys.row_keys[rows], lane.last_access(rows), lane.planner.tracker.accesses[rows]
                for array in (*lane.values(rows), *columns):
                    total.update(np.ascontiguousarray(array).tobytes())
    assert lanes
    return total.hexdigest()


def test_two_processes_give_the_keys_of_one(pool: RankPool, tmp_path: Path) -> None:
    """Trained on day 0, then from there on day 1, with a rule that drops inputs; reports count each key once."""
    days = []
    for size in (1, 2):
        first, second = tmp_path / f"{size}-0", tmp_path / f"{size}-1"
        start = ["--init-from", str(first), "--set", "data.synthetic.day=1", "--policy", "random_drop"]
        summaries = trained(pool, size, first, "--steps", "12"), trained(pool, size, second, "--steps", "8", *start)
        facts = [[quality(summary), {name: summary[name] for name in COUNTS}] for summary in summaries]
        days.append([*facts, digest(first), digest(second)])
        assert summaries[1]["samples_read"] > summaries[1]["samples"]
        assert all(sum(summary[name] for summary in summaries) > 0 for name in COUNTS), facts
    assert days[0] == days[1]
