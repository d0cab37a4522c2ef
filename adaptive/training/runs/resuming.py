"""Resume a run from its newest checkpoint; `auto_resume_run` starts it if there is none."""

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TextIO

from pydantic import ValidationError

from adaptive.config import TrainConfig, explain
from adaptive.data.dataset import Dataset
from adaptive.data.rows.vocabularies import INDEX
from adaptive.distributed.peers import Peers
from adaptive.errors import CheckpointError, ConfigError, InputError, OutputError
from adaptive.plugins import refuse_unnamed
from adaptive.storage.checkpoint import Checkpoint, load_whole
from adaptive.storage.durable import temporary_name
from adaptive.storage.run_directory import RECORD, RunDirectory, newest_first, read_record, versions, was_finished
from adaptive.training.components import (
    Components,
    build,
    first_batches,
    open_data,
    prepare,
    torch_settings,
)
from adaptive.training.runs.distributed import (
    directory_of,
    facts_of,
    load_whole_together,
    reporting_errors,
)
from adaptive.training.runs.following import refuse_following
from adaptive.training.runs.loop import DataPosition
from adaptive.training.runs.run import ResumePoint, Run, code_of, resume_command
from adaptive.training.runs.run_record import Json, check_same_data, config_of, recorded_shape
from adaptive.training.runs.state import SavedProgress, restore, saved_progress
from adaptive.training.runs.training import train_run
from adaptive.training.settings import leaves
from adaptive.training.telemetry.jsonl import drop_after

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def resume_run(
    run_directory: Path | str,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    until: str | None = None,
    code: Mapping[str, str] = NOTHING,
    stream: TextIO | None = None,
    peers: Peers | None = None,
) -> dict[str, Any]:
    """Resume a run and train it to its end; return what `train_run` would have returned.

    All numbers equal those of an uninterrupted run, bit for bit (exceptions: docs/explanation/design.md). Trained
    batches of the current epoch are read again and passed over. Settings are those of the run.

    Args:
        run_directory: of a run that was stopped or killed, or is finished and will train longer.
        steps, epochs: new totals, to make the run longer or shorter.
        until: the new end of a run that follows a folder.
        code: the run's policy (`"policy"`), skip rule (`"skip.rule"`) and model (`"model"`) if they are files or
            modules that are not installed: code that only `run.json` names is not run.
        stream: for progress, usually stderr.
        peers: any number of ranks that resume together; all see the directory, rank 0 writes it.

    Raises:
        CheckpointError: if there is no run, or no checkpoint, or only damaged ones.
        ConfigError: if nothing is left to train, or its code is not named.
        InputError: if the data are not those of the run.
        OutputError: if another process holds the directory, or it cannot be written.
    """
    is_first = peers is None or peers.is_first
    opened = partial(RunDirectory, Path(run_directory), resume=True)
    with reporting_errors(peers), directory_of(peers, opened) as directory:
        path = directory.path if is_first else Path(run_directory)
        record = read_record(path)
        lengths = {"steps": steps, "epochs": epochs, "until": until}
        changed = {name: length for name, length in lengths.items() if length is not None}
        config = _lengthened(config_of(record, path), changed)
        _check_code(config, code, path)
        refuse_following(config, peers)
        where, checkpoint, damaged = _load(path, peers)
        reached = saved_progress(checkpoint, where)
        with torch_settings(config):
            _check_vocabulary(config, record, path)
            with _new_reject_log(directory.rejects):
                dataset = open_data(config, directory.path)
                check_same_data(path, record, dataset)
                _check_length(config, path, reached.place, record)
                _check_key_rules(path, record, dataset)
            resumed_from = {"checkpoint": where.name, "reached": reached.place.total}
            if peers is not None:
                peers.require_equal(facts_of(config, dataset) | resumed_from)
            components = _build(config, dataset, peers)
            with components.embeddings:
                restore(components, checkpoint, where)
                dropped = _drop_records(directory, config, checkpoint, reached, record) if is_first else 0
                if peers is not None:
                    peers.rows.gather_facts("records dropped")  # other ranks may read metrics.jsonl from here on
                left = ResumePoint(where, checkpoint, reached, dropped, damaged)
                run = Run(config, directory, dataset, components, stream, left)
                directory.record = record
                directory.record_resume(
                    step=checkpoint.meta["steps"],
                    ranks=() if peers is None else peers.places,
                    config=config.model_dump(mode="json"),
                )
                _print_resume(stream, left, record)
                return run.train()


def _lengthened(config: TrainConfig, changed: Mapping[str, object]) -> TrainConfig:
    try:
        return TrainConfig.model_validate({**config.model_dump(), **changed})
    except ValidationError as error:
        raise ConfigError(f"--resume: {explain(TrainConfig, error)}") from error


def _check_code(config: TrainConfig, code: Mapping[str, str], path: Path) -> None:
    """Check that code that is not installed is named, and that named code is the run's."""
    specs = code_of(config)
    for key, spec in specs.items():
        if code.get(key, spec) != spec:
            raise ConfigError(
                f"expected {key} {spec}, the setting of the run, got {code[key]} ({path}). A run resumes with its own "
                "settings"
            )
    for key, spec in specs.items():
        refuse_unnamed(key, spec, where=str(path / RECORD), named=code.get(key), how=resume_command(path, config))


def _load(path: Path, peers: Peers | None) -> tuple[Path, Checkpoint, dict[Path, str]]:
    try:
        return load_whole(path) if peers is None else load_whole_together(path, peers)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}. A run resumes from a complete checkpoint only: restore a copy of it, or train from scratch "
            f"with --config {path / RECORD}"
        ) from error


def _check_key_rules(path: Path, record: Json, dataset: Dataset) -> None:
    """Raise ConfigError unless keys get and lose rows as in the run: a schema may have changed since."""
    recorded = recorded_shape(record, path).key_rules
    for table, rules in recorded.items():
        if (got := dataset.key_rules.get(table)) != rules:
            raise ConfigError(
                f"table {table!r}: expected the rules of keys of {path}, {rules}, got {got}. Restore the schema, or "
                "start a new run with --init-from."
            )


def _check_length(config: TrainConfig, path: Path, place: DataPosition, record: Json) -> None:
    """Check that the settings leave the run something to train.

    A run that was killed between its last checkpoint and its end is not recorded as finished, and may end.

    Raises:
        ConfigError: if the run has already trained more, is finished and not extended, or ended by patience.
    """
    finished = record.get("status") == "finished"
    from_scratch = f"To train longer, start from scratch with --config {path / RECORD}"
    summary = (record.get("summary") or {}) if finished else {}
    best = summary.get("best") or {}
    if best.get("ended_by_patience"):
        raise ConfigError(
            f"expected a run that can train longer, got a finished run ({path}): its patience ended. {from_scratch} "
            "--set patience=null"
        )
    trained = place.epoch_start + place.taken
    if config.steps is not None and config.steps < trained:
        raise ConfigError(f"expected steps of at least {trained}, which are trained, got {config.steps} ({path})")
    if config.follow:  # a finished run trains the files that have come since
        return
    if config.epochs <= place.epoch:
        raise ConfigError(
            f"expected epochs of at least {place.epoch + 1}, which have begun, got {config.epochs} ({path})"
        )
    is_last = place.epoch + 1 == config.epochs or trained == config.steps
    if finished and is_last and (place.over or place.left(config.steps) == 0):
        raise ConfigError(
            f"expected more than {trained} steps, which are trained, got a finished run ({path}). Raise --steps or "
            "--epochs"
        )


def _check_vocabulary(config: TrainConfig, record: Json, path: Path) -> None:
    """Check that the run's vocabulary exists: opening the data would fit and write a new one."""
    stored = (record.get("data") or {}).get("vocabularies")
    folder = Path(config.data_options.get("vocabulary_path") or path / "vocabulary")
    if stored and not config.data.startswith("prepared:") and not (folder / INDEX).is_file():
        raise CheckpointError(
            f"expected the vocabularies of {', '.join(stored)} in {folder}, got no {INDEX} ({path}). Restore that "
            "folder"
        )


def _build(config: TrainConfig, dataset: Dataset, peers: Peers | None) -> Components:
    """Build and calibrate: checkpoints hold calibration only in the policy's state."""
    sample = first_batches(config, dataset)
    components = build(config, dataset, sample, peers)
    try:
        components.embeddings.calibrate(prepare([components.embeddings.policy], config, dataset))
        return components
    except BaseException:
        components.embeddings.close()
        raise


@contextlib.contextmanager
def _new_reject_log(path: Path) -> Iterator[None]:
    """Start a new log of bad lines inside; an error restores the old one."""
    aside = temporary_name(path)
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
    try:
        yield
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            aside.rename(path)
        raise
    aside.unlink(missing_ok=True)


def _drop_records(
    directory: RunDirectory,
    config: TrainConfig,
    checkpoint: Checkpoint,
    reached: SavedProgress,
    record: Json,
) -> int:
    """Drop the records that the resumed run repeats; return their number.

    An evaluation of the current step is dropped if it comes next, or if a killed run made it after the checkpoint. The
    final evaluation of a finished run stays.
    """
    place = reached.place
    was_interrupted = place.evaluated != place.total and not was_finished(record, checkpoint.meta["steps"])
    repeats = place.is_evaluated_next(config.steps) or was_interrupted
    try:
        return drop_after(directory.metrics, checkpoint.meta["steps"], evaluation=repeats)
    except InputError as error:
        raise CheckpointError(f"{error}. To resume without these records, move the file away") from error
    except OSError as error:
        raise OutputError(f"cannot write {directory.metrics}: {error}") from error


def _print_resume(stream: TextIO | None, left: ResumePoint, record: Json) -> None:
    text = "".join(f"{where} is damaged, using an older checkpoint: {why}\n" for where, why in left.damaged.items())
    text += f"resumed after step {left.checkpoint.meta['steps']} from {left.where}"
    if left.dropped:
        text += f"; dropped {left.dropped} record(s) of later steps from metrics.jsonl"
    old = (record.get("resumed") or [record])[-1].get("versions")
    old = old if isinstance(old, dict) else {}
    changes = [f"{name} {old.get(name)} -> {now}" for name, now in versions().items() if old.get(name) != now]
    if changes:
        text += f"\nchanged versions or threads, which may round differently: {', '.join(changes)}"
    _print(stream, text)


BEGIN, RESUME, DONE = "begin", "resume", "done"
LENGTHS: Final = ("steps", "epochs", "until")


def auto_resume_run(
    config: TrainConfig,
    *,
    stream: TextIO | None = None,
    peers: Peers | None = None,
) -> dict[str, Any]:
    """Start the run in `config.out`, or resume it; return what `train_run` returns.

    Args:
        config: settings of the run. An existing run must have the same settings, but may become longer. Code that it
            names counts as named by the caller and is run.
        stream, peers: as in `resume_run`. Rank 0 checks the directory and informs the others.

    Raises:
        ConfigError: if the existing run has other settings.
        AdaptiveError: as `train_run` and `resume_run`.
    """
    assert config.out is not None
    path = Path(config.out)
    with reporting_errors(peers):
        action = choose_action(path, config) if peers is None or peers.is_first else None
        if peers is not None:
            action = peers.rows.gather_facts(action)[0]
    if action == DONE:
        return _finished(path, stream)
    if action == RESUME:
        lengths = {name: getattr(config, name) for name in LENGTHS}
        code = {key: spec for key, spec in code_of(config).items() if spec is not None}
        return resume_run(path, **lengths, code=code, stream=stream, peers=peers)
    state = "holds a run without a checkpoint; starting again" if (path / RECORD).exists() else "holds no run yet"
    _print(stream, f"--auto-resume: {path} {state}")
    return train_run(config, overwrite=True, stream=stream, peers=peers)


def choose_action(path: Path, config: TrainConfig) -> str:
    """Return `BEGIN`, `RESUME` or `DONE`.

    Raises:
        ConfigError: as `auto_resume_run`.
        CheckpointError: if `run.json` cannot be read.
    """
    if not (path / RECORD).exists():
        return BEGIN
    record = read_record(path)
    of_run = config_of(record, path)
    new, old = (dict(leaves(settings.model_dump(mode="json"))) for settings in (config, of_run))
    lengthened = {name for name in LENGTHS if new.get(name) is not None}
    for key in {**old, **new}:
        if key != "out" and key not in lengthened and new.get(key) != old.get(key):
            raise ConfigError(
                f"--auto-resume: expected {key}={old.get(key)!r} as in the run in {path}, got {new.get(key)!r}. Use "
                "the settings of the run, or another --out"
            )
    is_finished = record.get("status") == "finished" and not config.follow  # files may have come since
    if is_finished and all(new[name] == old.get(name) for name in lengthened):
        return DONE
    return RESUME if any(folder.exists() for folder in newest_first(path)) else BEGIN


def _finished(path: Path, stream: TextIO | None) -> dict[str, Any]:
    summary = dict(read_record(path).get("summary") or {})
    text = f"--auto-resume: the run in {path} is finished after {summary.get('steps')} steps; nothing to do"
    _print(stream, text)
    return {**summary, "table": text}


def _print(stream: TextIO | None, text: str) -> None:
    with contextlib.suppress(OSError):
        if stream is not None:
            stream.write(text + "\n")
