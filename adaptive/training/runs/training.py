"""Train a run in its directory, or say what it would take."""

from functools import partial
from pathlib import Path
from typing import Any, TextIO

from adaptive.config import TrainConfig
from adaptive.embeddings.ranks import Ranks
from adaptive.models.presets import PRESETS
from adaptive.models.tasks import start_at_base_rate
from adaptive.storage.run_directory import RunDirectory
from adaptive.training.build import build, first_batches, open_data, outline, prepare, torch_settings
from adaptive.training.runs.best import refuse_without_evaluation
from adaptive.training.runs.distributed import directory_of, facts_of, refuse_alone, refuse_unseen, telling
from adaptive.training.runs.memory_check import refuse_too_few, rows_in_flight
from adaptive.training.runs.record import where_and_what
from adaptive.training.runs.run import Run, total_steps
from adaptive.training.runs.state import refuse_guarded_saves
from adaptive.training.runs.target import refuse_unreachable
from adaptive.training.runs.warm_start import begin_with, with_known_ids
from adaptive.training.telemetry.loggers import load_loggers
from adaptive.training.telemetry.report import SCHEMA


def train_run(
    config: TrainConfig,
    *,
    overwrite: bool = False,
    force_unlock: bool = False,
    stream: TextIO | None = None,
    keep_scores: bool = False,
    ranks: Ranks | None = None,
) -> dict[str, Any]:
    """Train as `config` says, in a run directory; returns the summary, and as `table` its text for people.

    On SIGTERM, SIGINT or SIGHUP the step is finished (under a policy that skips, defers or arranges: the batches on
    their way), weights are saved, and `SystemExit` with 143, 130 or 129 is raised; `resume_run` goes on from there.

    Args:
        config: the whole of it goes into `run.json`.
        overwrite: replace the run in a directory that is not empty.
        force_unlock: also if a process of another machine or container, which is gone, seems to hold the directory.
        stream: where progress is shown, usually stderr.
        ranks: that train this run together, each in a call of its own; rank 0 writes the directory.
        keep_scores: keep logits and labels of the latest evaluation in the directory (`adaptive.storage.scores`).

    Raises:
        AdaptiveError: see the classes in `adaptive.errors`.
    """
    opened = partial(_run_directory, config, overwrite, force_unlock)
    with telling(ranks), torch_settings(config):
        load_loggers(config.log_to)  # what is missing is told before there is a directory
        refuse_alone(config, ranks)
        with directory_of(ranks, opened) as directory:
            if config.save:
                refuse_unseen(directory.path, ranks)
            return _train_in(directory, config, stream, keep_scores, ranks)


def _train_in(
    directory: RunDirectory, config: TrainConfig, stream: TextIO | None, keep_scores: bool, ranks: Ranks | None
) -> dict[str, Any]:
    dataset = open_data(with_known_ids(config), directory.path)
    sample = first_batches(config, dataset)
    if ranks is not None:
        ranks.require_equal(facts_of(config, dataset))
    components = build(config, dataset, sample, ranks)
    with components.embeddings:
        refuse_guarded_saves(config, components)
        refuse_unreachable(config, components, dataset)
        refuse_without_evaluation(config, dataset)
        start_at_base_rate(components.model, dataset.train(config.batch_size))
        begin_with(components, config)
        components.embeddings.calibrate(prepare([components.embeddings.policy], config, dataset))
        directory.begin(
            config=config.model_dump(mode="json"),
            data=dataset.fingerprint(),
            **where_and_what(dataset),
            device=str(components.embeddings.device),
            **({} if ranks is None else {"ranks": ranks.places}),
        )
        return Run(config, directory, dataset, components, stream, keep_scores=keep_scores).train()


def plan_run(config: TrainConfig) -> dict[str, Any]:
    """What `train_run` would take: memory, device rows, steps. Writes nothing, and takes no memory for rows."""
    dataset = open_data(with_known_ids(config))
    sample = first_batches(config, dataset)
    components = outline(config, dataset, sample)
    embeddings = components.embeddings
    refuse_guarded_saves(config, components)
    refuse_unreachable(config, components, dataset)
    refuse_without_evaluation(config, dataset)
    needed = rows_in_flight(config, components, sample)
    refuse_too_few(config, components, sample, needed)
    return {
        "schema": SCHEMA,
        "dry_run": True,
        "policy": config.policy,
        **_preset(config),
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


def _preset(config: TrainConfig) -> dict[str, Any]:
    """Where the shape comes from, if it was named."""
    preset = PRESETS.get(config.preset or "")
    if preset is None:
        return {}
    published = {"source": preset.source, "published_tables": preset.published_tables, "ours": preset.ours}
    return {"preset": {"name": config.preset, **published}}


def _run_directory(config: TrainConfig, overwrite: bool, force_unlock: bool) -> RunDirectory:
    if config.out is None:
        return RunDirectory.named_after(config.policy)
    return RunDirectory(Path(config.out), overwrite=overwrite, force_unlock=force_unlock)
