"""Examples and the README's loop on a GPU, where their models must be, too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
CODE = {
    **{name: f"import runpy; runpy.run_path('examples/{name}.py', run_name='__main__')"
       for name in ("quickstart", "tiered_loop")},
    "README": "exec(open('README.md').read().split('```python\\n')[1].split('```')[0])",
    "ngram_memory": "import sys; sys.path[:0] = ['examples']; "
                    "import ngram_memory; ngram_memory.main(rows=1_000_000, steps=20)",
}  # fmt: skip


@pytest.mark.parametrize("name", CODE)
def test_examples_run_on_the_gpu(device: str, name: str) -> None:
    if device != "cuda":
        pytest.skip("tests/test_examples.py, test_ngram_memory.py and test_pages.py run them on the CPU")
    command = [sys.executable, "-c", CODE[name]]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
