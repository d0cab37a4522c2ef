"""Evaluate a saved run again, on its own data or on others; which data a run is read with."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TextIO

from adaptive.batch import Batch
from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset, DataShape, shape_of
from adaptive.embeddings.ranks import Ranks
from adaptive.errors import AdaptiveError, ConfigError, InputError
from adaptive.training.build import open_data, torch_settings
from adaptive.training.evaluation import evaluate
from adaptive.training.runs.distributed import telling
from adaptive.training.runs.loading import LoadedRun, load_with
from adaptive.training.runs.record import FOLDER, check_same_data
from adaptive.training.runs.run import group_feature, quality_numbers
from adaptive.training.telemetry.progress import Progress
from adaptive.training.telemetry.recorder import evaluation_record
from adaptive.training.telemetry.report import SCHEMA

ROWS_BY_TRAINING_FILES: Final = ("taobao",)  # kinds whose ids become rows by what the training files hold
NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})


def evaluate_run(
    run_directory: Path | str,
    *,
    data: str | None = None,
    by: str | None = None,
    settings: Mapping[str, Any] = NO_SETTINGS,
    stream: TextIO | None = None,
    ranks: Ranks | None = None,
) -> dict[str, Any]:
    """Evaluate the saved weights of a run on its evaluation data: the numbers its summary has, to the last digit. Of a
    run that was cut short, or is under way, the newest checkpoint is evaluated. Rows lie as in the run: those of a host
    tier in files are never all in memory.

    Args:
        data: evaluate on all samples of these data, mapped to rows as the run's were; see `data_of`.
        by: a feature with one value a sample, such as the user; also GAUC over its values (`gauc`, `gauc_groups`).
        settings: dotted keys of `adaptive.training.runs.loading.READABLE` and their values, which count before the
        run's. stream: where the result is shown, usually stderr.
        ranks: that evaluate together, each in a call of its own, with a part of the rows and some of the batches;
            all see directory and data, and all have the result, to the last digit that of one process with as many
            threads as one of them.

    Raises:
        CheckpointError: if the run or its weights are missing or damaged.
        ConfigError: for other settings, or a feature that is not there.
        InputError: if the data are not those of the run, or have no evaluation part, or samples without a label.
    """
    with telling(ranks), load_with(Path(run_directory), settings, ranks) as run:
        position = group_feature(by, [feature.name for feature in run.shape.features], f"{run.path}: --by ")
        dataset = data_of(run, data)
        if ranks is not None:
            ranks.require_equal({"by": by, "data": dataset.fingerprint()})
        with torch_settings(run.config):
            batches = evaluation_batches(run, dataset)
            found = evaluate(run.embeddings, run.model, batches, by=position, in_turn=ranks is not None)
    if not found.samples:
        raise InputError(
            f"the data of {run.path} ({data or run.config.data}) have no evaluation part; give others: --data SPEC"
        )
    if stream is not None:
        with contextlib.closing(Progress(stream, run.steps)) as progress:
            progress.write(evaluation_record(found, run.steps))
    return {
        "schema": SCHEMA,
        "run_dir": str(run.path),
        **({} if data is None else {"data": data}),
        "policy": run.record["config"]["policy"],
        "steps": run.steps,
        **quality_numbers(found),
    }


def evaluation_batches(run: LoadedRun, dataset: Dataset) -> Iterator[Batch]:
    return dataset.evaluation(run.config.eval_batch_size)


def data_of(run: LoadedRun, spec: str | None, *, may_lack_labels: bool = False) -> Dataset:
    """The data to read a run with; what counts is their evaluation part.

    Args:
        spec: None: the data of the run. Others: `KIND:PATH[,PATH...]`, or a path alone, of the run's kind, all samples
            of which are the evaluation part, in their order. Relative paths are meant from the current folder.
        may_lack_labels: files may lack the schema's label column.

    Raises:
        ConfigError: for settings that cannot work; or if the run's vocabulary, which others need, is not there.
        InputError: if files are missing; if these are not the data of the run, or do not fit its tables.
    """
    _check_vocabulary_is_there(run)
    if spec is None:
        dataset = _opened(run, run.config)
        check_same_data(run.path, run.record, dataset)
        return dataset
    dataset = _opened(run, _all_for_evaluation(run.config, spec, may_lack_labels))
    _check_shape(run, shape_of(dataset))
    _check_vocabulary(run, dataset)
    return dataset


def _opened(run: LoadedRun, config: TrainConfig) -> Dataset:
    try:
        return open_data(config)
    except (ConfigError, InputError) as error:
        raise _with_home(run, error) from error


def _with_home(run: LoadedRun, error: AdaptiveError) -> AdaptiveError:
    """The error, with where the run was made, if that is where something was looked for."""
    home = run.record.get(FOLDER)
    if home is None or home not in str(error):
        return error
    return type(error)(
        f"{error}\n{run.path} was trained in {home}, from where its relative paths are looked for; if they have moved, "
        "give --data SPEC, and the schema by --set data.schema_path=FILE"
    )


def _all_for_evaluation(config: TrainConfig, spec: str, may_lack_labels: bool) -> TrainConfig:
    """Settings under which all samples of `spec` are the evaluation part: files are given twice, as training files,
    which are not read, and as `eval_data`."""
    kind, colon, paths = spec.partition(":")
    if not colon and spec not in ("synthetic", "sequences"):
        kind, colon, paths = config.data.partition(":")[0], ":", spec
    options = dict(config.data_options)
    for name in ("holdout", "time_split", "eval_data", "shuffle_buffer"):
        options.pop(name, None)
    if colon:
        options["eval_data"] = paths
    if may_lack_labels:
        options["label_optional"] = True
    spec = config.data if kind in ROWS_BY_TRAINING_FILES else f"{kind}{colon}{paths}"
    return config.model_copy(update={"data": spec, "data_options": options})


def _check_vocabulary_is_there(run: LoadedRun) -> None:
    """Or else another one would be fitted to the data."""
    folder = vocabulary_folder(run)
    if _vocabularies(run) and not (folder.is_dir() and any(folder.iterdir())):
        raise lacks_vocabulary(run, folder)


def _check_vocabulary(run: LoadedRun, dataset: Dataset) -> None:
    """Check that categories mean the rows that they meant in training."""
    if _vocabularies(run) and dataset.fingerprint().get("vocabularies") != _vocabularies(run):
        raise lacks_vocabulary(run, vocabulary_folder(run))


def _vocabularies(run: LoadedRun) -> Mapping[str, str]:
    """Table -> checksum of the vocabularies that the run was trained with."""
    recorded = run.record.get("data")
    return (recorded.get("vocabularies") or {}) if isinstance(recorded, dict) else {}


def vocabulary_folder(run: LoadedRun) -> Path:
    """Where the vocabularies are that the run was trained with, if it fitted some."""
    return Path(run.config.data_options.get("vocabulary_path") or run.path / "vocabulary")


def lacks_vocabulary(run: LoadedRun, folder: Path) -> InputError:
    """What to raise if they are not there."""
    return InputError(
        f"{run.path} was trained with vocabularies of {', '.join(_vocabularies(run))}, which {folder} does not hold; "
        "put that folder back, or give its place: --set data.vocabulary_path=DIR"
    )


def _check_shape(run: LoadedRun, found: DataShape) -> None:
    found = replace(found, labels=run.shape.labels, widths=run.shape.widths)  # samples can be scored without them
    if not (found.dense_names and run.shape.dense_names):  # not every format names its dense inputs
        found = replace(found, dense_names=run.shape.dense_names)
    if found != run.shape:
        needed, has = _shape_texts(run.shape, found)
        raise InputError(f"the data do not fit the tables of {run.path}: expected {needed}, found {has}")


def _shape_texts(needed: DataShape, found: DataShape) -> tuple[str, str]:
    """What differs, of both."""
    for one, other in zip(needed.features, found.features, strict=False):
        if one != other:
            return f"feature {one.name} of {one.num_embeddings} rows", f"{other.name} of {other.num_embeddings}"
    if needed.dense_names != found.dense_names:
        return _order_text(needed), _order_text(found)
    texts = [
        f"{len(one.features)} features, {one.num_dense} dense inputs, {one.steps} step(s) and tables "
        f"{', '.join(dict.fromkeys(one.tables))}"
        for one in (needed, found)
    ]
    return texts[0], texts[1]


def _order_text(shape: DataShape) -> str:
    return f"dense inputs in the order {', '.join(shape.dense_names)}"
