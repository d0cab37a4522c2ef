"""Runs of several ranks: checkpoints, agreement of ranks, and stopping together."""

import contextlib
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.distributed.peers import Peers
from adaptive.errors import CheckpointError, OutputError
from adaptive.storage.checkpoint import Checkpoint, Checkpoints, load_checkpoint, load_whole, write_shard
from adaptive.storage.durable import write_failed
from adaptive.storage.run_directory import LOCK, RunDirectory, newest_first
from adaptive.system import StopRequest, is_rank


@contextlib.contextmanager
def launched_peers(config: TrainConfig) -> Iterator[Peers | None]:
    """The processes that torchrun or `--ranks` started; None for a single process."""
    if not is_rank():
        yield None
        return
    peers = Peers(timeout_s=config.ranks.timeout_s, backend=config.ranks.backend)
    try:
        yield peers
    finally:
        peers.close()


def facts_of(config: TrainConfig, dataset: Dataset) -> dict[str, object]:
    """Facts that must be equal on all ranks."""
    settings = config.model_dump(mode="json", exclude={"out"})  # only rank 0 uses it
    versions = {"adaptive-train": version("adaptive-train"), "torch": torch.__version__}
    return {"settings": settings, "data": dataset.fingerprint(), "versions": versions}


def reporting_errors(peers: Peers | None) -> AbstractContextManager[None]:
    """Report an error inside to the other ranks, which raise at their next exchange."""
    return contextlib.nullcontext() if peers is None else peers.reporting_errors()


def directory_of(
    peers: Peers | None, run_directory: Callable[[], RunDirectory]
) -> AbstractContextManager[RunDirectory]:
    """The run directory on rank 0, a temporary one on other ranks."""
    return run_directory() if peers is None or peers.is_first else _scratch_directory()


@contextlib.contextmanager
def _scratch_directory() -> Iterator[RunDirectory]:
    with (
        tempfile.TemporaryDirectory(prefix="adaptive-rank-") as folder,
        RunDirectory(Path(folder) / "run") as directory,
    ):
        yield directory


class AgreedStop(StopRequest):
    """A signal to one rank that stops all ranks after the same step."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    @property
    def signal(self) -> int | None:
        return self._peers.agreed or None

    @signal.setter
    def signal(self, number: int | None) -> None:
        self._peers.heard = number or 0


class Shards:
    """The part of a rank other than the first in saving checkpoints: `Checkpoints` writes and removes the rest.

    Methods are those of `Checkpoints`, which the first rank calls at the same time.
    """

    def __init__(self, directory: Path, peers: Peers) -> None:
        """`directory`: of the run, as all ranks see it."""
        self._directory, self._peers = directory, peers

    def add(self, number: int, content: Checkpoint) -> None:
        """Write this rank's shard, if the first rank has begun a checkpoint."""
        if (name := self._peers.rows.gather_facts(None, "folder")[0]) is not None:
            write_together(self._peers, self._directory / name, content)

    keep_best = finish = add


def write_together(peers: Peers, folder: Path, content: Checkpoint) -> list[list[dict[str, Any]]]:
    """Write this rank's shard into a folder, except the first one; return the entries of all other ranks.

    Raises:
        OutputError: on all ranks, if one of them could not write its shard.
    """
    written, failure = list[dict[str, Any]](), None
    if not peers.is_first:
        try:
            written = write_shard(folder, peers.rank, content.rows)
        except OSError as error:
            failure = str(write_failed(folder.with_name(folder.name.partition(".tmp-")[0]), error))
    results = peers.rows.gather_facts([failure, written], "shards")
    for rank, (failure_of_rank, _) in enumerate(results):
        if failure_of_rank is not None:
            raise OutputError(f"{peers.names[rank]}: {failure_of_rank}")
    return [entries for _, entries in results[1:]]


def checkpoints_of(
    directory: Path, peers: Peers | None, *, keep: int, damaged: Collection[Path] = ()
) -> Checkpoints | Shards:
    """The checkpoints of a run in the first rank's `directory`."""
    if peers is None or peers.size == 1:
        return Checkpoints(directory, keep=keep, damaged=damaged)
    if not peers.is_first:
        return Shards(directory, peers)

    def write_others(folder: Path | None, content: Checkpoint) -> Sequence[Sequence[dict[str, Any]]]:
        peers.rows.gather_facts(None if folder is None else folder.name, "folder")
        return () if folder is None else write_together(peers, folder, content)

    return Checkpoints(directory, keep=keep, damaged=damaged, write_others=write_others)


def path_of_first(directory: Path, peers: Peers) -> Path:
    """The first rank's directory."""
    return Path(peers.rows.gather_facts(str(directory.absolute()), "directory")[0])


def require_shared_directory(path: Path, peers: Peers) -> None:
    """Raise OutputError on all ranks, before training, unless all see the first rank's directory `path`."""
    seen = peers.rows.gather_facts((path / LOCK).is_file(), "directory")
    if not all(seen):
        blind = ", ".join(peers.names[rank] for rank, sees in enumerate(seen) if not sees)
        raise OutputError(
            f"expected run directory {path} of {peers.names[0]} on all ranks, got none on {blind}: every rank writes "
            "its rows there. Use --out on a shared file system, or --set save=false"
        )


def _load_together(path: Path, peers: Peers) -> Checkpoint:
    """Load a checkpoint, with this rank's shard or all; raise CheckpointError if it is damaged for any rank."""
    checkpoint, wrong = None, None
    try:
        shards = lambda number: [peers.rank] if number == peers.size else range(number)  # noqa: E731
        checkpoint = load_checkpoint(path, shards=shards)
    except CheckpointError as error:
        wrong = str(error)
    for rank, text in enumerate(peers.rows.gather_facts(wrong, "checkpoint")):
        if text is not None:
            raise CheckpointError(wrong or f"{peers.names[rank]}: {text}")
    assert checkpoint is not None
    return checkpoint


def load_whole_together(directory: Path, peers: Peers) -> tuple[Path, Checkpoint, dict[Path, str]]:
    """`load_whole` on all ranks."""
    names = [path.name for path in newest_first(directory)] if peers.is_first else []
    return load_whole(directory, peers.rows.gather_facts(names, "names")[0], partial(_load_together, peers=peers))
