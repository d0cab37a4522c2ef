"""Starts ranks on this machine for `adaptive-train run --ranks N`, and waits for them.

The processes get the environment of torchrun: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. This process has the store
where they meet, on the loopback interface. After one rank has failed, the others have a few seconds to end with their
own error; then they are terminated.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any, Final

from adaptive.errors import RanksError
from adaptive.system import usable_cores

GRACE: Final = 8.0  # seconds for the other ranks to end after one has failed
LAST: Final = 2.0  # seconds to end after SIGTERM
NEEDED: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def is_rank() -> bool:
    """True if this process was started as one of several ranks."""
    return all(name in os.environ for name in NEEDED)


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
    first: int | None = None
    until = float("inf")
    try:
        while True:
            codes = [process.poll() for process in processes]
            if first is None and (failed := [(code, rank) for rank, code in enumerate(codes) if code]):
                first, until = failed[0][0], time.monotonic() + GRACE
                if first < 0:
                    name = signal.Signals(-first).name
                    sys.stderr.write(f"adaptive-train: rank {failed[0][1]} of {len(processes)} was killed by {name}\n")
            if all(code is not None for code in codes):
                return RanksError.exit_code if first is not None and first < 0 else first or 0
            if time.monotonic() > until:
                return RanksError.exit_code if first is None or first < 0 else first
            time.sleep(0.05)
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
