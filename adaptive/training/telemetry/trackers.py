"""Loggers for Weights & Biases and MLflow; their packages are the user's to install, and imported here only.

Both write into the run directory. WANDB_MODE=online and MLFLOW_TRACKING_URI send the numbers elsewhere, as these
packages have it themselves.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from adaptive.training.telemetry.loggers import flat

EXPERIMENT = "adaptive-train"
PARAMETER_BYTES = 500  # of a value, as MLflow takes them everywhere


class WandbLogger:
    """A run of Weights & Biases in `RUN/wandb`, offline unless WANDB_MODE says otherwise."""

    PACKAGE: ClassVar[str] = "wandb"

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
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

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        import mlflow
        from mlflow.entities import Metric, Param

        own = f"sqlite:///{(directory / 'mlflow.db').absolute()}"
        self._client = mlflow.MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI", own))
        self._metric = Metric
        known = self._client.get_experiment_by_name(EXPERIMENT)
        place = known.experiment_id if known else self._client.create_experiment(EXPERIMENT)
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
