"""An edited constant reaches kernels that are cached: the cache's key covers every file whose values they hold."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import adaptive
from adaptive.kernels import jit

PACKAGE = Path(adaptive.__file__).parent
NOT_FROZEN = {"errors"}  # imported by kernels, but holds no value that a kernel computes with

COUNTS = """
import numpy as np
from adaptive.kernels.planning import books
tally = np.zeros((1, 20), np.int64)
rows, counts, codes = np.array([0, 1]), np.array([5, 1], np.int32), np.array([1, 0], np.int32)
accesses, last = np.zeros(2, np.uint32), np.zeros(2, np.int32)
slots = np.zeros(1, np.int32), np.zeros(1, np.uint32), np.zeros(1, np.uint8)
places, before = (np.zeros(2, np.int64), np.zeros(2, np.int64)), np.zeros(2, np.int32)
books.enter_batch(
    rows, counts, np.array([2]), 0, codes, accesses, last, *slots, np.uint8(0), True, *places, before, tally
)
print(np.flatnonzero(tally[0]).tolist())
"""
ALIGNS = """
import numpy as np
from adaptive.kernels.vector import row_ops
from adaptive.kernels.jit import kernel
@kernel()
def line():
    return row_ops.LINE
print(line())
"""


def run(folder: Path, code: str) -> str:
    """What a fresh interpreter prints that uses the package in `folder` and its kernel cache."""
    script = folder / "script.py"
    script.write_text(code)
    place = {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, str(script)]
    return subprocess.run(command, env={**os.environ, **place}, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(PACKAGE, tmp_path / "adaptive", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new))


@pytest.mark.nightly
def test_a_new_counter_moves_the_columns_of_cached_kernels(copied: Path) -> None:
    assert run(copied, COUNTS) == "[0, 1, 2, 3]\n"
    assert run(copied, COUNTS) == "[0, 1, 2, 3]\n"  # from the cache
    edit(copied / "adaptive/counters.py", "    LOOKUPS = 0\n", "    LOOKUPS = 15\n")
    assert run(copied, COUNTS) == "[1, 2, 3, 15]\n"


@pytest.mark.nightly
def test_a_constant_of_another_file_reaches_a_cached_kernel(copied: Path) -> None:
    assert run(copied, ALIGNS) == "16\n"
    edit(copied / "adaptive/kernels/scratch.py", "LINE: Final = LINE_BYTES // 4", "LINE: Final = LINE_BYTES // 2")
    assert run(copied, ALIGNS) == "32\n"


@pytest.mark.parametrize("name", ["planning/books.py", "a_room/deep/in.py", "counters.py", "scratch.py"])
def test_the_key_changes_with_every_file(name: str, copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = copied / "adaptive/kernels"
    monkeypatch.setattr(jit, "__file__", str(kernels / "jit.py"))
    before = jit._sources_key()
    assert jit._sources_key() == before
    path = copied / "adaptive" / name if name in jit.CONSTANTS else kernels / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((path.read_text() if path.exists() else "") + "\n# edited")
    assert jit._sources_key() != before


def test_every_outside_file_of_kernels_is_part_of_the_key() -> None:
    """Another module imported by a kernel file has to join `jit.CONSTANTS`, or be known to hold no constant."""
    found = set()
    for path in (PACKAGE / "kernels").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found |= {name for name in names if name.startswith("adaptive.")}
    outside = {name.removeprefix("adaptive.") for name in found if not name.startswith("adaptive.kernels")}
    assert {f"{name.replace('.', '/')}.py" for name in outside - NOT_FROZEN} == set(jit.CONSTANTS)
