"""Rows saved and loaded in blocks equal those saved at once, for any block, policy and tier."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from support.helpers import random_batches, step_all
from test_saving import OPTIMIZERS, POLICIES, TABLES, assert_same, build, trained

from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.engine import row_arrays
from adaptive.embeddings.planning import books
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import SGD
from adaptive.storage.arrays import Blocks, whole
from adaptive.storage.checkpoint import Checkpoint, load_checkpoint, save_checkpoint


def kept(embeddings: TieredEmbeddingBag, folder: Path) -> dict[str, Any]:
    """The rows that a checkpoint loads, in files."""
    save_checkpoint(folder, Checkpoint(embeddings.rows.state_blocks(), {}, {}, {}))
    return dict(load_checkpoint(folder).rows)


@pytest.mark.parametrize(
    ("policy", "optimizer", "block_bytes"), [*zip(POLICIES, OPTIMIZERS, (100, 1, 8 << 20, 100, 1), strict=True)]
)
def test_blocks_hold_what_the_arrays_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Any, optimizer: Any, block_bytes: int
) -> None:
    monkeypatch.setattr(row_arrays, "BLOCK_BYTES", block_bytes)
    first, _ = trained(12, policy=policy, optimizer=optimizer)
    expected = first.rows.state_arrays()
    assert any(isinstance(value, Blocks) for value in first.rows.state_blocks().values())
    files = kept(first, tmp_path / "saved")
    assert_same({name: whole(file) for name, file in files.items()}, expected)
    second = build(policy, optimizer)
    second.rows.load_state_arrays(files)
    assert_same(second.rows.state_arrays(), expected)


def test_a_host_tier_in_files_takes_them(tmp_path: Path) -> None:
    first, _ = trained(12, skip=None)
    files = kept(first, tmp_path / "saved")
    tier = TierConfig(device_rows="85%", host=f"mmap:{tmp_path}")
    with TieredEmbeddingBag(TABLES, tier, optimizer=OPTIMIZERS[1]) as second:
        second.rows.load_state_arrays(files)
        expected = first.rows.state_arrays()  # its policy reads update norms, the default policy reads none
        names = {name for name in expected if ".hot." not in name and not name.endswith("update_norm")}
        assert_same(second.rows.state_arrays(), {name: expected[name] for name in names})


@pytest.mark.nightly
@pytest.mark.parametrize("tells_pages", [False, True])
def test_memory_follows_the_rows_that_were_trained(monkeypatch: pytest.MonkeyPatch, *, tells_pages: bool) -> None:
    """Not the rows of the table: one byte for each would be 16 MiB here."""
    if tells_pages:
        monkeypatch.setattr(books, "MANY_ROWS", 1)
    table = TableConfig(name="t", num_embeddings=1 << 24, embedding_dim=1)
    batches = random_batches([table], 3, samples=50)
    first, second = (TieredEmbeddingBag([table], TierConfig(device_rows="500"), optimizer=SGD()) for _ in range(2))
    step_all(first, batches, depth=1)
    step_all(second, batches[:1], depth=1)
    tracemalloc.start()
    try:
        state = first.state_dict()
        second.load_state_dict(state)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(state["rows0.changed"]) > 100
    assert_same(second.rows.state_arrays(), first.rows.state_arrays())
    assert peak < 15 << 20
