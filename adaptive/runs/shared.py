"""What training and evaluating a run share."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from adaptive.build import Parts
from adaptive.checkpoint import Checkpoint
from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.errors import CheckpointError, InputError
from adaptive.evaluation import Evaluation
from adaptive.telemetry.jsonl import plain


@contextlib.contextmanager
def torch_settings(config: TrainConfig) -> Iterator[None]:
    """Seed and deterministic switch for the time of a run; the caller's are back afterwards."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(config.seed)
        try:
            if config.deterministic:
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
                torch.use_deterministic_algorithms(True)
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def total_steps(config: TrainConfig, dataset: Dataset) -> int | None:
    """Steps of the whole run, or None where nobody knows before reading the data."""
    samples = dataset.num_train_samples()
    if samples is None:
        return config.steps
    return min(config.epochs * -(-samples // config.batch_size), config.steps or sys.maxsize)


def quality_numbers(found: Evaluation) -> dict[str, Any]:
    numbers = asdict(found)
    return {"auc_of": "evaluation", "eval_samples": numbers.pop("samples"), **numbers}


def table_rows(parts: Parts) -> dict[str, int]:
    return {table.name: table.num_embeddings for table in parts.tables}


def table_facts(parts: Parts) -> list[dict[str, Any]]:
    """What must be equal for saved rows to fit."""
    return [
        {"name": t.name, "num_embeddings": t.num_embeddings, "embedding_dim": t.embedding_dim} for t in parts.tables
    ]


def config_of(record: Mapping[str, Any], path: Path) -> TrainConfig:
    """The settings in the record of the run in directory `path`.

    Raises:
        CheckpointError: if they are none.
    """
    try:
        return TrainConfig.model_validate(record.get("config"))
    except ValidationError as error:
        raise CheckpointError(f"{path / 'run.json'}: config: {error.errors()[0]['msg']}") from error


def check_same_data(path: Path, record: Mapping[str, Any], dataset: Dataset) -> None:
    """
    Raises:
        InputError: if the data are not those of the run in directory `path`; says what differs.
    """
    recorded, found = record.get("data"), plain(dataset.fingerprint())
    if recorded == found:
        return
    recorded = recorded if isinstance(recorded, dict) else {}
    names = sorted(name for name in recorded.keys() | found.keys() if recorded.get(name) != found.get(name))
    differences = "; ".join(f"{name}: expected {recorded.get(name)}, found {found.get(name)}" for name in names)
    raise InputError(f"the data are not those of {path}: {differences}")


def restore_weights(parts: Parts, checkpoint: Checkpoint, *, where: Path) -> None:
    """Rows and dense weights.

    Raises:
        CheckpointError: if they are of other tables or another model.
    """
    if not isinstance(checkpoint.meta.get("steps"), int):
        raise CheckpointError(f"{where}: expected the number of steps trained, found {checkpoint.meta.get('steps')!r}")
    needed, found = table_facts(parts), checkpoint.meta.get("tables")
    if found != needed:
        raise CheckpointError(f"{where}: saved for other tables: expected {needed}, found {found}")
    try:
        parts.embeddings.load_state_arrays(checkpoint.rows)
        parts.model.load_state_dict(checkpoint.dense)
    except (ValueError, KeyError, IndexError, TypeError, RuntimeError) as error:  # torch: RuntimeError for shapes
        raise CheckpointError(f"{where}: saved for another model or optimizer: {error}") from error
