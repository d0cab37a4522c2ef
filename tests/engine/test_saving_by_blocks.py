"""Rows that are saved and loaded by blocks: the arrays of those saved at once, whatever the block, policy and tiers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_saving import OPTIMIZERS, POLICIES, TABLES, assert_same, build, trained

from adaptive.config import TierConfig
from adaptive.embedding import TieredEmbeddingBag
from adaptive.engine import saving
from adaptive.planning.books import RECORD
from adaptive.storage.arrays import Blocks
from adaptive.storage.checkpoint import load_checkpoint, save_checkpoint


def kept(embeddings: TieredEmbeddingBag, folder: Path) -> dict[str, Any]:
    """What a checkpoint gives back, its rows in files."""
    save_checkpoint(folder, rows=embeddings.state_blocks(), dense={}, policy={}, meta={})
    return dict(load_checkpoint(folder, rows_in_files=True).rows)


@pytest.mark.parametrize("block_bytes", [1, 100, 8 << 20])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: type(one).__name__)
def test_blocks_hold_what_the_arrays_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Any, optimizer: Any, block_bytes: int
) -> None:
    monkeypatch.setattr(saving, "BLOCK_BYTES", block_bytes)
    first, _ = trained(12, policy=policy, optimizer=optimizer)
    expected = first.state_arrays()
    assert any(isinstance(value, Blocks) for value in first.state_blocks().values())
    files = kept(first, tmp_path / "saved")
    assert_same({name: file.read() for name, file in files.items()}, expected)
    second = build(policy, optimizer)
    second.load_state_arrays(files)
    assert_same(second.state_arrays(), expected)


def test_a_host_tier_in_files_takes_them(tmp_path: Path) -> None:
    first, _ = trained(12, skip=None)
    files = kept(first, tmp_path / "saved")
    tier = TierConfig(device_rows="85%", host=f"mmap:{tmp_path}")
    with TieredEmbeddingBag(TABLES, tier, optimizer=OPTIMIZERS[1]) as second:
        second.load_state_arrays(files)
        assert_same(second.state_arrays(), {k: v for k, v in first.state_arrays().items() if "watched" not in k})


def test_records_that_are_zero_are_not_written() -> None:
    """A table of 10^9 rows has 16 GB of records, which take memory only where something was written."""
    records = np.zeros((1 << 18) + 3, RECORD)
    records["accesses"][5] = 7
    records.flags.writeable = False
    quiet = np.zeros(3, RECORD)
    quiet.flags.writeable = False
    saving._forget_records(quiet)
    with pytest.raises(ValueError, match="read-only"):
        saving._forget_records(records)
    records = records.copy()
    saving._forget_records(records)
    assert not records["accesses"].any()
