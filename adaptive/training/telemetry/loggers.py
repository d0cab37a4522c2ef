"""Loggers for experiment trackers: entry points that `log_to` names.

Nothing is logged by default. The loggers here write into the run directory, not to a server.
"""

import importlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import ClassVar, Final, Protocol

from adaptive.errors import ConfigError
from adaptive.training.settings import leaves
from adaptive.training.telemetry.record import (
    EvalRecord,
    IntervalRecord,
    Numbers,
    Record,
    RunRecord,
    evaluation_numbers,
    interval_numbers,
)

GROUP: Final = "adaptive.loggers"
MAX_FAILURES: Final = 3  # in a row; then the logger is not called any more

log = logging.getLogger(__name__)


Settings = Mapping[str, object]  # settings of a run, as in run.json


class Logger(Protocol):
    """Takes the numbers of a run. Its errors are logged as warnings and never stop training."""

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        """Log name -> number after `step` batches; steps never decrease."""

    def close(self) -> None:
        """Finish: the run is over."""


LoggerMaker = Callable[[Path, Settings], Logger]
"""Creates a logger for a run directory and settings (as in run.json). Its `PACKAGE`, if any, must be installed."""


def make_loggers(names: str | None, directory: Path, config: Settings) -> list["LoggerSink"]:
    """Return the sinks for `log_to`, names separated by commas or None.

    Raises:
        ConfigError: as `load_loggers`, and for a logger that cannot start.
    """
    return [LoggerSink(name, _made(name, maker, directory, config)) for name, maker in load_loggers(names).items()]


def _made(name: str, maker: LoggerMaker, directory: Path, config: Settings) -> Logger:
    try:
        return maker(directory, config)
    except Exception as error:  # third-party code may raise anything; nothing is lost at the start of a run
        advice = getattr(maker, "ADVICE", "Fix the cause, or remove it from log_to")
        raise ConfigError(f"log_to: {name} cannot start: {type(error).__name__}: {error}. {advice}") from error


def load_loggers(names: str | None) -> dict[str, LoggerMaker]:
    """Return name -> class or function that creates the logger, without creating it.

    Raises:
        ConfigError: for a name that is not installed, or a logger whose package is missing.
    """
    points = {point.name: point for point in entry_points(group=GROUP)} if names else {}
    makers: dict[str, LoggerMaker] = {}
    for name in (name.strip() for name in (names or "").split(",") if name.strip()):
        if name not in points:
            installed = ", ".join(sorted(points)) or "none"
            raise ConfigError(f"expected installed loggers ({installed}), got {name!r} (log_to)")
        try:
            makers[name] = points[name].load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"log_to: logger {name!r} ({points[name].value}) cannot be loaded: {error}") from error
        package = getattr(makers[name], "PACKAGE", None)
        try:
            if package is not None:
                importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(f"log_to: {name} requires {package}. Run pip install {package} ({error})") from error
    return makers


class LoggerSink:
    """Passes the numbers of records to a logger, with TensorBoard's tags."""

    def __init__(self, name: str, logger: Logger) -> None:
        self._name, self._logger = name, logger
        self._step = 0  # of the latest interval
        self._failures = 0  # in a row

    def write(self, record: Record) -> None:
        """Log a record, unless the logger has failed too often."""
        numbers: Numbers = {}
        match record:
            case IntervalRecord():
                steps, self._step = max(record.step - self._step, 1), record.step
                numbers = interval_numbers(record, steps)
            case EvalRecord():
                numbers = evaluation_numbers(record)
        values = {name: float(value) for name, value in numbers.items() if value is not None}
        if values and not isinstance(record, RunRecord):
            self._safely(lambda: self._logger.numbers(values, record.step))

    def close(self) -> None:
        """Close the logger."""
        self._safely(self._logger.close)

    def _safely(self, work: Callable[[], None]) -> None:
        if self._failures == MAX_FAILURES:
            return
        try:
            work()
            self._failures = 0
        except Exception as error:
            self._failures += 1
            end = "; it is not called any more" if self._failures == MAX_FAILURES else ""
            log.warning("logger %s failed: %s: %s%s", self._name, type(error).__name__, error, end)


def flat(config: Settings) -> dict[str, str]:
    """Return dotted key -> text of each setting: {"tier.device_rows": "5%"}."""
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in leaves(config)
        if value is not None
    }


EXPERIMENT = "adaptive-train"
PARAMETER_BYTES = 500  # limit of a value in every version of MLflow


class WandbLogger:
    """Logs to Weights & Biases in `RUN/wandb`, offline unless WANDB_MODE is set."""

    PACKAGE: ClassVar[str] = "wandb"

    def __init__(self, directory: Path, config: Settings) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", EXPERIMENT),
            name=directory.name,
            dir=str(directory),
            config=flat(config),
            mode=os.environ.get("WANDB_MODE", "offline"),
        )

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MlflowLogger:
    """Logs to MLflow in `RUN/mlflow.db`, unless MLFLOW_TRACKING_URI is set."""

    PACKAGE: ClassVar[str] = "mlflow"
    ADVICE: ClassVar[str] = (
        "The package mlflow-skinny has no database. Run pip install mlflow, or set MLFLOW_TRACKING_URI to a server or "
        "a folder"
    )

    def __init__(self, directory: Path, config: Settings) -> None:
        import mlflow
        from mlflow.entities import Metric, Param

        local = f"sqlite:///{(directory / 'mlflow.db').absolute()}"
        self._client = mlflow.MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI", local))
        self._metric = Metric
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        place = experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT)
        self._run = self._client.create_run(place, run_name=directory.name).info.run_id
        parameters = [Param(name, text[:PARAMETER_BYTES]) for name, text in flat(config).items()]
        for first in range(0, len(parameters), 100):  # MLflow refuses more at once
            self._client.log_batch(self._run, params=parameters[first : first + 100])

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)
