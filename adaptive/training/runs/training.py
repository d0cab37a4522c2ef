"""Train a run in its directory, from scratch or from another run's weights, or say what it would take."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NotRequired, TextIO, TypedDict

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.config import TrainConfig
from adaptive.data.rows.vocabularies import stored_tables
from adaptive.embeddings.planning.access_log import Trace
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.planning.lookups import DistinctFinder
from adaptive.embeddings.ranks import ALONE, Ranks
from adaptive.errors import CheckpointError, ConfigError, DeviceMemoryError
from adaptive.models.model_settings import OPTIONS
from adaptive.models.paper_presets import PRESETS
from adaptive.models.tasks import start_at_base_rate
from adaptive.policy import arranges
from adaptive.storage.arrays import Stored, whole
from adaptive.storage.checkpoint import Checkpoint
from adaptive.storage.run_checkpoints import load_best
from adaptive.storage.run_directory import RunDirectory, read_record
from adaptive.training.components import (
    Components,
    ComponentsOutline,
    build,
    first_batches,
    open_data,
    outline,
    prepare,
    torch_settings,
)
from adaptive.training.runs.distributed import directory_of, facts_of, refuse_alone, refuse_unseen, reporting_errors
from adaptive.training.runs.goals import refuse_unreachable
from adaptive.training.runs.run import Run, total_steps
from adaptive.training.runs.run_record import config_of, where_and_what
from adaptive.training.runs.state import check_dense, load_optimizer_arrays, refuse_guarded_saves
from adaptive.training.telemetry.loggers import load_loggers
from adaptive.training.telemetry.report import SCHEMA, RunSummary


def rows_in_flight(config: TrainConfig, components: ComponentsOutline, batches: Sequence[Batch]) -> int:
    """Device rows that hold what these batches ask for, each beside the `depth` before it."""
    most = 0
    for group in make_groups(components.tables, config.seed):
        finder = DistinctFinder(group)
        rows = [finder.find(batch).rows.copy() for batch in batches]
        seen = np.unique(np.concatenate([np.empty(0, np.int64), *rows]))  # memory by rows seen, not by rows there are
        trace = Trace(len(seen))
        for rows_of_batch in rows:
            trace.add(np.searchsorted(seen, rows_of_batch))
        most += trace.most_held(config.depth)
    return most


def refuse_too_few(config: TrainConfig, components: ComponentsOutline, batches: Sequence[Batch], needed: int) -> None:
    """Say what a run would say within its first batches. A policy that arranges its inputs has batches of its own.

    Raises:
        DeviceMemoryError: if rows are fetched ahead and more are needed than the device tier has room for.
    """
    embeddings = components.embeddings
    room, policy = embeddings.device_rows, embeddings.policy
    may_do = arranges(policy) or policy.misses == "host" or config.tier.when_full == "reduce_lookahead"
    if may_do or needed <= room:
        return
    raise DeviceMemoryError(
        f"{needed:,} device rows are needed to hold the rows of {config.depth + 1} of the first {len(batches)} "
        f"batches, {room:,} are there: raise device_rows to at least {needed}, or lower the batch size, or lower "
        f"depth (now {config.depth}), or set tier.when_full=reduce_lookahead; adaptive-train simulate tells what all "
        "batches need"
    )


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
        components.embeddings.rows.load_state_arrays(arrays, grow=True, last=last)
        components.model.load_state_dict(checkpoint.dense)
        if config.init_optimizer:
            load_optimizer_arrays(components.optimizer, checkpoint.optimizer)
    except (CheckpointError, ValueError, KeyError, TypeError, RuntimeError) as error:
        what = _difference(before, config) or f"saved for another model or optimizer: {error}"
        raise CheckpointError(f"init_from: {where}: {what}") from error


_OPTIMIZERS: Final = ("optimizer", "dense_optimizer")


def _difference(before: TrainConfig, config: TrainConfig) -> str:
    """The settings that keep weights of `before` from fitting `config`, and what to change; or nothing."""
    old, new = before.model_options, config.model_options
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    if names:
        texts = [f"model.{name} is {old.get(name, 'not set')} there, {new.get(name, 'not set')} here" for name in names]
        return f"{'; '.join(texts)}. Set them as they are there, or leave out --init-from"
    optimizers = [(name, getattr(before, name).name, getattr(config, name).name) for name in _OPTIMIZERS]
    texts = [
        f"{name} is {old_name} there, {new_name} here"
        for name, old_name, new_name in optimizers
        if old_name != new_name
    ]
    if texts and config.init_optimizer:
        return f"{'; '.join(texts)}. With --set init_optimizer=false optimizers begin again"
    return ""


def _check_tables(components: Components, checkpoint: Checkpoint, path: Path) -> dict[str, int]:
    """Table -> its last rows, for ids that no vocabulary has, where the run fitted one; tables are the same, or larger.

    Raises:
        CheckpointError: if they are not.
    """
    tables = {table.name: table for table in components.tables}
    saved = {str(table["name"]): table for table in checkpoint.meta.get("tables", [])}
    if list(saved) != list(tables):
        raise CheckpointError(f"init_from={path}: its tables are {', '.join(saved)}, those here {', '.join(tables)}")
    vocabularies = stored_tables(path / VOCABULARY) if (path / VOCABULARY).is_dir() else {}
    last = {}
    for name, facts in saved.items():
        table, rows, width = tables[name], int(facts["num_embeddings"]), facts["embedding_dim"]
        if table.embedding_dim != width or table.num_embeddings < rows:
            raise CheckpointError(
                f"init_from={path}: table {name} has {rows:,} rows of width {width} there, {table.num_embeddings:,} of "
                f"width {table.embedding_dim} here: needed are the same width and as many rows or more"
            )
        if name in vocabularies:
            last[name] = rows - vocabularies[name]
    return last


def _rows(components: Components, checkpoint: Checkpoint, *, keep_state: bool) -> dict[str, NDArray[Any] | Stored]:
    """The saved rows without what belongs to the other run alone: its rate, and rows that it watched."""
    rows: Mapping[str, NDArray[Any] | Stored] = checkpoint.rows
    arrays = {name: value for name, value in rows.items() if name != "rate" and ".watched." not in name}
    if keep_state:
        return arrays
    for number, lane in enumerate(components.embeddings.runtime.pipeline.lanes):
        count, first = len(whole(arrays[f"rows{number}.changed"])), lane.host.first_state
        arrays[f"rows{number}.state"] = np.full((count, lane.host.state.shape[1]), first, np.float32)
        arrays[f"rows{number}.first_state"] = np.array([first], np.float32)
    return arrays


def train_run(
    config: TrainConfig,
    *,
    overwrite: bool = False,
    force_unlock: bool = False,
    stream: TextIO | None = None,
    keep_scores: bool = False,
    ranks: Ranks = ALONE,
) -> RunSummary:
    """Train as `config` says, in a run directory; returns the summary, and as `table` its text for people.

    On SIGTERM, SIGINT or SIGHUP the step is finished (under a policy that skips, defers or arranges: the batches on
    their way), weights are saved, and `SystemExit` with 143, 130 or 129 is raised; `resume_run` goes on from there.

    Args:
        config: the whole of it goes into `run.json`.
        overwrite: replace the run in a directory that is not empty.
        force_unlock: also if a process of another machine or container, which is gone, seems to hold the directory.
        stream: where progress is shown, usually stderr.
        ranks: that train this run together, each in a call of its own; rank 0 writes the directory.
        keep_scores: keep logits and labels of the latest evaluation in the directory (`write_scores`).

    Raises:
        AdaptiveError: see the classes in `adaptive.errors`.
    """
    opened = partial(_run_directory, config, overwrite, force_unlock)
    with reporting_errors(ranks), torch_settings(config):
        load_loggers(config.log_to)  # what is missing is told before there is a directory
        refuse_alone(config, ranks)
        with directory_of(ranks, opened) as directory:
            if config.save:
                refuse_unseen(directory.path, ranks)
            return _train_in(directory, config, stream, keep_scores, ranks)


def _train_in(
    directory: RunDirectory, config: TrainConfig, stream: TextIO | None, keep_scores: bool, ranks: Ranks
) -> RunSummary:
    dataset = open_data(with_known_ids(config), directory.path)
    sample = first_batches(config, dataset)
    ranks.require_equal(lambda: facts_of(config, dataset))
    components = build(config, dataset, sample, ranks)
    with components.embeddings:
        refuse_guarded_saves(config, components)
        refuse_unreachable(config, components, dataset)
        start_at_base_rate(components.model, dataset.train(config.batch_size))
        begin_with(components, config)
        components.embeddings.calibrate(prepare([components.embeddings.policy], config, dataset))
        directory.begin(
            config=config.model_dump(mode="json"),
            data=dataset.fingerprint(),
            **where_and_what(dataset),
            device=str(components.embeddings.device),
            **({"ranks": places} if (places := ranks.places) else {}),
        )
        return Run(config, directory, dataset, components, stream).train(keep_scores=keep_scores)


class PresetSource(TypedDict):
    """Where the shape of a preset comes from."""

    name: str
    source: str
    published_tables: str
    ours: str


class RunPlan(TypedDict):
    """What a run would take."""

    schema: int
    dry_run: bool
    policy: str
    preset: NotRequired[PresetSource]
    device: str
    tables: int
    rows: int
    device_rows: int
    device_rows_why: str
    first_batches_need: int
    memory_bytes: Mapping[str, int]
    dense_parameters: int
    samples: int | None
    steps: int | None


def plan_run(config: TrainConfig) -> RunPlan:
    """What `train_run` would take: memory, device rows, steps. Writes nothing, and takes no memory for rows."""
    dataset = open_data(with_known_ids(config))
    sample = first_batches(config, dataset)
    components = outline(config, dataset, sample)
    embeddings = components.embeddings
    refuse_guarded_saves(config, components)
    refuse_unreachable(config, components, dataset)
    needed = rows_in_flight(config, components, sample)
    refuse_too_few(config, components, sample, needed)
    plan: RunPlan = {
        "schema": SCHEMA,
        "dry_run": True,
        "policy": config.policy,
        "device": str(embeddings.device),
        "tables": len(components.tables),
        "rows": embeddings.num_rows,
        "device_rows": embeddings.device_rows,
        "device_rows_why": embeddings.sizes.text,
        "first_batches_need": needed,
        "memory_bytes": embeddings.memory(),
        "dense_parameters": components.dense_parameters,
        "samples": dataset.num_train_samples(),
        "steps": total_steps(config, dataset),
    }
    if preset := PRESETS.get(config.preset or ""):
        source, published, ours = preset.source, preset.published_tables, preset.ours
        plan["preset"] = {"name": str(config.preset), "source": source, "published_tables": published, "ours": ours}
    return plan


def _run_directory(config: TrainConfig, overwrite: bool, force_unlock: bool) -> RunDirectory:
    if config.out is None:
        return RunDirectory.named_after(config.policy)
    return RunDirectory(Path(config.out), overwrite=overwrite, force_unlock=force_unlock)
