"""`--ranks NUMBER`: the same command line in several processes of this machine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from adaptive.config import TrainConfig


def settings_for_ranks(run: Path, ranks: int | None) -> "TrainConfig | None":
    """Those of a run that is to be read by several ranks: they say how ranks meet. None: this process is alone."""
    from adaptive.ranks.launch import is_rank

    if ranks is None and not is_rank():
        return None
    from adaptive.runs.record import config_of
    from adaptive.storage.run_directory import read_record

    return config_of(read_record(run), run)


def refuse_within_ranks() -> None:
    """Refuse `--ranks` in a process that is a rank itself."""
    from adaptive.ranks.launch import is_rank

    if is_rank():
        raise typer.BadParameter("--ranks starts processes itself; under torchrun leave it out")


def launch_ranks(ranks: int, blocks: int | None) -> NoReturn:
    """Run the same command line in so many processes, and end as they do."""
    from adaptive.ranks.launch import launch

    raise typer.Exit(launch(ranks, _without_ranks(sys.argv[1:]), blocks))


def _without_ranks(words: list[str]) -> list[str]:
    """The command line of each rank."""
    found = [word for word in words if not word.startswith("--ranks=")]
    while "--ranks" in found:
        place = found.index("--ranks")
        del found[place : place + 2]
    return found
