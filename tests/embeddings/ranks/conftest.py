"""Processes that are ranks, for all tests of this folder."""

import pytest
from support.rank_pool import rank_pool

from adaptive.embeddings.engine.saving import row_arrays

pool = pytest.fixture(scope="session")(rank_pool)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are saved a few at a time, as those of tables that are larger than the tests' are."""
    monkeypatch.setattr(row_arrays, "BLOCK_BYTES", 256)
