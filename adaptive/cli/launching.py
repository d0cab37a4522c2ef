"""`--ranks NUMBER`: run the command line in several processes on this machine.

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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from adaptive.cli.output import note
from adaptive.errors import RanksError
from adaptive.system import usable_cores
from adaptive.training.telemetry.formatting import bytes_text

if TYPE_CHECKING:
    from adaptive.config import TrainConfig

GRACE: Final = 8.0  # seconds for the other ranks to end after one has failed
LAST: Final = 2.0  # seconds to end after SIGTERM
LEAST_BYTES: Final = 300 << 20  # memory of a rank for libraries and kernels; 360 MB were measured


def settings_for_ranks(run: Path, ranks: int | None) -> "TrainConfig | None":
    """Return the settings of a run that several ranks read; None if this process is alone."""
    from adaptive.system import is_rank

    if ranks is None and not is_rank():
        return None
    from adaptive.storage.run_directory import read_record
    from adaptive.training.runs.run_record import config_of

    return config_of(read_record(run), run)


def refuse_within_ranks() -> None:
    """Refuse `--ranks` in a process that is already a rank."""
    from adaptive.system import is_rank

    if is_rank():
        raise typer.BadParameter("--ranks: expected none under torchrun, which starts the processes. Leave it out")


def launch_ranks(ranks: int) -> NoReturn:
    """Run the command line in `ranks` processes, and exit with their exit code."""
    check_number(ranks)
    raise typer.Exit(launch(ranks, _without_ranks(sys.argv[1:])))


def check_number(ranks: int) -> None:
    """Check the number of processes; warn if there are fewer cores, as ranks then take turns.

    Raises:
        ConfigError: for more ranks than fit into memory.
    """
    from adaptive.errors import ConfigError
    from adaptive.system import available_bytes

    number, room = usable_cores(), max(available_bytes() // LEAST_BYTES, 1)
    cores, least = f"{number} core{'s' * (number > 1)}", bytes_text(ranks * LEAST_BYTES)
    if ranks > room:
        raise ConfigError(
            f"--ranks: expected at most {room} ranks, got {ranks}, which take {least} of memory before they hold any "
            f"row ({bytes_text(LEAST_BYTES)} each). This machine has {cores}. Start no more ranks than cores"
        )
    if ranks > number:
        note(
            f"adaptive-train: warning: {ranks} ranks take turns on {cores}, which is slower than --ranks {number}, and "
            f"take {least} of memory before they hold any row"
        )


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
