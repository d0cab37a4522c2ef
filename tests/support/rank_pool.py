"""Processes that are ranks, started once for many tests; one that dies is replaced."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).parent / "rank_worker.py"
PATIENCE = 600.0  # seconds after which a job hangs, also on a machine that does much else
SMALL_RUN = [
    "--policy", "lfu", "--device-rows", "50%", "--set", "batch_size=64",
    "--set", "data.synthetic.num_eval=200", "--set", "data.synthetic.rows=100000", "--set", "tensorboard=false",
    "--set", "model.bottom_mlp=8-4", "--set", "model.embedding_dim=4", "--set", "model.top_mlp=8-1",
]  # fmt: skip
SAVING_RUN = [*SMALL_RUN, "--set", "save_every=2", "--set", "log_every=2", "--depth", "1"]


def quality(summary: dict[str, Any]) -> tuple[float, float]:
    return summary["auc"], summary["log_loss"]


@dataclass(frozen=True)
class Outcome:
    """Outcome of a job on one rank; a killed one has a negative exit code."""

    code: int
    out: str
    err: str
    pid: int


class RankPool:
    """Workers, as many as some job has asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._jobs = folder, 0
        self._workers: list[subprocess.Popen[str]] = []

    def run(self, size: int, argv: Sequence[str], *, last_rank: Sequence[str] = (), **env: str) -> list[Outcome]:
        """The same command line on `size` ranks, the last one with more words; argv as in `rank_worker`.

        Fails if they hang.
        """
        self._prepare(size)
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._jobs += 1
        files = []
        for rank, worker in enumerate(self._workers[:size]):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "GLOO_SOCKET_IFNAME": "lo"}
            out, err = (self._folder / f"{self._jobs}-{rank}.{kind}" for kind in ("out", "err"))
            files.append((out, err))
            words = [*argv, *(last_rank if rank == size - 1 else ())]
            job = {"argv": words, "env": {**own, **meeting, "TORCHELASTIC_USE_AGENT_STORE": "True", **env}}
            assert worker.stdin is not None
            worker.stdin.write(json.dumps({**job, "out": str(out), "err": str(err)}) + "\n")
            worker.stdin.flush()
        codes = self._wait(self._workers[:size])
        outcomes = [
            Outcome(code, *(file.read_text() if file.exists() else "" for file in pair), worker.pid)
            for code, worker, pair in zip(codes, self._workers, files, strict=False)
        ]
        assert all(code is not None for code in codes), f"ranks hang: {[one.err[-2000:] for one in outcomes]}"
        return outcomes

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.kill()
            worker.communicate()
        self._workers.clear()

    def _prepare(self, size: int) -> None:
        for number, worker in enumerate(self._workers):
            if worker.poll() is not None:
                worker.communicate()
                self._workers[number] = _start()
        self._workers += [_start() for _ in range(size - len(self._workers))]

    def _wait(self, workers: Sequence[subprocess.Popen[str]]) -> list[Any]:
        """Exit codes of a job; workers that do not end in time are killed, and have none."""
        codes: dict[int, int] = {}
        deadline = time.monotonic() + PATIENCE
        while len(codes) < len(workers) and time.monotonic() < deadline:
            left = {worker.stdout: number for number, worker in enumerate(workers) if number not in codes}
            ready, _, _ = select.select(list(left), [], [], 1.0)
            for pipe in ready:
                line = pipe.readline()
                number = left[pipe]
                codes[number] = int(line) if line else workers[number].wait()
        for number, worker in enumerate(workers):
            if number not in codes:
                worker.kill()
        return [codes.get(number) for number in range(len(workers))]


def rank_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    """A fixture: started once."""
    pool = RankPool(tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.close()


def _start() -> subprocess.Popen[str]:
    paths = [str(ROOT), str(WORKER.parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}
    env = {name: value for name, value in env.items() if not name.startswith("ADAPTIVE_")}
    return subprocess.Popen(
        [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True, cwd=ROOT
    )
