"""scripts/twin: the GPU path with the package versions of GPU machines."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
def test_the_gpu_path_passes_with_gpu_versions() -> None:
    folder = Path(os.environ.get("ADAPTIVE_TWIN", ROOT / ".venv-twin"))
    if not (folder / ".installed").is_file():
        pytest.skip("no environment with those versions: scripts/twin makes .venv-twin, 6 GB")
    done = subprocess.run([ROOT / "scripts/twin", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
