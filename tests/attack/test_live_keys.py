"""Runs with keys that are killed in the middle of a sweep, and files of rows whose keys come and go."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.attacks import attack
from support.forked import Nursery
from support.key_runs import STAGES, config, digest, train_and_die, train_or_resume

from adaptive.batch import Batch
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag

pytestmark = attack

KILLED: list[dict[str, Any]] = [
    {"depth": 4},
    {"depth": 4, "policy": "slipstream", "skip": {"interval": 4, "hot_rows": "50%", "feedback_delay": 4}},
    {"depth": 8, "policy": "hotline", "policy_options": {"learn": 20}},
    {"depth": 0, "policy": "lfu", "skip": {"rule": "predicted+warmup=8", "interval": 4}},
]


@pytest.mark.parametrize("changed", KILLED, ids=["lru", "slipstream", "hotline", "predicted"])
def test_a_run_that_is_killed_in_a_sweep_ends_as_one_that_was_not(
    tmp_path: Path, nursery: Nursery, changed: dict[str, Any]
) -> None:
    """In its second sweep, and in the first one of the run that is resumed from the latest checkpoint."""
    settings = config(tmp_path, "whole", save_every=40, **changed).model_dump(mode="json")
    nursery.here(train_or_resume, str(tmp_path / "whole"), settings, False)
    expected = digest(tmp_path / "whole")
    for stage in STAGES if changed is KILLED[0] else STAGES[2:4]:
        out = tmp_path / stage
        for resume in (False, True):
            child = nursery.start(train_and_die, str(out), settings, resume, stage)
            assert child.ended() == -9, (stage, resume)
            assert list(out.glob("checkpoint-*")), (stage, resume)
        assert nursery.start(train_and_die, str(out), settings, True, "").ended() == 0
        assert digest(out) == expected, stage


def test_a_file_of_rows_stays_bounded(tmp_path: Path) -> None:
    """On 20 days, each of which has 200 keys of its own and 100 of the day before, which expire soon after."""
    table = TableConfig(name="item", keys="int64", num_embeddings=100_000, embedding_dim=60, expire=64)
    tier = TierConfig(device="cpu", device_rows="400", host=f"mmap:{tmp_path}")
    embeddings, sizes, used = TieredEmbeddingBag([table], tier), list[int](), list[int]()
    random = np.random.default_rng(0)

    def days(day: int) -> Iterator[Batch]:
        for _ in range(64):
            keys = random.integers(200 * day - 100, 200 * day + 200, 16) * 2**50
            yield Batch.of(item=keys, labels=np.ones(16))

    for day in range(20):
        for planned in embeddings.look_ahead(days(day), depth=4):
            embeddings(planned)["item"].sum().backward()
            embeddings.step()
        embeddings.rows.flush()
        (tiered,) = embeddings.runtime.pipeline.tiered_groups
        sizes.append(tiered.host.disk_bytes)
        assert tiered.keys is not None and 250 < len(embeddings.rows.table_keys("item")) < 600
        used.append(tiered.keys.tables[0].num_used)
    assert max(used) <= 1.1 * used[3] < 700 and 0 < max(sizes) <= 1.1 * sizes[3] < 700 * 4 * 61 * 2
    embeddings.close()
