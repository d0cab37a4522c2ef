"""Processes that are ranks, for all tests of this folder."""

import pytest
from support.rank_pool import rank_pool

pool = pytest.fixture(scope="session")(rank_pool)
