"""Shared by all tests: where optional real data lies."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("ADAPTIVE_DATA", ROOT / "../shared/data")).resolve()


@pytest.fixture
def real_data() -> Path:
    """The folder of real data sets; the test is skipped with a reason where it is absent."""
    if not DATA.is_dir():
        pytest.skip(f"no real data at {DATA}; set ADAPTIVE_DATA to a folder that holds it")
    return DATA
