"""Wheel and sdist: their content, and an installation without a checkout."""

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest

import adaptive

ROOT = Path(adaptive.__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*command: object, cwd: Path, **environ: str) -> str:
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=known | environ, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(source: Path, target: Path) -> None:
    """Build both distributions without a network; the wheel as `pip install .` does."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", target, cwd=source)
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "--disable-pip-version-check", "-w", target, source, cwd=target)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    return folder


def wheel(folder: Path) -> Path:
    (path,) = folder.glob("*.whl")
    return path


def names(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as file:
        return sorted(file.namelist())


def modules(paths: Iterable[Path], parent: Path) -> set[str]:
    return {path.relative_to(parent).as_posix() for path in paths}


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {adaptive.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_one_wheel_serves_all_platforms(built: Path) -> None:
    assert [path.name for path in built.glob("*.whl")] == [f"adaptive_train-{adaptive.__version__}-py3-none-any.whl"]


def test_a_wheel_has_nothing_at_its_top_but_adaptive(built: Path) -> None:
    result = names(wheel(built))
    assert {name.split("/")[0] for name in result} == {"adaptive", f"adaptive_train-{adaptive.__version__}.dist-info"}
    inside = {name for name in result if name.startswith("adaptive/")}
    ours = modules((ROOT / "adaptive").rglob("*.py"), ROOT) | modules((ROOT / "policies").rglob("*.py"), ROOT)
    assert {re.sub("^policies/", "adaptive/policies/", name) for name in ours} <= inside
    assert {"adaptive/py.typed", "adaptive/policies/py.typed"} <= inside
    assert any(PurePosixPath(name).match("adaptive/data/schemas/*.toml") for name in inside)
    assert not [name for name in inside if "__pycache__" in name or "/." in name]


def test_a_wheel_made_from_the_sdist_is_the_same(built: Path, tmp_path: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as file:
        assert not [member.name for member in file if member.issym() or member.islnk()]
        file.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again", cwd=source)
    assert names(wheel(tmp_path / "again")) == names(wheel(built))


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of an environment with the wheel and our dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    dependencies = {re.split(r"[<>=]", text)[0] for text in PROJECT["dependencies"]}
    places = {Path(str(importlib.util.find_spec(name).origin)).parents[1] for name in dependencies}  # type: ignore[union-attr]
    (packages / "dependencies.pth").write_text("".join(f"{place}\n" for place in sorted(places)))
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "-q", "--no-deps", "--no-index")
    run(*pip, "--no-compile", "--disable-pip-version-check", wheel(built), cwd=folder)
    return folder / "bin"


@pytest.mark.nightly
def test_what_is_installed_is_found(installed: Path, tmp_path: Path) -> None:
    code = "import adaptive, adaptive.policies.lru as lru; print(adaptive.__file__); print(lru.__file__)"
    result = run(installed / "python", "-c", code, cwd=tmp_path).split()
    assert all(Path(path).is_relative_to(installed.parent) for path in result)
    assert "adaptive-train" in run(installed / "adaptive-train", "--help", cwd=tmp_path)
    listed = run(installed / "adaptive-train", "policies", "list", cwd=tmp_path)
    assert "adaptive.policies.lru:LRU" in listed and "cannot be loaded" not in listed


ONE_STEP = """
import numpy as np
from adaptive import SGD, TableConfig, TierConfig, TieredEmbeddingBag, one_hot_batch

tables = [TableConfig(name="user", num_embeddings=100, embedding_dim=4)]
embeddings = TieredEmbeddingBag(tables, TierConfig(device_rows="10%"), policy="lru", optimizer=SGD(lr=1.0))
batch = one_hot_batch(dense=np.zeros((2, 0), np.float32), ids=np.array([[7], [9]]), labels=np.zeros(2, np.float32))
before = embeddings.rows.table_weights("user").copy()
for planned in embeddings.look_ahead([batch]):
    embeddings.stack(planned).sum().backward()
    embeddings.step()
print(*np.flatnonzero((embeddings.rows.table_weights("user") != before).any(axis=1)))
embeddings.close()
"""


@pytest.mark.nightly
def test_what_is_installed_trains(installed: Path, tmp_path: Path) -> None:
    """One step by the command and one by the library. Slow, as kernels are compiled again: their cache goes by where
    they are installed."""
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    run(installed / "adaptive-train", "run", "--policy", "lru", "--steps", "1", "--out", "here", cwd=tmp_path, **cache)
    assert (tmp_path / "here/run.json").exists()
    assert run(installed / "python", "-c", ONE_STEP, cwd=tmp_path, **cache) == "7 9\n"
