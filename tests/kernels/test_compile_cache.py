"""An edited constant reaches kernels that are cached: the cache's key covers every file that theirs imports."""

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

COUNTS = """
import numpy as np
from adaptive.kernels.planning import books
tally = np.zeros((1, 20), np.int64)
none, accesses = np.zeros(0, np.int32), np.zeros(2, np.uint32)
distinct = np.array([0, 1]), np.array([5, 1], np.int32), none, np.array([2])
records = np.array([1, 0], np.int32), accesses
used, flags = np.zeros(1, np.int32), np.zeros(1, np.uint8)
slots = np.zeros(1, np.int64), used, np.zeros(1, np.uint32), flags, used
entered = np.zeros(2, np.int64), np.zeros(2, np.int64), used.repeat(2), none, accesses[:0], none
books.enter_batch(0, 1, distinct, 0, records, slots, entered, tally)
print(np.flatnonzero(tally[0]).tolist())
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
def test_another_installation_compiles_nothing(copied: Path) -> None:
    assert run(copied, COUNTS) == "[0, 1, 2, 3]\n"
    compiled = {path: path.stat().st_mtime_ns for path in (copied / "cache").rglob("*.nbc")}
    other = copied / "other"
    shutil.copytree(copied / "adaptive", other / "adaptive", copy_function=shutil.copy)  # with times of its own
    (copied / "cache").rename(other / "cache")
    assert run(other, COUNTS) == "[0, 1, 2, 3]\n"
    moved = {copied / path.relative_to(other): path.stat().st_mtime_ns for path in (other / "cache").rglob("*.nbc")}
    assert moved == compiled


def test_the_key_depends_on_content_not_on_place_or_time(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = jit._sources_key(PACKAGE / "kernels/planning/books.py")
    monkeypatch.setattr(jit, "__file__", str(copied / "adaptive/kernels/jit.py"))
    file = copied / "adaptive/kernels/planning/books.py"
    os.utime(file, (0, 0))
    assert jit._sources_key(file) == here
    file.rename(file.with_name("moved.py"))
    assert jit._sources_key(file.with_name("moved.py")) != here


@pytest.mark.parametrize(
    ("edited", "changes"),
    [
        ("kernels/planning/books.py", True),
        ("kernels/jit.py", True),
        ("kernels/scratch.py", True),  # imported by what it imports
        ("counters.py", True),
        ("kernels/planning/hot_set.py", False),  # imports it
        ("kernels/predictor.py", False),
    ],
)
def test_the_key_covers_what_a_file_imports(
    edited: str, changes: bool, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = copied / "adaptive"
    monkeypatch.setattr(jit, "__file__", str(package / "kernels/jit.py"))
    file = package / "kernels/planning/books.py"
    before = jit._sources_key(file)
    assert jit._sources_key(file) == before
    path = package / edited
    path.write_text(path.read_text() + "\n# edited")
    assert (jit._sources_key(file) != before) is changes


def test_all_imports_of_kernels_are_read() -> None:
    """The pattern finds what Python's parser does."""
    for path in (PACKAGE / "kernels").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        modules |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        expected = {PACKAGE.parent / name.replace(".", "/") for name in modules if name.startswith("adaptive.")}
        read = set(jit._imported(path))
        for module in expected:
            assert {module.with_suffix(".py"), module / "__init__.py"} & read, (path, module)
