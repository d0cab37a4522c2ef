"""scripts/ and .ci/run, with a Python that only records its calls."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Installed under every name below. `-m venv DIR` makes an environment of more such files.
FAKE = """#!/usr/bin/env bash
echo "$(basename "$0") $*" >>"$CALLS"
if [[ "$*" == "-m venv "* ]]; then
    mkdir -p "$3/bin"
    for name in python ruff mypy adaptive-train; do cp "$0" "$3/bin/$name"; done
fi
if [[ "$*" == *"${FAILING:-nothing fails}"* ]]; then exit 5; fi
"""

Script = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Run a script from another folder; return its exit code and calls."""
    fake, calls = tmp_path / "python3", tmp_path / "calls"
    fake.write_text(FAKE)
    fake.chmod(0o755)

    def run(name: str, *words: str, **environ: str) -> tuple[int, list[str]]:
        calls.write_text("")
        variables = {"PATH": os.environ["PATH"], "PYTHON": str(fake), "CALLS": str(calls), "TMPDIR": str(tmp_path)}
        done = subprocess.run(
            [ROOT / name, *words], cwd=tmp_path, env=variables | environ, stdin=subprocess.DEVNULL, capture_output=True
        )
        return done.returncode, [line for line in calls.read_text().splitlines() if "version_info" not in line]

    return run


def test_run_installs_once_and_passes_arguments(script: Script, tmp_path: Path) -> None:
    code, calls = script("scripts/run", "--steps", "3", ADAPTIVE_VENV="venv")
    assert code == 0
    assert calls == [
        f"python3 -m venv {tmp_path}/venv",
        f"python -m pip install -q --disable-pip-version-check --no-compile -c {ROOT}/constraints.txt -e {ROOT}[plot]",
        "adaptive-train run --policy slipstream --steps 3",
    ]
    assert script("scripts/run", ADAPTIVE_VENV="venv") == (0, ["adaptive-train run --policy slipstream"])


def test_test_installs_extras_and_runs_every_check(script: Script, tmp_path: Path) -> None:
    code, calls = script("scripts/test", "-x", ADAPTIVE_VENV="venv")
    assert code == 0
    assert calls[1].endswith(f"-e {ROOT}[dev]")
    assert calls[2:] == [
        "ruff format --check .",
        "ruff check .",
        "mypy --strict adaptive",
        "python -m pytest --numprocesses auto --maxprocesses 4 -x",
    ]
    assert script("scripts/run", ADAPTIVE_VENV="venv")[1] == ["adaptive-train run --policy slipstream"]
    _, calls = script("scripts/test", "--all", "-x", ADAPTIVE_VENV="venv")
    assert calls[-1] == "python -m pytest --numprocesses auto --maxprocesses 4 -m  -x"  # -m "": nightly tests, too


@pytest.mark.parametrize("failing", ["--dry-run", "-e", "format --check", "check .", "--strict", "pytest"])
def test_ci_uses_a_fresh_environment_and_fails(script: Script, tmp_path: Path, failing: str) -> None:
    paths = sorted(tmp_path.iterdir())
    code, calls = script(".ci/run")
    assert code == 0 and calls[-1] == "python -m pytest --numprocesses auto --maxprocesses 4"
    assert calls[0].startswith(f"python3 -m venv {tmp_path}/")
    assert "--dry-run --ignore-installed" in calls[1] and calls[1].endswith("-c constraints.txt .[dev]")
    code, calls = script(".ci/run", FAILING=failing)
    assert code == 5 and failing in calls[-1]
    assert sorted(tmp_path.iterdir()) == sorted({*paths, tmp_path / "calls"})


@pytest.mark.nightly
def test_the_gpu_path_passes_with_gpu_versions() -> None:
    folder = Path(os.environ.get("ADAPTIVE_TWIN", ROOT / ".venv-twin"))
    if not (folder / ".installed").is_file():
        pytest.skip("no environment with those versions: scripts/twin makes .venv-twin, 6 GB")
    done = subprocess.run([ROOT / "scripts/twin", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
