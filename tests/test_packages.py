"""Wheel and sdist: what they contain, and an installation without a checkout that trains."""

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import adaptive

ROOT = Path(adaptive.__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
pytestmark = pytest.mark.nightly


def run(*command: object, cwd: Path, **environ: str) -> str:
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=known | environ, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pip(*words: object, cwd: Path) -> None:
    """Run pip without a network."""
    run(sys.executable, "-m", "pip", *words, "-q", "--no-deps", "--no-index", "--disable-pip-version-check", cwd=cwd)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from an unpacked sdist as users of an sdist build it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        assert not [member.name for member in file if member.issym() or member.islnk()]
        file.extractall(folder, filter="data")
    pip("wheel", "--no-build-isolation", "-w", folder, sdist.with_name(sdist.name.removesuffix(".tar.gz")), cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


def test_a_wheel_has_all_of_adaptive_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"adaptive_train-{adaptive.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    assert {name.split("/")[0] for name in names} == {"adaptive", f"adaptive_train-{adaptive.__version__}.dist-info"}
    kinds = ("*.py", "py.typed", "*.toml")
    paths = [path for folder in ("adaptive", "policies") for kind in kinds for path in (ROOT / folder).rglob(kind)]
    ours = {re.sub("^policies/", "adaptive/policies/", path.relative_to(ROOT).as_posix()) for path in paths}
    assert ours <= {name for name in names if name.startswith("adaptive/")}
    assert not [name for name in names if "__pycache__" in name or "/." in name]


def test_what_is_installed_trains(wheel: Path, tmp_path: Path) -> None:
    """Slow, as kernels are compiled again: their cache goes by where they are installed."""
    venv.create(tmp_path / "env", with_pip=False)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    dependencies = {re.split(r"[<>=]", text)[0] for text in PROJECT["dependencies"]}
    places = {Path(str(importlib.util.find_spec(name).origin)).parents[1] for name in dependencies}  # type: ignore[union-attr]
    (packages / "dependencies.pth").write_text("".join(f"{place}\n" for place in sorted(places)))
    pip("--python", tmp_path / "env/bin/python", "install", "--no-compile", wheel, cwd=tmp_path)
    command, cache = tmp_path / "env/bin/adaptive-train", {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert "adaptive.policies.lru:LRU" in run(command, "policies", "list", cwd=tmp_path)
    run(command, "run", "--policy", "lru", "--steps", "1", "--out", "here", cwd=tmp_path, **cache)
    assert (tmp_path / "here/run.json").exists()
