"""Train a run from scratch or from another run's weights, or plan it."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from adaptive.config import TrainConfig
from adaptive.data.rows.vocabularies import load_vocabularies
from adaptive.distributed.peers import Peers
from adaptive.distributed.sharded_embedding_bag import ShardedEmbeddingBag
from adaptive.distributed.sharded_rows import regroup
from adaptive.embeddings.planning.layout import make_groups
from adaptive.errors import CheckpointError, ConfigError
from adaptive.models.loss import start_at_base_rate
from adaptive.models.model_settings import OPTIONS
from adaptive.storage.checkpoint import Checkpoint, load_best
from adaptive.storage.run_directory import RunDirectory, read_record
from adaptive.training.components import (
    Components,
    build,
    first_batches,
    open_data,
    prepare,
    size_components,
    torch_settings,
    total_steps,
)
from adaptive.training.runs.distributed import (
    directory_of,
    facts_of,
    reporting_errors,
)
from adaptive.training.runs.following import refuse_following
from adaptive.training.runs.rehearsal import rehearse
from adaptive.training.runs.run import Run, refuse_unreachable
from adaptive.training.runs.run_record import config_of, data_entries
from adaptive.training.runs.state import load_optimizer_arrays
from adaptive.training.telemetry.report import SCHEMA

VOCABULARY = "vocabulary"


def with_initial_vocabulary(config: TrainConfig) -> TrainConfig:
    """The settings for opening the data; with `init_from` its vocabulary grows."""
    if config.init_from is None:
        return config
    read_record(Path(config.init_from))  # raises if there is no run
    folder = Path(config.init_from) / VOCABULARY
    if not folder.is_dir() or config.data_options.get("vocabulary_path") is not None:
        return config
    return config.model_copy(update={"data_options": {"vocabulary_from": str(folder), **config.data_options}})


def load_initial_weights(components: Components, config: TrainConfig) -> None:
    """Load the weights of the run `init_from`, its best ones if it saved them.

    Counts of lookups are loaded too; hot rows and the policy start from scratch.

    Raises:
        CheckpointError: if there is no such run, or it has other tables, another model or another optimizer.
        ConfigError: if it has another seed, or tables are larger and several ranks load them.
    """
    if config.init_from is None:
        return
    path = Path(config.init_from)
    source = config_of(read_record(path), path)
    if source.seed != config.seed:
        raise ConfigError(
            f"expected seed {source.seed} as in {path}, got {config.seed} (init_from): rows that were never trained "
            f"follow from the seed. Set --seed {source.seed}"
        )
    if source.model != config.model and not {source.model, config.model}.isdisjoint(OPTIONS):
        raise CheckpointError(
            f"expected model {source.model} as in {path}, got {config.model} (init_from). Set --model {source.model}, "
            "or omit --init-from"
        )
    where, checkpoint = load_best(path)
    last = _check_tables(components, checkpoint, path)
    try:
        components.model.load_state_dict(checkpoint.dense)
        _load_rows(components, checkpoint, last, seed=config.seed)
        load_optimizer_arrays(components.optimizer, checkpoint.optimizer)
    except (CheckpointError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(
            f"expected weights of this model and optimizer, got others: {error} (init_from: {where}). Use the "
            "settings of that run, or omit --init-from"
        ) from error


def _check_tables(components: Components, checkpoint: Checkpoint, path: Path) -> dict[str, int]:
    """Return table -> number of rows behind its vocabulary; CheckpointError if it shrank."""
    tables = {table.name: table for table in components.tables}
    saved = {str(table["name"]): table for table in checkpoint.meta.get("tables", [])}
    if list(saved) != list(tables):
        raise CheckpointError(f"expected tables {', '.join(saved)} as in {path}, got {', '.join(tables)} (init_from)")
    vocabularies = load_vocabularies(path / VOCABULARY)
    last = {}
    for name, facts in saved.items():
        table, rows, width = tables[name], int(facts["num_embeddings"]), facts["embedding_dim"]
        if table.embedding_dim != width or table.num_embeddings < rows:
            raise CheckpointError(
                f"expected at least {rows:,} rows of width {width} as in {path}, got {table.num_embeddings:,} of width "
                f"{table.embedding_dim} (init_from, table {name!r})"
            )
        if table.num_embeddings > rows and isinstance(components.embeddings, ShardedEmbeddingBag):
            raise ConfigError(
                f"table {name!r}: expected {rows:,} rows as in {path}, got {table.num_embeddings:,}: several ranks do "
                "not load rows into larger tables (init_from). Run the first step in one process (--init-from ... "
                "--steps 1), then --resume it with --ranks"
            )
        if name in vocabularies:
            last[name] = rows - len(vocabularies[name].keys)
    return last


def _load_rows(components: Components, checkpoint: Checkpoint, last: Mapping[str, int], *, seed: int) -> None:
    """Load the saved rows without learning rate and hot rows of the other run."""
    embeddings = components.embeddings
    shards = [
        {name: value for name, value in rows.items() if name != "rate" and ".hot." not in name}
        for rows in checkpoint.shards
    ]
    if isinstance(embeddings, ShardedEmbeddingBag):
        embeddings.rows.load_shards(shards)
        return
    rows = shards[0]
    if len(shards) > 1:
        sizes = {str(table["name"]): int(table["num_embeddings"]) for table in checkpoint.meta["tables"]}
        saved = [table.model_copy(update={"num_embeddings": sizes[table.name]}) for table in components.tables]
        rows = regroup(shards, make_groups(saved, seed), 0, 1)
    embeddings.rows.load_state_arrays(rows, grow=True, last=last)


def train_run(
    config: TrainConfig,
    *,
    overwrite: bool = False,
    stream: TextIO | None = None,
    peers: Peers | None = None,
) -> dict[str, Any]:
    """Train a run in a run directory; return the summary, with its text as `table`.

    After SIGTERM, SIGINT or SIGHUP the current step is finished (under a policy that skips, defers or arranges: all
    batches in flight), weights are saved, and `SystemExit` with 143, 130 or 129 is raised. `resume_run` continues.

    Args:
        config: all settings; stored in `run.json`.
        overwrite: replace the run in a directory that is not empty.
        stream: for progress, usually stderr.
        peers: processes that train this run, each with its own call; rank 0 writes the directory.

    Raises:
        AdaptiveError: see the classes in `adaptive.errors`.
    """
    refuse_following(config, peers)
    opened = partial(_run_directory, config, overwrite)
    with reporting_errors(peers), torch_settings(config), directory_of(peers, opened) as directory:
        return _train_in(directory, config, stream, peers)


def _train_in(
    directory: RunDirectory, config: TrainConfig, stream: TextIO | None, peers: Peers | None
) -> dict[str, Any]:
    dataset = open_data(with_initial_vocabulary(config), directory.path)
    sample = first_batches(config, dataset)
    if peers is not None:
        peers.require_equal(facts_of(config, dataset))
    compile_s = rehearse(config, dataset, sample, stream) if peers is None else 0.0
    components = build(config, dataset, sample, peers)
    with components.embeddings:
        refuse_unreachable(config, dataset)
        start_at_base_rate(components.model, dataset.train(config.batch_size))
        load_initial_weights(components, config)
        components.embeddings.calibrate(prepare([components.embeddings.policy], config, dataset))
        directory.begin(
            config=config.model_dump(mode="json"),
            data=dataset.fingerprint(),
            **data_entries(dataset),
            device=str(components.embeddings.device),
            **({} if peers is None else {"ranks": peers.places}),
        )
        return Run(config, directory, dataset, components, stream).train(compile_s=compile_s)


def plan_run(config: TrainConfig) -> dict[str, Any]:
    """Compute memory, device rows and steps of a run; writes nothing, and allocates no rows."""
    refuse_following(config)
    dataset = open_data(with_initial_vocabulary(config))
    components = size_components(config, dataset, first_batches(config, dataset))
    embeddings = components.embeddings
    refuse_unreachable(config, dataset)
    return {
        "schema": SCHEMA,
        "dry_run": True,
        "policy": config.policy,
        "device": str(embeddings.device),
        "tables": len(components.tables),
        "rows": embeddings.num_rows,
        "device_rows": embeddings.device_rows,
        "device_rows_why": embeddings.sizes.text,
        "memory_bytes": embeddings.memory(),
        "dense_parameters": components.dense_parameters,
        "samples": dataset.num_train_samples(),
        "steps": total_steps(config, dataset),
    }


def _run_directory(config: TrainConfig, overwrite: bool) -> RunDirectory:
    if config.out is None:
        return RunDirectory.named_after(config.policy)
    return RunDirectory(Path(config.out), overwrite=overwrite)
