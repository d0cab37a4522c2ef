"""`--ranks NUMBER`: run the command line in several processes on this machine.

The processes get the environment of torchrun: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. This process has the store
where they meet, on the loopback interface. After one rank has failed, the others have a few seconds to end with their
own error; then they are terminated.
"""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import typer

from adaptive.errors import RanksError
from adaptive.system import is_rank, usable_cores

GRACE: Final = 8.0  # seconds for the other ranks to end after one has failed
LAST: Final = 2.0  # seconds to end after SIGTERM


def launch_ranks(ranks: int) -> NoReturn:
    """Run the command line in `ranks` processes, and exit with their exit code."""
    if is_rank():
        raise typer.BadParameter("--ranks: expected none under torchrun, which starts the processes. Leave it out")
    raise typer.Exit(launch(ranks, _without_ranks(sys.argv[1:])))


def _without_ranks(words: list[str]) -> list[str]:
    """Return the command line of each rank."""
    rest = [word for word in words if not word.startswith("--ranks=")]
    while "--ranks" in rest:
        place = rest.index("--ranks")
        del rest[place : place + 2]
    return rest


def launch(size: int, arguments: Sequence[str]) -> int:
    """Run `adaptive-train` in `size` processes; return the exit code of the first to fail."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    cores = max(1, usable_cores() // size)
    common = {
        "OMP_NUM_THREADS": str(cores),
        **os.environ,
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    command = [sys.executable, "-m", "adaptive", *arguments]
    processes = [
        subprocess.Popen(command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(size)
    ]
    with _passing_on_signals(processes):
        return _wait(processes)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    code, until = 0, math.inf
    try:
        while time.monotonic() < until:
            codes = [process.poll() for process in processes]
            failed = next((rank for rank, of_rank in enumerate(codes) if of_rank), None)
            if not code and failed is not None:
                code, until = codes[failed] or 0, time.monotonic() + GRACE
                if code < 0:
                    name = signal.Signals(-code).name
                    sys.stderr.write(f"adaptive-train: rank {failed} of {len(processes)} was killed by {name}\n")
                    code = RanksError.exit_code
            if None not in codes:
                break
            time.sleep(0.05)
        return code
    finally:
        left = [process for process in processes if process.poll() is None]
        for process in left:
            process.terminate()
        for process in left:
            try:
                process.wait(LAST)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _passing_on_signals(processes: Sequence[subprocess.Popen[bytes]]) -> Any:
    """Pass SIGTERM and SIGHUP on to the ranks; Ctrl-C reaches them from the terminal."""

    def pass_on(number: int, frame: Any) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    handlers = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    handlers[signal.SIGINT] = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
