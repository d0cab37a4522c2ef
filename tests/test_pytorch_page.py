"""docs/how-to/pytorch.md: its blocks run one after the other; those of a library that is not installed are left out."""

import re
from importlib.util import find_spec
from typing import Any

import pytest
from support.pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/pytorch.md"


@pytest.mark.nightly
def test_the_blocks_run_where_their_library_is_installed() -> None:
    names: dict[str, Any] = {"__name__": "page"}
    ran = 0
    for kind, code in blocks(PAGE):
        assert kind == "python"
        if all(find_spec(library) for library in re.findall(r"^import (\w+)", code, re.M)):
            exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102 (our own page)
            ran += 1
    assert ran >= 9
