"""Evaluate a saved run again."""

import contextlib
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from adaptive.build import Parts, build, open_data
from adaptive.checkpoint import Checkpoint, load_checkpoint
from adaptive.config import TrainConfig
from adaptive.errors import CheckpointError, InputError
from adaptive.evaluation import evaluate
from adaptive.rundir import read_record
from adaptive.runs.shared import quality_numbers, table_facts, torch_settings
from adaptive.telemetry.jsonl import plain
from adaptive.telemetry.progress import Progress
from adaptive.telemetry.record import EvalRecord
from adaptive.telemetry.report import SCHEMA


def evaluate_run(run_directory: Path | str, *, stream: TextIO | None = None) -> dict[str, Any]:
    """Evaluate the saved weights of a run on its evaluation data: the numbers its summary has, to the last digit.

    Raises:
        CheckpointError: if the run or its weights are missing or damaged.
        InputError: if the data are not those of the run, or have no evaluation part.
    """
    path = Path(run_directory)
    record = read_record(path)
    try:
        config = TrainConfig.model_validate(record.get("config"))
    except ValidationError as error:
        raise CheckpointError(f"{path / 'run.json'}: config: {error.errors()[0]['msg']}") from error
    checkpoint = load_checkpoint(path / "weights")
    dataset = open_data(_with_vocabulary(config, path / "vocabulary"))
    _check_same_data(path, record.get("data"), plain(dataset.fingerprint()))
    with torch_settings(config):
        parts = build(_for_reading(config), dataset)
        with parts.embeddings:
            _restore(parts, checkpoint, where=path / "weights")
            batches = dataset.evaluation(config.eval_batch_size)
            found = evaluate(parts.embeddings, parts.model, batches)
    if not found.samples:
        raise InputError(f"the data of {path} ({config.data}) have no evaluation part")
    steps = checkpoint.meta["steps"]
    if stream is not None:
        with contextlib.closing(Progress(stream, steps)) as progress:
            progress.write(EvalRecord(step=steps, samples=found.samples, auc=found.auc, log_loss=found.log_loss))
    return {"schema": SCHEMA, "run_dir": str(path), "policy": config.policy, "steps": steps, **quality_numbers(found)}


def _restore(parts: Parts, checkpoint: Checkpoint, *, where: Path) -> None:
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


def _with_vocabulary(config: TrainConfig, folder: Path) -> TrainConfig:
    """Categories are mapped as in the run, not fitted anew, if the run had a fitted vocabulary of its own."""
    if not folder.is_dir():
        return config
    return config.model_copy(update={"data_options": {"vocabulary_path": folder, **config.data_options}})


def _for_reading(config: TrainConfig) -> TrainConfig:
    """The settings with which rows are only read: all on the host, and no plug-in that a file names is run."""
    tier = config.tier.model_copy(update={"device_rows": "auto", "host": "memory"})
    return config.model_copy(update={"policy": "hybrid", "policy_options": {}, "skip": None, "tier": tier})


def _check_same_data(path: Path, recorded: Any, found: Any) -> None:
    if recorded == found:
        return
    recorded = recorded if isinstance(recorded, dict) else {}
    names = sorted(name for name in recorded.keys() | found.keys() if recorded.get(name) != found.get(name))
    differences = "; ".join(f"{name}: expected {recorded.get(name)}, found {found.get(name)}" for name in names)
    raise InputError(f"the data are not those of {path}: {differences}")
