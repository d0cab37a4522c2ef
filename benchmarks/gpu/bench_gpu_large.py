"""`bench_gpu_step` where it matters: 60 GB of tables, as many as fit next to everything else on a host with 128 GiB.

    python -m benchmarks.gpu.bench_gpu_large [--smoke]

All rows on the device just fit one GPU of 80 GB; nothing fits twice, so variants are timed one after the other.
"""

from dataclasses import replace
from typing import Any

from benchmarks import harness
from benchmarks.gpu.bench_gpu_step import SETTINGS as STEP
from benchmarks.gpu.bench_gpu_step import run

NOTHING_ELSE: dict[str, Any] = dict.fromkeys(
    ("policies", "depths", "shares", "batches", "optimizers", "dims", "sizes", "models", "ways"), ()
)
ONE = replace(STEP["full"], **NOTHING_ELSE, bf16=0, trainer=0)
SETTINGS = {
    "full": replace(ONE, gigabytes=60.0, policies=("lfu",), ways=("direct",), rounds=3),
    "quick": replace(ONE, gigabytes=20.0, rounds=3),
    "smoke": replace(STEP["smoke"], gigabytes=1.0, optimizers=(), seconds=15.0),
}

if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
