"""What the attacks on running processes share."""

from collections.abc import Iterator

import pytest
from forked import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """What makes processes in which libraries and most kernels are loaded."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="session")
def cold_nursery() -> Iterator[Nursery]:
    """What makes processes that load kernels anew."""
    made = Nursery()
    yield made
    made.close()
