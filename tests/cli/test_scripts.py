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


@pytest.mark.nightly
def test_the_gpu_path_passes_with_gpu_versions() -> None:
    folder = Path(os.environ.get("ADAPTIVE_TWIN", ROOT / ".venv-twin"))
    if not (folder / ".installed").is_file():
        pytest.skip("no environment with those versions: scripts/twin makes .venv-twin, 6 GB")
    done = subprocess.run([ROOT / "scripts/twin", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
