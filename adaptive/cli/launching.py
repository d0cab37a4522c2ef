"""`--ranks NUMBER`: the same command line in several processes of this machine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import typer

from adaptive.cli.output import note, size_text

if TYPE_CHECKING:
    from adaptive.config import TrainConfig

LEAST_BYTES: Final = 300 << 20  # of memory that is a rank's alone: libraries and kernels; 360 MB were measured


def settings_for_ranks(run: Path, ranks: int | None) -> "TrainConfig | None":
    """Those of a run that is to be read by several ranks: they say how ranks meet. None: this process is alone."""
    from adaptive.embeddings.ranks.launch import is_rank

    if ranks is None and not is_rank():
        return None
    from adaptive.storage.run_directory import read_record
    from adaptive.training.runs.run_record import config_of

    return config_of(read_record(run), run)


def refuse_within_ranks() -> None:
    """Refuse `--ranks` in a process that is a rank itself."""
    from adaptive.embeddings.ranks.launch import is_rank

    if is_rank():
        raise typer.BadParameter("--ranks starts processes itself; under torchrun leave it out")


def launch_ranks(ranks: int, blocks: int | None) -> NoReturn:
    """Run the same command line in so many processes, and end as they do."""
    from adaptive.embeddings.ranks.launch import launch

    check_number(ranks, blocks)
    raise typer.Exit(launch(ranks, _without_ranks(sys.argv[1:]), blocks))


def check_number(ranks: int, blocks: int | None) -> None:
    """Before so many processes are started: more than there are cores work, but take turns, and are told.

    Raises:
        ConfigError: for more ranks than there are blocks, or than memory has room for.
    """
    from adaptive.errors import ConfigError
    from adaptive.system import available_bytes, usable_cores

    if blocks is not None and ranks > blocks:
        raise ConfigError(f"--ranks {ranks}: each needs a block, and ranks.blocks={blocks}; start at most {blocks}")
    number, room = usable_cores(), max(available_bytes() // LEAST_BYTES, 1)
    cores, least = f"{number} core{'s' * (number > 1)}", size_text(ranks * LEAST_BYTES)
    if ranks > room:
        raise ConfigError(
            f"--ranks {ranks}: before they have any row they take {least} of memory, {size_text(LEAST_BYTES)} each; "
            f"there is room for {room}, and there are {cores}. Start no more ranks than cores"
        )
    if ranks > number:
        note(
            f"adaptive-train: {ranks} ranks take turns on {cores}, which is slower than --ranks {number}, and take "
            f"{least} of memory before they have any row"
        )


def _without_ranks(words: list[str]) -> list[str]:
    """The command line of each rank."""
    kept = [word for word in words if not word.startswith("--ranks=")]
    while "--ranks" in kept:
        place = kept.index("--ranks")
        del kept[place : place + 2]
    return kept
