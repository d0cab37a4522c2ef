"""Processes that are ranks, for all tests of this folder."""

from collections.abc import Iterator

import pytest
from rank_pool import RankPool


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    """Started once."""
    found = RankPool(tmp_path_factory.mktemp("ranks"))
    yield found
    found.close()
