"""A trained run from Python: its model with its rows (`load_run`), evaluated again (`evaluate_run`)."""

import contextlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TextIO, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import nn

from adaptive.batch import Batch
from adaptive.config import TierConfig, TrainConfig
from adaptive.data.dataset import Dataset, DataShape, shape_of
from adaptive.embeddings.ranks import ALONE, Ranks
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError, InputError
from adaptive.plugins import refuse_unnamed
from adaptive.storage.run_checkpoints import load_best
from adaptive.storage.run_directory import RECORD, read_record
from adaptive.training.components import Components, build, open_data, torch_settings
from adaptive.training.evaluation import evaluate, predict
from adaptive.training.runs.distributed import readers_of, reporting_errors, versions
from adaptive.training.runs.run import group_feature, quality_numbers
from adaptive.training.runs.run_record import FOLDER, Json, at_home, check_same_data, config_of, recorded_shape
from adaptive.training.runs.state import restore_weights
from adaptive.training.telemetry.progress import Progress
from adaptive.training.telemetry.recorder import evaluation_record
from adaptive.training.telemetry.report import SCHEMA, QualitySummary

Settings = Mapping[str, Any]  # values by dotted keys, as after --set
NO_SETTINGS: Final[Settings] = MappingProxyType({})
READABLE = ("tier.", "data.", "eval_batch_size", "model")  # settings that reading a run may change


@dataclass(frozen=True)
class LoadedRun:
    """A trained run, loaded. Close it, or use it in a `with` statement: the host tier's files are then given back.

    Attributes:
        path: the run directory.
        config: its settings, with absolute paths; the tiers are those of reading, and no policy is loaded.
        record: what `run.json` says; `record["data"]` identifies the data and holds their schema.
        shape: features with their tables and rows, dense inputs, steps.
        components: model, embeddings, tables, and a new optimizer of the model.
        steps: batches it was trained on.
    """

    path: Path
    config: TrainConfig
    record: Json
    shape: DataShape
    components: Components
    steps: int

    @property
    def model(self) -> nn.Module:
        """The dense part: `model(dense, pooled)` gives logits (B,)."""
        return self.components.model

    @property
    def embeddings(self) -> TieredEmbeddingBag:
        """All rows; `read(batch)` looks them up, `table_blocks(name)` gives a table block by block."""
        return self.components.embeddings

    @property
    def schema(self) -> Json | None:
        """The schema of the run's files, as JSON values; None for data that have none."""
        data = self.record.get("data")
        return data.get("schema") if isinstance(data, dict) else None

    def predict(self, batches: Iterable[Batch]) -> Iterator[NDArray[np.float32]]:
        """Of each batch (B,) the probabilities that labels are 1, of a model of several labels (B, T), in the order of
        the samples.

        Raises:
            InputError: for batches that do not fit the tables.
            NonFiniteError: for a logit that is not finite.
        """
        for logits in predict(self.embeddings, self.model, batches):
            yield probabilities(logits)

    @property
    def vocabulary_folder(self) -> Path:
        """Where the vocabularies are that the run was trained with, if it fitted some."""
        return Path(self.config.data_options.get("vocabulary_path") or self.path / "vocabulary")

    @property
    def vocabularies(self) -> Mapping[str, str]:
        """Table -> checksum of the vocabularies that the run was trained with."""
        recorded = self.record.get("data")
        return (recorded.get("vocabularies") or {}) if isinstance(recorded, dict) else {}

    def lacks_vocabulary(self) -> InputError:
        """What to raise if they are not there."""
        return InputError(
            f"{self.path} was trained with vocabularies of {', '.join(self.vocabularies)}, which "
            f"{self.vocabulary_folder} does not hold; put that folder back, or give its place: --set "
            "data.vocabulary_path=DIR"
        )

    def close(self) -> None:
        self.embeddings.close()

    def __enter__(self) -> "LoadedRun":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def probabilities(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of logits, without overflow; of their shape, computed in float64."""
    return (0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64)))).astype(np.float32)


def load_run(path: Path | str, *, tier: TierConfig | None = None, model: str | None = None) -> LoadedRun:
    """The model of a trained run with its rows: the last weights, of a run that keeps those of its best evaluation
    (`save=best`) these. Of a run that was cut short, or is under way, the newest checkpoint.

    The data of the run need not be there, nor its policy. Weights are verified; no code is run but a model that is
    named here.

    Args:
        path: the run directory.
        tier: where rows are to lie. Default: a host tier as the run had it, in memory or in files, and the smallest
            device tier, which is enough for reading.
        model: `file.py:Class` or `module:Class` of a run that trained a model of the user's own: what a run directory
            alone names is not run.

    Raises:
        CheckpointError: if the run or its weights are missing or damaged.
        ConfigError: if the rows' files cannot be made; give another `tier`.
    """
    changed = {name: value for name, value in (("tier", tier), ("model", model)) if value is not None}
    return _load(Path(path), lambda config: config.model_copy(update=changed), model)


def load_with(path: Path, settings: Settings, ranks: Ranks = ALONE) -> LoadedRun:
    """`load_run` with some settings changed: dotted keys of `READABLE`; with `ranks`, which call it together, each has
    its own rows.

    Raises:
        ConfigError: for other keys, and as `load_run` does.
    """
    return _load(path, lambda config: _changed(config, settings), settings.get("model"), ranks)


def _load(
    path: Path, change: Callable[[TrainConfig], TrainConfig], model: str | None, ranks: Ranks = ALONE
) -> LoadedRun:
    """`model`: what the caller has named."""
    record = read_record(path)
    config = change(_for_reading(with_vocabulary(at_home(config_of(record, path), record), path)))
    way = f"--set model={shlex.quote(config.model)}, from Python load_run(RUN, model=...)"
    refuse_unnamed("model", config.model, where=str(path / RECORD), named=model, how=way)
    where, checkpoint = load_best(path, readers_of(ranks))
    shape = recorded_shape(record, path)
    ranks.require_equal(
        lambda: {
            "settings": config.model_dump(mode="json", exclude={"out"}),
            "checkpoint": where.name,
            "steps": checkpoint.meta["steps"],
            "versions": versions(),
        }
    )
    components = build(config, shape, ranks=ranks)
    try:
        restore_weights(components, checkpoint, where=where)
    except BaseException:
        components.embeddings.close()
        raise
    return LoadedRun(path, config, record, shape, components, checkpoint.meta["steps"])


def with_vocabulary(config: TrainConfig, path: Path) -> TrainConfig:
    """The settings with the run's own vocabulary, if it fitted one, so that categories are mapped as in the run."""
    folder = (path / "vocabulary").absolute()
    if not folder.is_dir():
        return config
    return config.model_copy(update={"data_options": {"vocabulary_path": str(folder), **config.data_options}})


def _for_reading(config: TrainConfig) -> TrainConfig:
    """The settings for reading rows where they lie: no slots to speak of, and the code of the run's policy is not
    loaded. `lru` copies rows, so a host tier in files is not mapped into memory."""
    tier = config.tier.model_copy(update={"device_rows": "1"})
    changed: dict[str, object] = {"policy": "lru", "policy_options": {}, "skip": None, "guard": None, "tier": tier}
    return config.model_copy(update=changed)


def _changed(config: TrainConfig, settings: Settings) -> TrainConfig:
    tree = config.model_dump()
    for key, value in settings.items():
        section, _, name = key.partition(".")
        if not key.startswith(READABLE) or key.startswith("model."):
            raise ConfigError(
                f"--set {key}: a run is read as it was trained; only tier.*, data.* and eval_batch_size can be changed"
                ", and where a model of one's own lies (model)"
            )
        if name:
            tree["data_options" if section == "data" else section][name] = value
        else:
            tree[key] = value
    try:
        return TrainConfig.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"--set {where}: {first['msg']}, found {first['input']!r}") from error


ROWS_BY_TRAINING_FILES: Final = ("taobao",)  # kinds whose ids become rows by what the training files hold


class EvaluationSummary(QualitySummary, total=False):
    """The object that `eval --json` prints."""

    schema: int
    run_dir: str
    data: str  # where they are not those of the run
    policy: str
    steps: int


def evaluate_run(
    run_directory: Path | str,
    *,
    data: str | None = None,
    group_by: str | None = None,
    settings: Settings = NO_SETTINGS,
    stream: TextIO | None = None,
    ranks: Ranks = ALONE,
) -> EvaluationSummary:
    """Evaluate the saved weights of a run on its evaluation data: the numbers its summary has, to the last digit. Of a
    run that was cut short, or is under way, the newest checkpoint is evaluated. Rows lie as in the run: those of a host
    tier in files are never all in memory.

    Args:
        data: evaluate on all samples of these data, mapped to rows as the run's were; see `data_of`.
        group_by: a feature with one value a sample, such as the user: adds GAUC over its values (`gauc`,
        `gauc_groups`).
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
    with reporting_errors(ranks), load_with(Path(run_directory), settings, ranks) as run:
        position = group_feature(group_by, [feature.name for feature in run.shape.features], "--group-by")
        dataset = data_of(run, data)
        ranks.require_equal(lambda: {"group_by": group_by, "data": dataset.fingerprint()})
        with torch_settings(run.config):
            batches = evaluation_batches(run, dataset)
            evaluation = evaluate(run.embeddings, run.model, batches, by=position, in_turn=not ranks.is_local)
    if not evaluation.samples:
        raise InputError(
            f"the data of {run.path} ({data or run.config.data}) have no evaluation part; give others: --data SPEC"
        )
    if stream is not None:
        with contextlib.closing(Progress(stream, run.steps)) as progress:
            progress.write(evaluation_record(evaluation, run.steps))
    facts = {"schema": SCHEMA, "run_dir": str(run.path), "policy": run.record["config"]["policy"], "steps": run.steps}
    if data is not None:
        facts["data"] = data
    return cast(EvaluationSummary, {**facts, **quality_numbers(evaluation)})


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
    folder = run.vocabulary_folder
    if run.vocabularies and not (folder.is_dir() and any(folder.iterdir())):  # another one would be fitted to the data
        raise run.lacks_vocabulary()
    config = run.config if spec is None else _all_for_evaluation(run.config, spec, may_lack_labels)
    try:
        dataset = open_data(config)
    except (ConfigError, InputError) as error:
        home = run.record.get(FOLDER)
        if not home or str(home) not in str(error):
            raise
        raise type(error)(
            f"{error}\n{run.path} was trained in {home}, from where its relative paths are looked for; if they have "
            "moved, give --data SPEC, and the schema by --set data.schema_path=FILE"
        ) from error
    if spec is None:
        check_same_data(run.path, run.record, dataset)
        return dataset
    _check_shape(run, shape_of(dataset))
    if run.vocabularies and dataset.fingerprint().get("vocabularies") != run.vocabularies:
        raise run.lacks_vocabulary()  # categories would not mean the rows that they meant in training
    return dataset


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


def _check_shape(run: LoadedRun, shape: DataShape) -> None:
    needed = run.shape
    shape = replace(shape, labels=needed.labels, widths=needed.widths)  # samples can be scored without them
    if not (shape.dense_names and needed.dense_names):  # not every format names its dense inputs
        shape = replace(shape, dense_names=needed.dense_names)
    if shape != needed:
        expected, got = _shape_texts(needed, shape)
        raise InputError(f"the data do not fit the tables of {run.path}: expected {expected}, found {got}")


def _shape_texts(needed: DataShape, other: DataShape) -> list[str]:
    """What differs, of both."""
    for features in zip(needed.features, other.features, strict=False):
        if features[0] != features[1]:
            texts = [f"{feature.name} of {feature.num_embeddings}" for feature in features]
            return [f"feature {texts[0]} rows", texts[1]]
    shapes = needed, other
    if needed.dense_names != other.dense_names:
        return [f"dense inputs in the order {', '.join(shape.dense_names)}" for shape in shapes]
    return [
        f"{len(shape.features)} features, {shape.num_dense} dense inputs, {shape.steps} step(s) and tables "
        f"{', '.join(dict.fromkeys(shape.tables))}"
        for shape in shapes
    ]
