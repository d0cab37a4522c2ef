"""A run that begins with the weights of another one: `--init-from`, a day later on other data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.config import TrainConfig
from adaptive.data.rows.vocabularies import stored_tables
from adaptive.errors import CheckpointError, ConfigError
from adaptive.models.options import OPTIONS
from adaptive.storage.arrays import Stored, whole
from adaptive.storage.checkpoint import Checkpoint
from adaptive.storage.run_checkpoints import load_best
from adaptive.storage.run_directory import read_record
from adaptive.training.build import Components
from adaptive.training.runs.record import config_of
from adaptive.training.runs.state import check_dense, load_optimizer_arrays

VOCABULARY = "vocabulary"


def with_known_ids(config: TrainConfig) -> TrainConfig:
    """The settings by which data are opened: the vocabulary of the run to begin with, if it fitted one, grows."""
    if config.init_from is None:
        return config
    read_record(Path(config.init_from))  # or else there is no run
    folder = Path(config.init_from) / VOCABULARY
    if not folder.is_dir() or config.data_options.get("vocabulary_path") is not None:
        return config
    return config.model_copy(update={"data_options": {"vocabulary_from": str(folder), **config.data_options}})


def begin_with(components: Components, config: TrainConfig) -> None:
    """Give new components the weights that `config.init_from` says: its best ones where it kept these. What it knew of
    look-ups is known; watched rows and the policy begin anew.

    Raises:
        CheckpointError: if there is no such run, or it is of other tables, another model or another optimizer.
        ConfigError: if its seed is another.
    """
    if config.init_from is None:
        return
    path = Path(config.init_from)
    before = config_of(read_record(path), path)
    if before.seed != config.seed:
        raise ConfigError(
            f"init_from={path}: rows that were never trained follow from the seed, which was {before.seed} there and "
            f"is {config.seed} here: set --seed {before.seed}"
        )
    if before.model != config.model and not {before.model, config.model}.isdisjoint(OPTIONS):
        raise CheckpointError(
            f"init_from: {path} has model {before.model}, this run has {config.model}. Set --model {before.model}, or "
            "leave out --init-from"
        )
    where, checkpoint = load_best(path)
    last = _check_tables(components, checkpoint, path)
    try:
        arrays = _rows(components, checkpoint, keep_state=config.init_optimizer)
        check_dense(components.model, checkpoint.dense)
        components.embeddings.load_state_arrays(arrays, grow=True, last=last)
        components.model.load_state_dict(checkpoint.dense)
        if config.init_optimizer:
            load_optimizer_arrays(components.optimizer, checkpoint.optimizer)
    except (CheckpointError, ValueError, KeyError, TypeError, RuntimeError) as error:
        what = _difference(before, config) or f"saved for another model or optimizer: {error}"
        raise CheckpointError(f"init_from: {where}: {what}") from error


def _difference(before: TrainConfig, config: TrainConfig) -> str:
    """The settings that keep weights of `before` from fitting `config`, and what to change; or nothing."""
    old, new = before.model_options, config.model_options
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    if names:
        texts = [f"model.{name} is {old.get(name, 'not set')} there, {new.get(name, 'not set')} here" for name in names]
        return f"{'; '.join(texts)}. Set them as they are there, or leave out --init-from"
    rows, dense = (
        (before.optimizer.name, config.optimizer.name),
        (before.dense_optimizer.name, config.dense_optimizer.name),
    )
    pairs = {"optimizer": rows, "dense_optimizer": dense}
    texts = [f"{name} is {there} there, {here} here" for name, (there, here) in pairs.items() if there != here]
    if texts and config.init_optimizer:
        return f"{'; '.join(texts)}. With --set init_optimizer=false optimizers begin again"
    return ""


def _check_tables(components: Components, checkpoint: Checkpoint, path: Path) -> dict[str, int]:
    """Table -> its last rows, for ids that no vocabulary has, where the run fitted one; tables are the same, or larger.

    Raises:
        CheckpointError: if they are not.
    """
    tables = {table.name: table for table in components.tables}
    saved = {str(one["name"]): one for one in checkpoint.meta.get("tables", [])}
    if list(saved) != list(tables):
        raise CheckpointError(f"init_from={path}: its tables are {', '.join(saved)}, those here {', '.join(tables)}")
    vocabularies = stored_tables(path / VOCABULARY) if (path / VOCABULARY).is_dir() else {}
    last = {}
    for name, one in saved.items():
        here, rows = tables[name], int(one["num_embeddings"])
        if here.embedding_dim != one["embedding_dim"] or here.num_embeddings < rows:
            raise CheckpointError(
                f"init_from={path}: table {name} has {rows:,} rows of width {one['embedding_dim']} there, "
                f"{here.num_embeddings:,} of width {here.embedding_dim} here: needed are the same width and as many "
                f"rows or more"
            )
        if name in vocabularies:
            last[name] = rows - vocabularies[name]
    return last


def _rows(components: Components, checkpoint: Checkpoint, *, keep_state: bool) -> dict[str, NDArray[Any] | Stored]:
    """The saved rows without what belongs to the other run alone: its rate, and rows that it watched."""
    rows: Mapping[str, NDArray[Any] | Stored] = checkpoint.rows
    found = {name: value for name, value in rows.items() if name != "rate" and ".watched." not in name}
    if keep_state:
        return found
    for number, (width, first) in enumerate(components.embeddings.state_shapes()):
        count = len(whole(found[f"rows{number}.changed"]))
        found[f"rows{number}.state"] = np.full((count, width), first, np.float32)
        found[f"rows{number}.first_state"] = np.array([first], np.float32)
    return found
