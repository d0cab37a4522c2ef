"""`adaptive-train run` with live ids and an input rule on several processes."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.rank_pool import SMALL_RUN, RankPool

from adaptive.training.runs.loading import load_run

KEYS = [
    "--set", "data.keys.capacity=100", "--set", "data.keys.admit=2", "--set", "data.keys.expire=6",
    "--set", "data.synthetic.new_ids=0.3", "--set", "data.synthetic.days=3", "--set", "log_every=5",
]  # fmt: skip


def trained(pool: RankPool, size: int, out: Path, *words: str) -> dict[str, Any]:
    """The summary of a run on so many ranks."""
    first, *others = pool.run(size, ["-m", "adaptive", "run", *SMALL_RUN, *KEYS, *words, "--out", str(out), "--json"])
    assert first.code == 0 and all(one.code == 0 for one in others), first.err
    summary: dict[str, Any] = json.loads(first.out)
    return summary


@pytest.mark.nightly
def test_two_processes_train_with_keys_and_a_rule_for_inputs(pool: RankPool, tmp_path: Path) -> None:
    """On day 0, then from there on day 1; one process loads the keys of both."""
    first, second = tmp_path / "0", tmp_path / "1"
    start = ["--init-from", str(first), "--set", "data.synthetic.day=1", "--policy", "random_drop"]
    summaries = trained(pool, 2, first, "--steps", "12"), trained(pool, 2, second, "--steps", "8", *start)
    for name in ("live_keys", "admitted_keys", "expired_keys", "unadmitted_lookup_share"):
        assert all(summary[name] > 0 for summary in summaries), name
    assert summaries[1]["samples_read"] > summaries[1]["samples"]
    with load_run(first) as run:
        live = sum(tiered.live_keys().sum() for tiered in run.embeddings.runtime.pipeline.tiered_groups)
    assert live == summaries[0]["live_keys"]
    larger = [*SMALL_RUN, *KEYS, *start, "--set", "data.keys.capacity=200", "--out", str(tmp_path / "3")]
    for refused in pool.run(2, ["-m", "adaptive", "run", *larger]):
        assert refused.code == 2 and "several ranks do not load rows into larger tables" in refused.err, refused
    assert trained(pool, 1, tmp_path / "2", "--steps", "2", *start)["live_keys"] > 0  # another number of ranks
