"""Time until the first step is trained, without and with kernels compiled earlier.

    python -m benchmarks.bench_startup [--quick]

Each start is a new process. `first step` runs from after `import adaptive` (which imports torch) to the end of the
first training step of a small DLRM; `process` is everything, the interpreter's start included. `--help` is the program
saying how it is used. All starts must have computed the same loss.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Report

FIRST_STEP = """
import time
start = time.perf_counter()
import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from adaptive import TableConfig, TieredEmbeddingBag, TierConfig
from adaptive.batch import one_hot_batch
from adaptive.models.dense.dlrm import DLRM
from adaptive.models.model_settings import DLRMConfig
imported = time.perf_counter()
rng = np.random.default_rng(0)
dense, ids = rng.standard_normal((256, 13), np.float32), rng.integers(0, 1000, (256, 4))
batch = one_hot_batch(dense, ids, np.ones(256, np.float32))
tables = [TableConfig(name=f"t{i}", num_embeddings=1000, embedding_dim=16) for i in range(4)]
embeddings = TieredEmbeddingBag(tables, TierConfig(device_rows="100%", device="cpu"), policy="lru")
model = DLRM(DLRMConfig(), num_dense=13, num_features=4)
for planned in embeddings.look_ahead([batch], depth=4):
    loss = binary_cross_entropy_with_logits(model(planned.dense, embeddings.stack(planned)), planned.labels)
    loss.backward()
    embeddings.step()
print(imported - start, time.perf_counter() - imported, float(loss.detach()))
"""
HELP = "import sys; from adaptive.cli.app import main; sys.argv = ['adaptive-train', '--help']; main()"
RUN = "import sys; from adaptive.cli.app import main; sys.argv = ['adaptive-train', *sys.argv[1:]]; main()"


@dataclass(frozen=True)
class Settings:
    cold: int = 3  # not counting the start that fills the cache for the warm ones
    warm: int = 7
    first_run: int = 1  # whole command-line runs of one step, cold and warm; 0: none


SETTINGS = {"full": Settings(), "quick": Settings(0, 3, 0), "smoke": Settings(0, 1, 0)}
Start = tuple[float, float, float, float]  # seconds of: process, import, first step; and the loss


def run(settings: Settings) -> Report:
    report = Report()
    table = report.table("start-up (s), medians", "start", "process", "import", "first step")
    with tempfile.TemporaryDirectory() as folder:
        cold = [_start(Path(folder) / f"cold{number}") for number in range(settings.cold)]
        warm_cache = Path(folder) / "warm"
        warm_cache.mkdir()
        first = _start(warm_cache)
        warm = [_start(warm_cache) for _ in range(settings.warm)]
        helps = [_timed(HELP, warm_cache)[0] for _ in range(settings.warm)]
        cold = cold or [first]
        if {start[3] for start in [*cold, *warm]} != {first[3]}:
            raise harness.NotEqual("starts with and without compiled kernels computed different losses")
        for name, starts in (("cold", cold), ("warm", warm)):
            medians = [statistics.median(start[i] for start in starts) for i in range(3)]
            table.add(name, *medians)
            report.figures[f"startup_{name}_process_s"] = medians[0]
            report.figures[f"startup_{name}_first_step_s"] = medians[2]
        table.add("--help", statistics.median(helps), None, None)
        report.figures["startup_help_s"] = statistics.median(helps)
        if settings.first_run:
            _command_line(report, Path(folder))
    return report


def _command_line(report: Report, folder: Path) -> None:
    """`adaptive-train run --steps 1` on the built-in data, as a user's first contact."""
    cache = folder / "command"
    for name in ("cold", "warm"):
        arguments = ["run", "--steps", "1", "--out", str(folder / f"run-{name}")]
        report.figures[f"startup_{name}_command_s"] = _timed(RUN, cache, arguments)[0]


def _start(cache: Path) -> Start:
    seconds, output = _timed(FIRST_STEP, cache)
    imported, stepped, loss = map(float, output.split()[-3:])
    return seconds, imported, stepped, loss


def _timed(code: str, cache: Path, arguments: Sequence[str] = ()) -> tuple[float, str]:
    cache.mkdir(exist_ok=True)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"a start failed:\n{done.stderr}")
    return seconds, done.stdout


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
