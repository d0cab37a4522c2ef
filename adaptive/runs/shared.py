"""What training and evaluating a run share."""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from adaptive.build import Parts
from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.evaluation import Evaluation


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
