"""docs/how-to/data.md is true: its code runs, its hash is the readers', it has every key of a schema."""

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pages import ROOT, blocks, run

from adaptive.data.rows.batcher import Hashed
from adaptive.data.rows.row_source import key_of
from adaptive.data.text.schema import Categorical, Dense, Label, Time

PATH = ROOT / "docs/how-to/data.md"
PAGE = PATH.read_text(encoding="utf-8")
CODE = [text for language, text in blocks(PATH) if language == "python"]


@pytest.mark.nightly
@pytest.mark.parametrize("code", CODE, ids=["frames", "hash"])
def test_code_runs(code: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'adaptive-train[parquet]'")
    assert run([sys.executable, "-c", code], tmp_path)


@pytest.fixture(name="hashed_row", scope="module")
def hashed_row_fixture(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], int]:
    path = tmp_path_factory.mktemp("page") / "hash.py"
    path.write_text(CODE[1], encoding="utf-8")
    actual: Callable[[str, int], int] = runpy.run_path(str(path))["hashed_row"]
    return actual


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), min_size=1), st.integers(1, 2**32 - 1))
def test_the_hash_is_that_of_the_readers(hashed_row: Callable[[str, int], int], id_: str, rows: int) -> None:
    out = np.empty(1, np.int64)
    Hashed(rows).fill(np.array([key_of(id_)]), np.ones(1, np.bool_), out)
    assert hashed_row(id_, rows) == out[0]


def test_every_key_of_a_schema_is_on_the_page() -> None:
    part = PAGE[PAGE.index("### All keys") : PAGE.index("## Parquet")]
    for section in (Label, Dense, Categorical, Time):
        for key in section.model_fields:
            assert re.search(rf"`(\w+\.)?{key}`", part), f"{section.__name__}.{key}"
