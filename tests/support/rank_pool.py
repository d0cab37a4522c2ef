"""Processes that are ranks, started once for many tests; one that dies is replaced."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).parent / "rank_worker.py"
SECONDS = 240.0  # of a job; the first one may compile all kernels


@dataclass(frozen=True)
class Outcome:
    """What became of a job on one rank; a killed one has a negative exit code."""

    code: int
    out: str
    err: str
    pid: int


class RankPool:
    """Workers, as many as some job has asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._jobs = folder, 0
        self._workers: list[subprocess.Popen[str]] = []

    def run(
        self, size: int, argv: Sequence[str], *, cwd: Path = ROOT, seconds: float = SECONDS, **env: str
    ) -> list[Outcome]:
        """The same command line on `size` ranks; argv as in `rank_worker`. Fails if one does not end in time."""
        self._prepare(size)
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._jobs += 1
        files = []
        for rank, worker in enumerate(self._workers[:size]):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "GLOO_SOCKET_IFNAME": "lo"}
            out, err = (self._folder / f"{self._jobs}-{rank}.{kind}" for kind in ("out", "err"))
            files.append((out, err))
            job = {"argv": list(argv), "env": {**own, **meeting, "TORCHELASTIC_USE_AGENT_STORE": "True", **env}}
            self._give(worker, {**job, "cwd": str(cwd), "out": str(out), "err": str(err)})
        codes = self._wait(self._workers[:size], time.monotonic() + seconds)
        found = []
        for code, worker, (out, err) in zip(codes, self._workers, files, strict=False):
            found.append(Outcome(code, _text(out), _text(err), worker.pid))
        assert all(code is not None for code in codes), f"ranks hang: {[one.err[-2000:] for one in found]}"
        return found

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

    def _give(self, worker: subprocess.Popen[str], job: dict[str, Any]) -> None:
        import json

        assert worker.stdin is not None
        worker.stdin.write(json.dumps(job) + "\n")
        worker.stdin.flush()

    def _wait(self, workers: Sequence[subprocess.Popen[str]], until: float) -> list[Any]:
        """Exit codes of a job; the workers that did not end are killed, and have none."""
        codes: dict[int, int] = {}
        while len(codes) < len(workers) and time.monotonic() < until:
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


def _start() -> subprocess.Popen[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{WORKER.parent}", "COLUMNS": "200"}
    env = {name: value for name, value in env.items() if not name.startswith("ADAPTIVE_")}
    return subprocess.Popen(
        [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True, cwd=ROOT
    )


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""
