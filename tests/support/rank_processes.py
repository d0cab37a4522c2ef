"""Starts processes that are ranks, as torchrun would, and waits for them."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environments(size: int) -> list[dict[str, str]]:
    """What torchrun would put into the environment of each of `size` processes."""
    port = str(free_port())
    common = {
        **os.environ,
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


def run_ranks(size: int, command: Sequence[str], *, seconds: float = 120.0) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each of `size` processes of this Python with these arguments."""
    processes = [
        subprocess.Popen(
            [sys.executable, *command], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        for env in environments(size)
    ]
    until = time.monotonic() + seconds
    try:
        outputs = [process.communicate(timeout=max(until - time.monotonic(), 1)) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]
