"""Scores of all samples of some data, under the model of a trained run."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.errors import ConfigError, InputError
from adaptive.models.tasks import tasks_of
from adaptive.serving.scores import check_scores_file, columns_of, write_scores
from adaptive.training.build import torch_settings
from adaptive.training.runs.loading import NO_SETTINGS, LoadedRun, data_of, evaluation_batches, load_with
from adaptive.training.telemetry.report import SCHEMA

DRAWN = ("user_items", "taobao")  # formats whose samples are drawn, not read


def predict_run(
    run_directory: Path | str,
    out: Path | str,
    *,
    data: str | None = None,
    settings: Mapping[str, Any] = NO_SETTINGS,
) -> dict[str, Any]:
    """Write a score for each sample, in the order of the data: the probability that its label is 1. Rows lie as in the
    run: those of a host tier in files are never all in memory.

    Args:
        out: a file that ends in .csv (column `score`), .parquet (the same; needs pyarrow) or .npy (float32). It is
            there whole afterwards, or as it was before. A model of several labels gives a column each, `score_<label>`.
        data: None: the evaluation part of the run's data; or others, see `adaptive.training.runs.loading.data_of`.
        They may
            lack the schema's label column. No line may be bad, unless `settings` say otherwise.
        settings: as in `evaluate_run`.

    Returns:
        `run_dir`, `data`, `out`, `samples` and `mean_score`, of several labels that of the first, with all in
        `mean_scores`.

    Raises:
        CheckpointError: if the run or its weights are missing or damaged.
        ConfigError: for an `out` or settings that cannot work, or data whose samples are drawn.
        InputError: if the data do not fit the run, or there is no sample.
        OutputError: if `out` cannot be written.
    """
    path = Path(out)
    check_scores_file(path)
    strict = {"data.max_bad_fraction": 0.0, "data.max_bad_label_fraction": 0.0} if data is not None else {}
    with load_with(Path(run_directory), {**strict, **settings}) as run:
        _refuse_drawn(run, data)
        dataset = data_of(run, data, may_lack_labels=True)
        mean, tasks = _Mean(), tasks_of(run.model)
        columns = columns_of(tasks.names if tasks else ())
        with torch_settings(run.config):
            scores = _some(mean.of(run.predict(evaluation_batches(run, dataset))), run, data)
            samples = write_scores(path, scores, columns)
        means = {column: total / samples for column, total in zip(columns, mean.totals, strict=True)}
        return {
            "schema": SCHEMA,
            "run_dir": str(run.path),
            "data": data or run.config.data,
            "out": str(path),
            "samples": samples,
            "mean_score": means[columns[0]],
            **({"mean_scores": means} if len(means) > 1 else {}),
        }


class _Mean:
    """Adds up what passes."""

    def __init__(self) -> None:
        self.totals = np.zeros(1)  # by column

    def of(self, parts: Iterator[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
        for part in parts:
            self.totals = self.totals + part.reshape(len(part), -1).sum(axis=0, dtype=np.float64)
            yield part


def _some(parts: Iterator[NDArray[np.float32]], run: LoadedRun, data: str | None) -> Iterator[NDArray[np.float32]]:
    """The parts, of which there must be one."""
    first = next(parts, None)
    if first is None:
        raise InputError(
            f"no sample to score: {data or f'the data of {run.path} have no evaluation part'}; give others: --data SPEC"
        )
    yield first
    yield from parts


def _refuse_drawn(run: LoadedRun, data: str | None) -> None:
    found = run.record.get("data")
    kind = found.get("format") if isinstance(found, dict) else None
    if data is not None and kind in DRAWN:
        raise ConfigError(
            f"{run.path} was trained on {kind}, whose samples are drawn: a score for each line means nothing. "
            "Without --data its evaluation part is scored; other samples are scored from Python: "
            "adaptive.load_run(RUN).predict(batches)"
        )
