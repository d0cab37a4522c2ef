"""Load a trained run in Python (`load_run`), or evaluate it again (`evaluate_run`)."""

import contextlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TextIO, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import nn

from adaptive.batch import Batch
from adaptive.config import TierConfig, TrainConfig, explain
from adaptive.data.dataset import Dataset, DataShape, mapping_of, shape_of
from adaptive.data.rows.dense_scales import SCALES
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError, InputError
from adaptive.plugins import refuse_unnamed
from adaptive.storage.checkpoint import load_best
from adaptive.storage.run_directory import RECORD, read_record
from adaptive.training.components import Components, build, open_data, torch_settings
from adaptive.training.evaluation import corrected, evaluate, predict
from adaptive.training.runs.run import group_feature, one_class_text, quality_numbers
from adaptive.training.runs.run_record import Json, check_same_data, config_of, recorded_shape, resolve_paths
from adaptive.training.runs.state import restore_weights
from adaptive.training.telemetry.jsonl import plain
from adaptive.training.telemetry.progress import Progress
from adaptive.training.telemetry.recorder import evaluation_record
from adaptive.training.telemetry.report import SCHEMA

Settings = Mapping[str, Any]  # values by dotted keys, as after --set
NO_SETTINGS: Final[Settings] = MappingProxyType({})
READABLE = ("tier.", "data.", "eval_batch_size", "model")  # settings that may change for reading a run


@dataclass(frozen=True)
class LoadedRun:
    """A loaded run. Close it or use it in a `with` statement.

    Attributes:
        path: the run directory.
        config: settings with absolute paths; the tiers are for reading, and the policy is not loaded.
        record: content of `run.json`; `record["data"]` identifies the data and holds their schema.
        shape: features with their tables and rows, dense inputs, steps.
        components: model, embeddings, tables, and a new optimizer of the model.
        steps: number of batches in training.
    """

    path: Path
    config: TrainConfig
    record: Json
    shape: DataShape
    components: Components
    steps: int

    @property
    def model(self) -> nn.Module:
        """The dense part: `model(dense, pooled)` returns logits (B,)."""
        return self.components.model

    @property
    def embeddings(self) -> TieredEmbeddingBag:
        """All rows: `read(batch)` looks them up, `rows.table_blocks(name)` yields a table."""
        return cast(TieredEmbeddingBag, self.components.embeddings)

    @property
    def _data(self) -> Json:
        return self.record.get("data") or {}

    @property
    def schema(self) -> Json | None:
        """The schema of the run's files as JSON values; None for data without one."""
        return self._data.get("schema")

    def predict(self, batches: Iterable[Batch]) -> Iterator[NDArray[np.float32]]:
        """Yield the predictions of each batch: probabilities (B,).

        Raises:
            InputError: for batches that do not fit the tables.
            NonFiniteError: for a logit that is not finite.
        """
        for logits in predict(self.embeddings, self.model, batches):
            yield probabilities(corrected(logits, self.shape.keep_negatives))

    @property
    def vocabulary_folder(self) -> Path:
        """Folder of the vocabularies of the run, if it fitted some."""
        return Path(self.config.data_options.get("vocabulary_path") or self.path / "vocabulary")

    @property
    def vocabularies(self) -> Mapping[str, str]:
        """Table -> checksum of the run's vocabulary."""
        return self._data.get("vocabularies") or {}

    @property
    def mapping(self) -> Json:
        """How values became rows and inputs in training (`mapping_of`)."""
        return mapping_of(self._data)

    def lacks_vocabulary(self) -> InputError:
        """The error for missing vocabularies."""
        return InputError(
            f"expected the vocabularies of {', '.join(self.vocabularies)} in {self.vocabulary_folder}, got none or "
            f"others ({self.path}). Restore that folder, or set its path: --set data.vocabulary_path=DIR"
        )

    def close(self) -> None:
        self.embeddings.close()

    def __enter__(self) -> "LoadedRun":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def probabilities(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the probabilities of logits of any shape, computed in float64 without overflow."""
    return (0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64)))).astype(np.float32)


def load_run(path: Path | str, *, tier: TierConfig | None = None, model: str | None = None) -> LoadedRun:
    """Load the model of a trained run with its rows.

    The weights are those of the best evaluation if the run saved them (`save=best`), else the last ones. For an
    unfinished run they are those of the newest checkpoint. Neither the data nor the policy of the run are needed.
    Weights are verified, and no code runs but a model that you name here.

    Args:
        path: the run directory.
        tier: the tiers. Default: the host tier of the run, in memory or in files, and the smallest device tier, which
            is enough for reading.
        model: `file.py:Class` or `module:Class` of a custom model: code that only a run directory names is not run.

    Raises:
        CheckpointError: if the run or its weights are missing or damaged.
        ConfigError: if the rows' files cannot be created; pass another `tier`.
    """
    changed = {name: value for name, value in (("tier", tier), ("model", model)) if value is not None}
    return _load(Path(path), lambda config: config.model_copy(update=changed), model)


def load_with(path: Path, settings: Settings) -> LoadedRun:
    """`load_run` with changed settings; ConfigError for other keys."""
    return _load(path, lambda config: _changed(config, settings), settings.get("model"))


def _load(path: Path, change: Callable[[TrainConfig], TrainConfig], model: str | None) -> LoadedRun:
    """`model`: the code that the caller named, or None."""
    record = read_record(path)
    config = change(_for_reading(with_vocabulary(resolve_paths(config_of(record, path), record), path)))
    option = f"--set model={shlex.quote(config.model)}, or load_run(RUN, model=...) in Python"
    refuse_unnamed("model", config.model, where=str(path / RECORD), named=model, how=option)
    where, checkpoint = load_best(path)
    shape = recorded_shape(record, path)
    components = build(config, shape)
    try:
        restore_weights(components, checkpoint, where=where)
    except BaseException:
        components.embeddings.close()
        raise
    return LoadedRun(path, config, record, shape, components, checkpoint.meta["steps"])


def with_vocabulary(config: TrainConfig, path: Path) -> TrainConfig:
    """The settings with the run's vocabulary, or that of its prepared data: categories map to the same rows."""
    kind, _, prepared = config.data.partition(":")
    folder = ((Path(prepared) if kind == "prepared" else path) / "vocabulary").absolute()
    if not folder.is_dir():
        return config
    return config.model_copy(update={"data_options": {"vocabulary_path": str(folder), **config.data_options}})


def _for_reading(config: TrainConfig) -> TrainConfig:
    """The settings for reading rows in place: one device row, and not the run's policy.

    The policy `lru` copies rows, so a host tier in files is not mapped into memory.
    """
    tier = config.tier.model_copy(update={"device_rows": "1"})
    changed: dict[str, object] = {"policy": "lru", "policy_options": {}, "skip": None, "tier": tier}
    return config.model_copy(update=changed)


def _changed(config: TrainConfig, settings: Settings) -> TrainConfig:
    tree = config.model_dump()
    for key, value in settings.items():
        section, _, name = key.partition(".")
        if not key.startswith(READABLE) or key.startswith("model."):
            raise ConfigError(
                f"expected one of tier.*, data.*, eval_batch_size and model, got {key} (--set). Other settings of a "
                "trained run cannot change"
            )
        if name:
            tree["data_options" if section == "data" else section][name] = value
        else:
            tree[key] = value
    try:
        return TrainConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"--set {explain(TrainConfig, error)}") from error


ROWS_BY_TRAINING_FILES: Final = ("taobao",)  # formats whose mapping of ids to rows depends on the training files


def evaluate_run(
    run_directory: Path | str,
    *,
    data: str | None = None,
    group_by: str | None = None,
    settings: Settings = NO_SETTINGS,
    stream: TextIO | None = None,
) -> dict[str, Any]:
    """Evaluate the weights of a run (as `load_run` chooses them) on its evaluation data.

    The numbers equal those of the run's summary to the last digit. Rows stay in the host tier of the run: those in
    files are never all in memory.

    Args:
        data: evaluate on all samples of these data, mapped to rows as in the run; see `data_of`.
        group_by: a feature with one value per sample, such as the user: adds GAUC over its values.
        settings: dotted keys of `READABLE` -> values that replace those of the run.
        stream: for the result, usually stderr.

    Raises:
        CheckpointError: if the run or its weights are missing or damaged.
        ConfigError: for other settings, or an unknown feature.
        InputError: if the data are not those of the run, have no evaluation part, or have samples without a label.
    """
    with load_with(Path(run_directory), settings) as run:
        position = group_feature(group_by, [feature.name for feature in run.shape.features], "--group-by")
        dataset = data_of(run, data)
        with torch_settings(run.config):
            batches = dataset.evaluation(run.config.eval_batch_size)
            keep_negatives = run.shape.keep_negatives
            evaluation = evaluate(run.embeddings, run.model, batches, by=position, keep_negatives=keep_negatives)
    if not evaluation.samples:
        raise InputError(
            f"expected data with an evaluation part, got {data or run.config.data} ({run.path}). Pass other data with "
            "--data SPEC"
        )
    if stream is not None:
        with contextlib.closing(Progress(stream, run.steps)) as progress:
            progress.write(evaluation_record(evaluation, run.steps))
        if evaluation.auc is None:
            stream.write(f"warning: {one_class_text(evaluation)}, so there is no AUC. Use other data.\n")
    facts = {"schema": SCHEMA, "run_dir": str(run.path), "policy": run.record["config"]["policy"], "steps": run.steps}
    if data is not None:
        facts["data"] = data
    return {**facts, **quality_numbers(evaluation)}


def data_of(run: LoadedRun, spec: str | None, *, may_lack_labels: bool = False) -> Dataset:
    """The data for reading a run; their evaluation part is used.

    Args:
        spec: None: the data of the run. Else `KIND:PATH[,PATH...]`, or only a path for the run's kind: all their
            samples are the evaluation part, in order. Relative paths start from the current folder.
        may_lack_labels: accept files without the label column of the schema.

    Raises:
        ConfigError: for invalid settings, and without a spec for a run that followed a folder: it trained all files.
        InputError: if files or the run's vocabulary are missing, or the data are not those of the run or do not fit.
    """
    folder = run.vocabulary_folder
    if run.vocabularies and not (
        folder.is_dir() and any(folder.iterdir())
    ):  # else a new one would be fitted to the data
        raise run.lacks_vocabulary()
    if spec is None and run.config.follow:
        raise ConfigError(f"expected --data SPEC, got none ({run.path}): a run with --follow trains all of its files")
    config = run.config if spec is None else _all_for_evaluation(run.config, spec, may_lack_labels)
    if "scales" in run.mapping and not config.data.startswith("prepared:") and not (folder / SCALES).is_file():
        raise InputError(
            f"expected the scales of dense inputs in {folder / SCALES}, got none ({run.path}). Restore that file"
        )
    dataset = open_data(config)
    if spec is None:
        check_same_data(run.path, run.record, dataset)
        return dataset
    _check_shape(run, shape_of(dataset))
    mapping = mapping_of(plain(dataset.fingerprint()))
    if run.vocabularies and mapping.get("vocabularies") != run.vocabularies:
        raise run.lacks_vocabulary()  # categories would map to other rows than in training
    if others := [name for name in run.mapping.keys() | mapping if run.mapping.get(name) != mapping.get(name)]:
        raise InputError(
            f"expected values that become rows and inputs as in training, got others: {', '.join(sorted(others))} "
            f"({run.path}). Use the schema and the vocabulary folder of the training data (data.vocabulary_path)"
        )
    return dataset


def _all_for_evaluation(config: TrainConfig, spec: str, may_lack_labels: bool) -> TrainConfig:
    """Settings that make all samples of `spec` the evaluation part.

    The files appear twice: as training files, which are not read, and as `eval_data`.
    """
    kind, colon, paths = spec.partition(":")
    if not colon and spec not in ("synthetic", "sequences"):
        kind, colon, paths = config.data.partition(":")[0], ":", spec
    options = dict(config.data_options)
    for name in ("holdout", "time_split", "eval_data", "shuffle_buffer"):
        options.pop(name, None)
    if kind == "prepared":  # the schema and rules of keys applied then
        options.pop("schema_path", None), options.pop("keys", None)
    if colon:
        options["eval_data"] = paths
    if may_lack_labels:
        options["label_optional"] = True
    spec = config.data if kind in ROWS_BY_TRAINING_FILES else f"{kind}{colon}{paths}"
    return config.model_copy(update={"data": spec, "data_options": options, "follow": False})


def _check_shape(run: LoadedRun, shape: DataShape) -> None:
    trained = run.shape
    # samples can be scored without them
    shape = replace(shape, key_rules=trained.key_rules, keep_negatives=trained.keep_negatives)
    if not (shape.dense_names and trained.dense_names):  # not every format names its dense inputs
        shape = replace(shape, dense_names=trained.dense_names)
    for field in fields(shape):
        expected, got = getattr(trained, field.name), getattr(shape, field.name)
        if expected == got:
            continue
        if isinstance(got, tuple) and len(got) == len(expected):
            expected, got = next(pair for pair in zip(expected, got, strict=True) if pair[0] != pair[1])
        raise InputError(f"expected data that fit the tables of {run.path} ({field.name}: {expected}), got {got}")
