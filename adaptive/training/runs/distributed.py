"""Runs of several ranks: checkpoints, agreement of ranks, and stopping together."""

import contextlib
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch

from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.embeddings.ranks import ALONE, Ranks
from adaptive.embeddings.ranks.launch import is_rank
from adaptive.embeddings.ranks.torch_transport import TorchRanks, find_gpus, is_nccl_wanted
from adaptive.errors import ConfigError, OutputError
from adaptive.storage.checkpoint import Checkpoint, save_checkpoint
from adaptive.storage.durable import DISK, Disk, write_failed
from adaptive.storage.run_checkpoints import ONE_READER, Checkpoints, Readers
from adaptive.storage.run_directory import LOCK, RunDirectory
from adaptive.storage.shards import Part, pieces_of, write_parts
from adaptive.system import StopRequest
from adaptive.training.telemetry.record import RunTotals
from adaptive.training.telemetry.report import crossed_numbers

LATE_S: Final = 5.0  # seconds until a file that another machine wrote is visible on a shared file system


@contextlib.contextmanager
def launched_ranks(config: TrainConfig) -> Iterator[Ranks]:
    """The ranks that torchrun or `--ranks` started; else a single process."""
    if not is_rank():
        yield ALONE
        return
    settings = config.ranks
    ranks = TorchRanks(
        blocks=settings.blocks,
        gradients="sum",
        wire=settings.wire,
        timeout_s=settings.timeout_s,
        backend=settings.backend,
    )
    try:
        yield ranks
    finally:
        ranks.close()


@contextlib.contextmanager
def launched_readers(config: TrainConfig) -> Iterator[Ranks]:
    """`launched_ranks` for reading a run: one block per rank."""
    meeting = config.ranks.model_copy(update={"blocks": None, "wire": "fp32"})
    with launched_ranks(config.model_copy(update={"ranks": meeting})) as ranks:
        yield ranks


def refuse_unsupported(config: TrainConfig, ranks: Ranks) -> None:
    """Raise ConfigError for settings that ranks do not support, or blocks without ranks."""
    if not ranks.is_local:
        refuse_unsupported_by_ranks(config)
    elif config.ranks.blocks is not None:
        raise ConfigError(f"expected ranks.blocks=null without ranks, got {config.ranks.blocks}. Add --ranks 1 or more")


def refuse_unsupported_by_ranks(config: TrainConfig) -> None:
    """Raise ConfigError for NCCL on a machine without it."""
    is_nccl_wanted(config.ranks.backend, find_gpus())


def facts_of(config: TrainConfig, dataset: Dataset) -> dict[str, object]:
    """Facts that must be equal on all ranks."""
    settings = config.model_dump(mode="json", exclude={"out"})  # only rank 0 uses it
    return {"settings": settings, "data": dataset.fingerprint(), "versions": versions()}


def versions() -> dict[str, str]:
    """Versions of the packages that affect numbers."""
    return {"adaptive-train": version("adaptive-train"), "torch": torch.__version__}


@contextlib.contextmanager
def reporting_errors(ranks: Ranks) -> Iterator[None]:
    """Report an error inside to the other ranks, which raise at their next exchange."""
    try:
        yield
    except Exception as error:
        ranks.report(ranks.rows, error)
        raise


def directory_of(ranks: Ranks, run_directory: Callable[[], RunDirectory]) -> AbstractContextManager[RunDirectory]:
    """The run directory on rank 0, a temporary one on other ranks."""
    return run_directory() if ranks.is_first else _scratch_directory()


@contextlib.contextmanager
def _scratch_directory() -> Iterator[RunDirectory]:
    with (
        tempfile.TemporaryDirectory(prefix="adaptive-rank-") as folder,
        RunDirectory(Path(folder) / "run") as directory,
    ):
        yield directory


def ranks_summary(ranks: Ranks, totals: RunTotals, *, full: bool) -> dict[str, float | None]:
    """The summary of all ranks. `full`: the hot set of this rank is full."""
    is_full = any(ranks.gather_facts(full))
    hosts = {place.partition(",")[0] for place in ranks.places}
    numbers = crossed_numbers(totals.ranks, totals.ranks_steps)
    step_ms = 1e3 * totals.seconds / totals.steps if totals.steps and totals.seconds else 0.0
    waited = min(numbers["waited_for_slowest_ms"] / step_ms, 1.0) if numbers and step_ms else None
    summary = {"number": ranks.size, "hosts": len(hosts), "blocks": ranks.blocks, **numbers, "waited_share": waited}
    return {**summary, "full_hot_set": is_full and ranks.size > 1}


class AgreedStop(StopRequest):
    """A signal to one rank that stops all ranks after the same step."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    @property
    def signal(self) -> int | None:
        return self._ranks.rows.agreed or None

    @signal.setter
    def signal(self, number: int | None) -> None:
        self._ranks.rows.heard = number or 0


class CheckpointsOfRanks(Checkpoints):
    """Checkpoints of several ranks: each writes a shard, rank 0 also the rest.

    All ranks call the same methods together. A method succeeds on all ranks or fails on all.

    Args:
        directory: of the run, as all ranks see it.
    """

    def __init__(
        self, directory: Path, ranks: Ranks, *, keep: int, damaged: Collection[Path], disk: Disk = DISK
    ) -> None:
        super().__init__(directory, keep=keep, damaged=damaged, disk=disk)
        self._ranks = ranks

    def _save(self, name: str, content: Checkpoint) -> Path:
        path, ranks = self._directory / name, self._ranks
        if not ranks.is_first:
            if (folder := ranks.gather_facts(None)[0]) is not None:
                self._write_shard(path.with_name(folder), path, content.parts)
        elif self._is_needed(path):

            def write_shards(folder: Path, parts: Mapping[str, Part], disk: Disk) -> list[list[dict[str, Any]]]:
                ranks.gather_facts(folder.name)
                return self._write_shard(folder, path, parts)

            save_checkpoint(path, content, write_shards=write_shards, disk=self._disk)
        else:
            ranks.gather_facts(None)
        ranks.gather_facts("saved")
        return path

    def _write_shard(self, folder: Path, path: Path, parts: Mapping[str, Part]) -> list[list[dict[str, Any]]]:
        """Write the shard of this rank; return the manifest's entries for the shards of all ranks.

        Raises:
            OutputError: on all ranks, if one of them could not write its shard.
        """
        written, failure = [], None
        try:
            written = write_parts(folder, self._ranks.rank, parts, self._disk)
        except OSError as error:
            failure = str(write_failed(path, error))
        results = self._ranks.gather_facts([failure, written])
        if failure is not None:
            raise OutputError(failure)
        for rank, (failure_of_rank, _) in enumerate(results):
            if failure_of_rank is not None:
                raise OutputError(f"{self._ranks.name_of(rank)}: {failure_of_rank}")
        return [shard for _, shard in results]

    def _remove_others(self, latest: Sequence[Path], kind: re.Pattern[str]) -> None:
        if self._ranks.is_first:
            super()._remove_others(latest, kind)

    def finish(self, number: int, content: Checkpoint) -> None:
        if self._ranks.is_first:
            super().finish(number, content)
        else:
            self._save(f"checkpoint-{number}", content)
        self._ranks.gather_facts("finished")


def checkpoints_of(directory: Path, ranks: Ranks, *, keep: int, damaged: Collection[Path] = ()) -> Checkpoints:
    """Checkpoints of the run in rank 0's `directory`."""
    if ranks.size == 1:
        return Checkpoints(directory, keep=keep, damaged=damaged)
    return CheckpointsOfRanks(_of_first(directory, ranks), ranks, keep=keep, damaged=damaged)


def _of_first(directory: Path, ranks: Ranks) -> Path:
    return Path(ranks.gather_facts(str(directory.absolute()))[0])


def require_shared_directory(directory: Path, ranks: Ranks) -> None:
    """Raise OutputError on all ranks unless all see the directory of rank 0, by its lock."""
    if ranks.size == 1:
        return
    path = _of_first(directory, ranks)
    holder = ranks.gather_facts((path / LOCK).read_text() if ranks.is_first else None)[0]
    seen = ranks.gather_facts(_sees(path / LOCK, holder))
    if not all(seen):
        blind = ", ".join(ranks.name_of(rank) for rank, sees in enumerate(seen) if not sees)
        raise OutputError(
            f"expected run directory {path} of {ranks.name_of(0)} on all ranks, got none on {blind}: every rank writes "
            "its rows there. Use --out on a shared file system, or --set save=false"
        )


def _sees(file: Path, text: str) -> bool:
    """Return True if the file has this text within `LATE_S` seconds."""
    until = time.monotonic() + LATE_S
    while True:
        with contextlib.suppress(OSError, ValueError):
            if file.read_text() == text:
                return True
        if time.monotonic() > until:
            return False
        time.sleep(0.1)


class ReadersOfRanks(Readers):
    """Ranks that read a checkpoint together, each only the pieces of shards with its rows."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.pieces = pieces_of(ranks.rank, ranks.size)

    def of_first(self, name: str) -> str:
        return str(self._ranks.gather_facts(name)[0])

    def first_wrong(self, wrong: str | None) -> str | None:
        texts = enumerate(self._ranks.gather_facts(wrong))
        return next((f"{self._ranks.name_of(rank)}: {text}" for rank, text in texts if text is not None), None)


def readers_of(ranks: Ranks) -> Readers:
    return ONE_READER if ranks.size == 1 else ReadersOfRanks(ranks)
