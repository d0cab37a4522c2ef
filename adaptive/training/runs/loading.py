"""`load_run`: the model of a trained run with its rows, from Python."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import nn

from adaptive.batch import Batch
from adaptive.config import TierConfig, TrainConfig
from adaptive.data.dataset import DataShape
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError
from adaptive.plugins import refuse_unnamed
from adaptive.storage.run_checkpoints import load_best
from adaptive.storage.run_directory import RECORD, read_record
from adaptive.training.build import Components, build
from adaptive.training.evaluation import predict
from adaptive.training.runs.distributed import readers_of, versions
from adaptive.training.runs.record import at_home, config_of, recorded_shape
from adaptive.training.runs.state import restore_weights

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
    record: Mapping[str, Any]
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
    def schema(self) -> dict[str, Any] | None:
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
    changed: dict[str, Any] = {} if tier is None else {"tier": tier}
    if model is not None:
        changed["model"] = model
    return _load(Path(path), lambda config: config.model_copy(update=changed), model)


def load_with(path: Path, settings: Mapping[str, Any], ranks: Ranks | None = None) -> LoadedRun:
    """`load_run` with some settings changed: dotted keys of `READABLE`; with `ranks`, which call it together, each has
    its own rows.

    Raises:
        ConfigError: for other keys, and as `load_run` does.
    """
    return _load(path, lambda config: _changed(config, settings), settings.get("model"), ranks)


def _load(
    path: Path, change: Callable[[TrainConfig], TrainConfig], model: str | None, ranks: Ranks | None = None
) -> LoadedRun:
    """`model`: what the caller has named."""
    record = read_record(path)
    config = config_of(record, path)
    config = change(_for_reading(with_vocabulary(at_home(config, record), path)))
    way = f"--set model={shlex.quote(config.model)}, from Python load_run(RUN, model=...)"
    refuse_unnamed("model", config.model, where=str(path / RECORD), named=model, how=way)
    where, checkpoint = load_best(path, readers_of(ranks))
    shape = recorded_shape(record, path)
    if ranks is not None:
        settings, steps = config.model_dump(mode="json", exclude={"out"}), checkpoint.meta["steps"]
        ranks.require_equal({"settings": settings, "checkpoint": where.name, "steps": steps, "versions": versions()})
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
    changed: dict[str, Any] = {"policy": "lru", "policy_options": {}, "skip": None, "guard": None, "tier": tier}
    return config.model_copy(update=changed)


def _changed(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
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
