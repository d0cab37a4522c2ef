"""Fixtures of the tests of kernels for rows."""

from collections.abc import Iterator

import numba
import pytest


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Two numba threads, if the machine has them."""
    count = numba.get_num_threads()
    numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))
    yield
    numba.set_num_threads(count)
