"""`--ranks NUMBER`: run the command line in several processes on this machine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import typer

from adaptive.cli.output import note
from adaptive.training.telemetry.formatting import bytes_text

if TYPE_CHECKING:
    from adaptive.config import TrainConfig

LEAST_BYTES: Final = 300 << 20  # memory of a rank for libraries and kernels; 360 MB were measured


def settings_for_ranks(run: Path, ranks: int | None) -> "TrainConfig | None":
    """Return the settings of a run that several ranks read; None if this process is alone."""
    from adaptive.distributed.launch import is_rank

    if ranks is None and not is_rank():
        return None
    from adaptive.storage.run_directory import read_record
    from adaptive.training.runs.run_record import config_of

    return config_of(read_record(run), run)


def refuse_within_ranks() -> None:
    """Refuse `--ranks` in a process that is already a rank."""
    from adaptive.distributed.launch import is_rank

    if is_rank():
        raise typer.BadParameter("--ranks: expected none under torchrun, which starts the processes. Leave it out")


def launch_ranks(ranks: int) -> NoReturn:
    """Run the command line in `ranks` processes, and exit with their exit code."""
    from adaptive.distributed.launch import launch

    check_number(ranks)
    raise typer.Exit(launch(ranks, _without_ranks(sys.argv[1:])))


def check_number(ranks: int) -> None:
    """Check the number of processes; warn if there are fewer cores, as ranks then take turns.

    Raises:
        ConfigError: for more ranks than fit into memory.
    """
    from adaptive.errors import ConfigError
    from adaptive.system import available_bytes, usable_cores

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
