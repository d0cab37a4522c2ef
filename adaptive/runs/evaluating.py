"""Evaluate a saved run again."""

import contextlib
from pathlib import Path
from typing import Any, TextIO

from adaptive.build import build, open_data, torch_settings
from adaptive.config import TrainConfig
from adaptive.errors import InputError
from adaptive.evaluation import evaluate
from adaptive.runs.record import check_same_data, config_of
from adaptive.runs.run import quality_numbers
from adaptive.runs.state import restore_weights
from adaptive.storage.run_checkpoints import load_newest
from adaptive.storage.run_directory import read_record
from adaptive.telemetry.progress import Progress
from adaptive.telemetry.recorder import evaluation_record
from adaptive.telemetry.report import SCHEMA


def evaluate_run(run_directory: Path | str, *, stream: TextIO | None = None) -> dict[str, Any]:
    """Evaluate the saved weights of a run on its evaluation data: the numbers its summary has, to the last digit. Of a
    run that was cut short, or is under way, the newest checkpoint is evaluated.

    Raises:
        CheckpointError: if the run or its weights are missing or damaged.
        InputError: if the data are not those of the run, or have no evaluation part.
    """
    path = Path(run_directory)
    record = read_record(path)
    config = config_of(record, path)
    where, checkpoint = load_newest(path)
    dataset = open_data(_with_vocabulary(config, path / "vocabulary"))
    check_same_data(path, record, dataset)
    with torch_settings(config):
        components = build(_for_reading(config), dataset)
        with components.embeddings:
            restore_weights(components, checkpoint, where=where)
            batches = dataset.evaluation(config.eval_batch_size)
            found = evaluate(components.embeddings, components.model, batches)
    if not found.samples:
        raise InputError(f"the data of {path} ({config.data}) have no evaluation part")
    steps = checkpoint.meta["steps"]
    if stream is not None:
        with contextlib.closing(Progress(stream, steps)) as progress:
            progress.write(evaluation_record(found, steps))
    return {"schema": SCHEMA, "run_dir": str(path), "policy": config.policy, "steps": steps, **quality_numbers(found)}


def _with_vocabulary(config: TrainConfig, folder: Path) -> TrainConfig:
    """The settings with the run's own vocabulary, if it fitted one, so that categories are mapped as in the run."""
    if not folder.is_dir():
        return config
    return config.model_copy(update={"data_options": {"vocabulary_path": folder, **config.data_options}})


def _for_reading(config: TrainConfig) -> TrainConfig:
    """The settings for reading rows only: all on the host, and the code of the run's policy is not loaded."""
    tier = config.tier.model_copy(update={"device_rows": "auto", "host": "memory"})
    return config.model_copy(update={"policy": "hybrid", "policy_options": {}, "skip": None, "tier": tier})
