"""Processes that are ranks, for all tests of this folder."""

from collections.abc import Iterator

import pytest
from rank_pool import RankPool

from adaptive.engine import saving


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    """Started once."""
    found = RankPool(tmp_path_factory.mktemp("ranks"))
    yield found
    found.close()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are saved a few at a time, as those of tables that are larger than the tests' are."""
    monkeypatch.setattr(saving, "BLOCK_BYTES", 256)
