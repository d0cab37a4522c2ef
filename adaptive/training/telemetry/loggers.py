"""Numbers for trackers of experiments: loggers are entry points of the group `adaptive.loggers`; `log_to` names some.

Nothing is logged unless it is asked for, and what is here writes into the run directory, not to a server."""

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
    GuardRecord,
    IntervalRecord,
    Numbers,
    Record,
    RunRecord,
    evaluation_numbers,
    guard_numbers,
    interval_numbers,
)

GROUP: Final = "adaptive.loggers"
MAX_FAILURES: Final = 3  # in a row, after which a logger is left alone

log = logging.getLogger(__name__)


Settings = Mapping[str, object]  # of a run, as in run.json


class Logger(Protocol):
    """Takes the numbers of a run. What it raises is logged as a warning and never stops training."""

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        """Numbers by name, after so many batches; steps never fall."""

    def close(self) -> None:
        """The run is over."""


LoggerMaker = Callable[[Path, Settings], Logger]
"""Makes a logger of a run directory and the settings, as in run.json. `PACKAGE`, if it has one, must be installed."""


def make_loggers(names: str | None, directory: Path, config: Settings) -> list["LoggerSink"]:
    """The sinks for `log_to`: names with commas between them; None: none.

    Raises:
        ConfigError: see `load_loggers`; and for a logger that cannot be started.
    """
    return [LoggerSink(name, _made(name, maker, directory, config)) for name, maker in load_loggers(names).items()]


def _made(name: str, maker: LoggerMaker, directory: Path, config: Settings) -> Logger:
    try:
        return maker(directory, config)
    except Exception as error:  # of a package of others, at the start of a run: nothing is lost
        advice = getattr(maker, "ADVICE", "leave it out of log_to, or mend what it says")
        raise ConfigError(f"log_to: {name} cannot be started: {type(error).__name__}: {error}; {advice}") from error


def load_loggers(names: str | None) -> dict[str, LoggerMaker]:
    """What makes the loggers of these names; nothing is made yet.

    Raises:
        ConfigError: for a name that is not installed, or a logger whose package is missing.
    """
    points = {point.name: point for point in entry_points(group=GROUP)} if names else {}
    makers: dict[str, LoggerMaker] = {}
    for name in (name.strip() for name in (names or "").split(",") if name.strip()):
        if name not in points:
            installed = ", ".join(sorted(points)) or "none"
            raise ConfigError(f"log_to: no logger {name!r} is installed; known: {installed}")
        try:
            makers[name] = points[name].load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"log_to: logger {name!r} ({points[name].value}) cannot be loaded: {error}") from error
        package = getattr(makers[name], "PACKAGE", None)
        try:
            if package is not None:
                importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(f"log_to: {name} needs its package: pip install {package} ({error})") from error
    return makers


class LoggerSink:
    """Gives a logger the numbers of records, under the names they have in TensorBoard; not those of single tables."""

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
            case GuardRecord():
                numbers = guard_numbers(record)
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
            end = "; it is left alone from now on" if self._failures == MAX_FAILURES else ""
            log.warning("logger %s failed: %s: %s%s", self._name, type(error).__name__, error, end)


def flat(config: Settings) -> dict[str, str]:
    """Settings by their whole names, as texts: {"tier.device_rows": "5%"}."""
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in leaves(config)
        if value is not None
    }


EXPERIMENT = "adaptive-train"
PARAMETER_BYTES = 500  # of a value, as MLflow takes them everywhere


class WandbLogger:
    """A run of Weights & Biases in `RUN/wandb`, offline unless WANDB_MODE says otherwise."""

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
    """A run of MLflow in `RUN/mlflow.db`, unless MLFLOW_TRACKING_URI says otherwise."""

    PACKAGE: ClassVar[str] = "mlflow"
    ADVICE: ClassVar[str] = (
        "the package mlflow-skinny alone has no database: pip install mlflow, or name a server or a folder by "
        "MLFLOW_TRACKING_URI"
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
        for first in range(0, len(parameters), 100):  # more at once are refused
            self._client.log_batch(self._run, params=parameters[first : first + 100])

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)
