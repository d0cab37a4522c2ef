"""A run of several ranks: who writes, what must be equal, and when all of them stop."""

import contextlib
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.errors import ConfigError
from adaptive.ranks import Ranks
from adaptive.ranks.gpus import gpus_here, wants_nccl
from adaptive.ranks.launch import is_rank
from adaptive.ranks.torch_transport import TorchRanks
from adaptive.storage.arrays import Blocks
from adaptive.storage.run_checkpoints import Checkpoints
from adaptive.storage.run_directory import RunDirectory
from adaptive.system import StopRequest
from adaptive.telemetry.crossing import crossed_numbers
from adaptive.telemetry.report import RunTotals


@contextlib.contextmanager
def these_ranks(config: TrainConfig) -> Iterator[Ranks | None]:
    """This process among those that torchrun, or `--ranks`, has started; None: it is alone."""
    if not is_rank():
        yield None
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
def reading_ranks(config: TrainConfig) -> Iterator[Ranks]:
    """`these_ranks` of a process that is one, to read a run: whole batches in turn, so a block for each rank."""
    meeting = config.ranks.model_copy(update={"blocks": None, "wire": "fp32"})
    with these_ranks(config.model_copy(update={"ranks": meeting})) as ranks:
        assert ranks is not None
        yield ranks


def refuse_alone(config: TrainConfig, ranks: Ranks | None) -> None:
    """Refuse what ranks cannot do, and blocks without ranks.

    Raises:
        ConfigError: as `refuse_by_settings`, or for blocks that nobody would cut.
    """
    if ranks is None and config.ranks.blocks is not None:
        raise ConfigError(f"ranks.blocks={config.ranks.blocks} is for runs of ranks; add --ranks 1, or more")
    if ranks is not None:
        refuse_by_settings(config)


def refuse_by_settings(config: TrainConfig) -> None:
    """Refuse what several ranks cannot do, by the settings alone.

    Raises:
        ConfigError: for a guard, or NCCL where it cannot be.
    """
    wants_nccl(config.ranks.backend, gpus_here())
    if config.guard is not None:
        raise ConfigError(
            "guard: several ranks cannot be guarded yet, since the guard's copy of the run would be one process's; set "
            "guard=null, or train in one process"
        )


def facts_of(config: TrainConfig, dataset: Dataset) -> dict[str, Any]:
    """What must be equal on all ranks."""
    settings = config.model_dump(mode="json")
    for key in ("out",):  # rank 0's counts
        settings.pop(key, None)
    return {"settings": settings, "data": dataset.fingerprint(), "versions": versions()}


def versions() -> dict[str, str]:
    """Of what computes."""
    return {"adaptive-train": version("adaptive-train"), "torch": torch.__version__}


@contextlib.contextmanager
def telling(ranks: Ranks | None) -> Iterator[None]:
    """An error inside is told to the other ranks, in the place of their next exchange."""
    try:
        yield
    except Exception as error:
        if ranks is not None:
            ranks.tell(ranks.rows, error)
        raise


def directory_of(
    ranks: Ranks | None, run_directory: Callable[[], RunDirectory]
) -> AbstractContextManager[RunDirectory]:
    """The run's own on rank 0, of others one that is gone with the process. Call it where errors are told."""
    return run_directory() if ranks is None or ranks.is_first else _scratch_directory()


@contextlib.contextmanager
def _scratch_directory() -> Iterator[RunDirectory]:
    with tempfile.TemporaryDirectory(prefix="adaptive-rank-") as folder, RunDirectory(Path(folder) / "run") as found:
        yield found


def ranks_summary(ranks: Ranks | None, totals: RunTotals, *, full: bool) -> dict[str, Any]:
    """What a report says of several ranks, which call it together; nothing of a process alone. `full`: the set of
    watched rows is, on this rank."""
    if ranks is None:
        return {}
    is_full = any(ranks.gather_facts(full))
    hosts = {place.partition(",")[0] for place in ranks.places}
    numbers = crossed_numbers(totals.ranks, totals.ranks_steps)
    found: dict[str, Any] = {"number": ranks.size, "hosts": len(hosts), "blocks": ranks.blocks, **numbers}
    step_ms = 1e3 * totals.seconds / totals.steps if totals.steps and totals.seconds else 0.0
    waited = min(numbers["waited_for_slowest_ms"] / step_ms, 1.0) if numbers and step_ms else None
    return {"ranks": {**found, "waited_share": waited, "full_hot_set": is_full and ranks.size > 1}}


class AgreedStop(StopRequest):
    """A signal that one rank hears, known to all of them at the same exchange: so all stop after the same step."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    @property
    def signal(self) -> int | None:
        return self._ranks.rows.agreed or None

    @signal.setter
    def signal(self, number: int | None) -> None:
        self._ranks.rows.heard = number or 0


def agreed_stop(ranks: Ranks | None) -> StopRequest | None:
    return None if ranks is None else AgreedStop(ranks)


class CheckpointsOfRanks(Checkpoints):
    """Rank 0 writes; the others give it their rows, block by block, and write nothing."""

    def __init__(self, directory: Path, ranks: Ranks, *, keep: int, damaged: Collection[Path]) -> None:
        super().__init__(directory, keep=keep, damaged=damaged)
        self._ranks = ranks

    def _save(self, name: str, content: Mapping[str, Any]) -> Path:
        path = self._directory / name
        is_there = path.exists() and path not in self._damaged
        if self._ranks.is_first:
            self._ranks.gather_facts(is_there)
            return super()._save(name, content)
        if not self._ranks.gather_facts(None)[0]:
            for value in content["rows"].values():
                if isinstance(value, Blocks):
                    for _ in value.make():
                        pass
        return path

    def finish(self, number: int, content: Mapping[str, Any]) -> None:
        if self._ranks.is_first:
            super().finish(number, content)
        else:
            self._save(f"checkpoint-{number}", content)
        self._ranks.gather_facts("saved")


def checkpoints_of(directory: Path, ranks: Ranks | None, *, keep: int, damaged: Collection[Path] = ()) -> Checkpoints:
    if ranks is None or ranks.size == 1:
        return Checkpoints(directory, keep=keep, damaged=damaged)
    return CheckpointsOfRanks(directory, ranks, keep=keep, damaged=damaged)
