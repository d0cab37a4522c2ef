"""Several ranks on this machine, over gloo, beside TorchRec: bytes, and the time of a step.

    python -m benchmarks.bench_ranks [--quick] [--set rounds=3 only=embedding]

*Embedding part*: forward, a fixed gradient, update, 2 processes of one thread; what crosses by our own count and on the
loopback interface, which is fair to both. What TorchRec shards by table or by row is first shown to compute the same.
*Whole step*: the DLRM on 2 ranks of one thread against 1 of one thread with the same samples a rank (weak scaling); one
rank through the layer against one process without. `usual` has the layers of the Kaggle scripts, `step` the default
ones, whose step is a third as long; `pinned` is `step` with one core for each process, look-ahead included.
*Kept rows*: the built-in stream under deferral, with and without.

Two ranks on two cores compete with gloo, look-ahead threads and each other, where one process has a second core for its
look-ahead. So CPU seconds stand beside wall seconds, and bytes carry the argument.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import Report, check_equal, paired
from benchmarks.rank_worker import VALUE

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 900.0
REQUEST = 6  # bytes, in the formula
TOLERANCE = 2e-3
USUAL = ((512, 256, 64), (512, 256, 1))  # layers of the Kaggle scripts, without the width


@dataclass(frozen=True)
class Settings:
    rows: int = 1_000_000
    dim: int = 16
    batch: int = 2048  # samples of each rank
    steps: int = 60
    warm_up: int = 20
    left: int = 6  # steps behind the timed ones, so that the look-ahead is as busy in all of them
    different: int = 20
    rounds: int = 5
    kept_steps: int = 2930
    kept_batch: int = 1024
    only: str = ""  # embedding, step, pinned, usual or kept


SETTINGS = {
    "full": Settings(),
    "quick": Settings(steps=30, warm_up=10, rounds=2, kept_steps=300),
    "smoke": Settings(100_000, 8, 64, steps=4, warm_up=2, left=2, different=3, rounds=1, kept_steps=300, kept_batch=64),
}


def run(settings: Settings) -> Report:
    report = Report()
    parts: dict[str, Callable[[Settings, Report], None]] = {
        "embedding": _embedding_part,
        "step": partial(_whole_step, "step"),
        "pinned": partial(_whole_step, "pinned", pinned=True),
        "usual": partial(_whole_step, "usual", layers=USUAL),
        "kept": _kept_rows,
    }
    for part, work in parts.items():
        if settings.only in part:
            work(settings, report)
    return report


def start(size: int, **job: Any) -> list[dict[str, Any]]:
    """What each of `size` ranks found.

    Raises:
        RuntimeError: if one fails.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    common = {
        **os.environ, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.rank_worker", json.dumps(job)]
    processes = [
        subprocess.Popen(
            command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            raise RuntimeError(f"a rank ended with {process.returncode}: {errors[-2000:]}")
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


def _embedding_part(settings: Settings, report: Report) -> None:
    shape = {name: value for name, value in asdict(settings).items() if not name.startswith("kept")}
    jobs = {
        "adaptive": {"kind": "embedding", "ranks": True},
        "TorchRec, by table": {"kind": "torchrec", "by": "table"},
        "TorchRec, by row": {"kind": "torchrec", "by": "row"},
    }
    found: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in jobs}
    for _ in range(settings.rounds):
        for name, job in jobs.items():
            if not found[name] or "absent" not in found[name][0][0]:
                found[name].append(start(2, **job, **shape))
    table = report.table(
        f"Embedding part, 2 ranks of 1 thread, {settings.batch} samples each, width {settings.dim}",
        "", "ms a step", "CPU ms a step", "MB a step on loopback", "of TorchRec's", "times as fast",
    )  # fmt: skip
    times = {name: [_ms(one, settings, "seconds") for one in rounds] for name, rounds in _there(found).items()}
    ours = found["adaptive"]
    mega = {name: statistics.median(one[0]["loopback"] for one in rounds) / settings.steps / 1e6
            for name, rounds in _there(found).items()}  # fmt: skip
    for name, rounds in found.items():
        if "absent" in rounds[0][0]:
            report.absent[f"loopback_over_{_key(name)}"] = rounds[0][0]["absent"]
            continue
        _check_alike(name, rounds[0], ours[0])
        cpu = statistics.median(_ms(one, settings, "cpu_seconds") for one in rounds)
        ratio = mega["adaptive"] / max(mega[name], 1e-12)
        faster = paired(times[name], times["adaptive"])
        table.add(name, statistics.median(times[name]), cpu, mega[name], ratio, faster)
        if name != "adaptive":
            report.ratios[f"loopback_over_{_key(name)}"] = ratio
            report.ratios[f"embedding_ranks_vs_{_key(name)}"] = faster
    payload, formula = _payload(ours[0], settings)
    report.ratios["payload_over_formula"] = payload / formula
    per_step = settings.steps + settings.warm_up + settings.left
    report.figures["payload_mb_a_step"] = payload / per_step / 1e6


def _payload(ranks: Sequence[dict[str, Any]], settings: Settings) -> tuple[int, int]:
    """Bytes of all ranks, and what the formula says: two rows and a request for each row of another rank."""
    traffic = [one["traffic"] for one in ranks]
    kinds = ("requests", "answers", "vectors", "gradients")
    rows = sum(one["rows_asked"] for one in traffic)
    return sum(one[kind] for one in traffic for kind in kinds), rows * (2 * 4 * settings.dim + REQUEST)


def _check_alike(name: str, one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> None:
    for rank, (mine, its) in enumerate(zip(one, other, strict=True)):
        found, expected = (np.array(part["pooled"]) for part in (mine, its))
        before = np.full_like(expected, VALUE)
        check_equal(f"{name}, rank {rank}", found, expected, before=before, tolerance=TOLERANCE)


def _whole_step(
    part: str, settings: Settings, report: Report, *, pinned: bool = False, layers: Sequence[Sequence[int]] = ()
) -> None:
    shape = {name: value for name, value in asdict(settings).items() if not name.startswith("kept")}
    sizes = {"one process": (1, False), "1 rank": (1, True), "2 ranks": (2, True)}
    found: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in sizes}
    for _ in range(settings.rounds):
        for name, (size, ranks) in sizes.items():
            found[name].append(start(size, kind="step", ranks=ranks, pinned=pinned, layers=layers, **shape))
    times = {name: [_ms(one, settings, "seconds") for one in rounds] for name, rounds in found.items()}
    table = report.table(
        f"Whole step ({part}), one thread a rank, {settings.batch} samples each, Adagrad",
        "", "ms a step", "CPU ms a step", "waiting ms", "exchanging ms",
    )  # fmt: skip
    all_steps = settings.steps + settings.warm_up + settings.left
    cpu: dict[str, list[float]] = {}
    for name, rounds in found.items():
        traffic = rounds[0][0].get("traffic", {"wait_ms": 0.0, "exchange_ms": 0.0})
        cpu[name] = [_ms(one, settings, "cpu_seconds") for one in rounds]
        waits = traffic["wait_ms"] / all_steps, traffic["exchange_ms"] / all_steps
        table.add(name, statistics.median(times[name]), statistics.median(cpu[name]), *waits)
    report.ratios[f"{part}_weak_scaling_2_ranks"] = paired(times["1 rank"], times["2 ranks"])
    report.ratios[f"{part}_weak_scaling_2_ranks_over_one_process"] = paired(times["one process"], times["2 ranks"])
    report.ratios[f"{part}_one_rank_over_one_process"] = paired(times["1 rank"], times["one process"])
    report.ratios[f"{part}_cpu_of_one_process_over_2_ranks"] = paired(cpu["one process"], cpu["2 ranks"])


def _kept_rows(settings: Settings, report: Report) -> None:
    table = report.table(
        f"Rows and gradients that need not cross: the built-in stream, {settings.kept_steps} steps of "
        f"{settings.kept_batch} samples, 2 ranks",
        "", "vectors MB", "of all", "gradients MB", "of all", "1 - s", "answers MB", "tables",
    )  # fmt: skip
    for skip in ("defer", "least", "updates"):
        job = {
            "kind": "kept",
            "skip": skip,
            "dim": settings.dim,
            "batch": settings.kept_batch,
            "steps": settings.kept_steps,
        }
        alone, both = start(1, **job, everything=False)[0], start(2, **job, everything=False)
        whole = start(2, **job, everything=True)
        same = len({one["tables"] for one in [alone, *both, *whole]}) == 1
        sent, all_of_it = ({kind: sum(one["traffic"][kind] for one in ranks) for kind in ranks[0]["traffic"]}
                           for ranks in (both, whole))  # fmt: skip
        vectors, gradients = (sent[kind] / all_of_it[kind] for kind in ("vectors", "gradients"))
        left_out = sent["gradients_spared"] / all_of_it["gradients"]
        numbers = (
            sent["vectors"] / 1e6,
            vectors,
            sent["gradients"] / 1e6,
            gradients,
            1 - left_out,
            sent["answers"] / 1e6,
        )
        table.add(skip, *numbers, "equal" if same else "DIFFERENT")
        if not same:
            raise harness.NotEqual(f"{skip}: tables differ with and without answers, or between 1 and 2 ranks")
        report.ratios[f"vector_bytes_{skip}"] = vectors
        report.ratios[f"gradient_bytes_{skip}"] = gradients


def _there(found: dict[str, list[list[dict[str, Any]]]]) -> dict[str, list[list[dict[str, Any]]]]:
    return {name: rounds for name, rounds in found.items() if "absent" not in rounds[0][0]}


def _ms(ranks: Sequence[dict[str, Any]], settings: Settings, what: str) -> float:
    """Of the slowest rank."""
    return max(float(one[what]) for one in ranks) * 1e3 / settings.steps


def _key(name: str) -> str:
    return name.lower().replace(", by ", "_by_").replace(" ", "_")


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
