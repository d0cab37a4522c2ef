"""Resume a run in its directory, from its newest checkpoint."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from adaptive.build import Components, build, first_batches, open_data, prepare, torch_settings
from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.errors import CheckpointError, ConfigError, OutputError
from adaptive.runs.loop import DataPosition
from adaptive.runs.record import check_same_data, config_of
from adaptive.runs.run import ResumePoint, Run
from adaptive.runs.state import reached_by, refuse_guarded_resume, restore
from adaptive.storage.checkpoint import Checkpoint
from adaptive.storage.durable import temporary_name
from adaptive.storage.run_checkpoints import load_newest
from adaptive.storage.run_directory import RECORD, RunDirectory, read_record, versions
from adaptive.telemetry.jsonl import drop_after


def resume_run(
    run_directory: Path | str, *, steps: int | None = None, epochs: int | None = None, stream: TextIO | None = None
) -> dict[str, Any]:
    """Resume a run and train it to its end; returns what `train_run` would have returned without the interruption.

    All numbers are those of a run that was not interrupted, bit for bit: see docs/design.md for the exceptions. Batches
    of the data that were trained are read again and passed over. Settings are those of the run.

    Args:
        run_directory: of a run that was stopped, killed, or finished and is to train longer.
        steps, epochs: new totals, if the run is to be longer or shorter than it was to be.
        stream: where progress is shown, usually stderr.

    Raises:
        CheckpointError: if there is no run, or no checkpoint of it, or one that is damaged or of weights only.
        ConfigError: if there is nothing left to train, or the run is guarded.
        InputError: if the data are not those of the run.
        OutputError: if another process holds the directory, or it cannot be written.
    """
    with RunDirectory(Path(run_directory), resume=True) as directory:
        path = directory.path
        record = read_record(path)
        where, checkpoint = _load(path)
        reached = reached_by(checkpoint, where)
        config = _config(record, path, {"steps": steps, "epochs": epochs})
        _check_length(config, path, reached.place, record)
        with torch_settings(config):
            with _rejects_anew(directory.rejects):
                dataset = open_data(config, path)
                check_same_data(path, record, dataset)
            components = _build(config, dataset)
            with components.embeddings:
                refuse_guarded_resume(config, components, path)
                restore(components, checkpoint, where)
                left = ResumePoint(
                    where, checkpoint, reached, _drop_records(directory, config, checkpoint, reached.place)
                )
                run = Run(config, directory, dataset, components, stream, left)
                directory.record = record
                directory.go_on(step=checkpoint.meta["steps"], config=config.model_dump(mode="json"))
                _tell(stream, left, record)
                return run.train()


def _load(path: Path) -> tuple[Path, Checkpoint]:
    try:
        return load_newest(path)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}. Only from a whole checkpoint can a run go on: put back a copy of it, or train anew with "
            f"--config {path / RECORD}"
        ) from error


def _config(record: Mapping[str, Any], path: Path, changed: Mapping[str, int | None]) -> TrainConfig:
    given = {name: value for name, value in changed.items() if value is not None}
    return config_of(record, path).model_copy(update=given)


def _check_length(config: TrainConfig, path: Path, place: DataPosition, record: Mapping[str, Any]) -> None:
    """Check that the settings leave the run something to train.

    Raises:
        ConfigError: if it is longer already than it is to be, was finished and is to be no longer, or has reached its
            target.
    """
    _check_target(config, path, record)
    if record.get("status") == "finished" and ((record.get("summary") or {}).get("best") or {}).get(
        "ended_by_patience"
    ):
        raise ConfigError(
            f"{path}: the run is finished: its patience ended; to train on, train anew with --config {path / RECORD} "
            "--set patience=null"
        )
    trained = place.before + place.taken
    if config.steps is not None and config.steps < trained:
        raise ConfigError(f"{path}: steps={config.steps}, but {trained} are trained already; give as many or more")
    if config.epochs <= place.epoch:
        raise ConfigError(f"{path}: epochs={config.epochs}, but {place.epoch + 1} have begun; give as many or more")
    is_last = place.epoch + 1 == config.epochs or trained == config.steps
    if record.get("status") == "finished" and is_last and (place.over or place.left(config.steps) == 0):
        raise ConfigError(f"{path}: the run is finished after {trained} steps; to train on, raise --steps or --epochs")


def _check_target(config: TrainConfig, path: Path, record: Mapping[str, Any]) -> None:
    """A run that was killed between its last checkpoint and its end is not recorded as finished, and may end."""
    found = (record.get("summary") or {}).get("stop_at") or {}
    if record.get("status") == "finished" and found.get("reached"):
        raise ConfigError(
            f"{path}: the run is finished: it reached {found['metric']} {found['target']:g} after {found['step']} "
            f"steps; to train on, train anew with --config {path / RECORD} --set stop_at=null"
        )


def _build(config: TrainConfig, dataset: Dataset) -> Components:
    """Calibrated anew: a checkpoint holds only those results of calibration that the policy's `state_dict` gives."""
    sample = first_batches(config, dataset)
    components = build(config, dataset, sample)
    try:
        components.embeddings.calibrate(prepare([components.embeddings.policy], config, dataset))
        return components
    except BaseException:
        components.embeddings.close()
        raise


@contextlib.contextmanager
def _rejects_anew(path: Path) -> Iterator[None]:
    """Inside, the log of bad lines is written anew, since lines that were read are read again. An error leaves the old
    file."""
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


def _drop_records(directory: RunDirectory, config: TrainConfig, checkpoint: Checkpoint, place: DataPosition) -> int:
    """The evaluation behind the last step is made again where that ends the epoch, or the run; one in the middle is
    not."""
    again = place.reached or place.over or place.left(config.steps) == 0
    try:
        return drop_after(directory.metrics, checkpoint.meta["steps"], evaluation=again)
    except OSError as error:
        raise OutputError(f"{directory.metrics} cannot be written: {error}") from error


def _tell(stream: TextIO | None, left: ResumePoint, record: Mapping[str, Any]) -> None:
    if stream is None:
        return
    text = f"resumed after step {left.checkpoint.meta['steps']} from {left.where}"
    if left.dropped:
        text += f"; {left.dropped} record(s) of later steps dropped from metrics.jsonl"
    before = (record.get("resumed") or [record])[-1].get("versions", {})
    other = [f"{name} {before.get(name)} -> {now}" for name, now in versions().items() if before.get(name) != now]
    if other:
        text += f"\nother versions or threads than before, which may round differently: {', '.join(other)}"
    with contextlib.suppress(OSError):
        stream.write(text + "\n")
