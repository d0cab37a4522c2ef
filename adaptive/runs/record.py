"""What the record of a run (`run.json`) says of its settings and data, for resuming and evaluating it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.errors import CheckpointError, InputError
from adaptive.telemetry.jsonl import plain


def config_of(record: Mapping[str, Any], path: Path) -> TrainConfig:
    """The settings in the record of the run in directory `path`.

    Raises:
        CheckpointError: if they are none.
    """
    try:
        return TrainConfig.model_validate(_as_meant(record.get("config")))
    except ValidationError as error:
        raise CheckpointError(f"{path / 'run.json'}: config: {error.errors()[0]['msg']}") from error


def _as_meant(config: object) -> object:
    """Settings that an earlier version stored, with the defaults that it had for `slipstream`: deferral by visits."""
    if not isinstance(config, dict) or config.get("policy") != "slipstream":
        return config
    skip, optimizer, options = (config.get(name) or {} for name in ("skip", "optimizer", "policy_options"))
    if not skip or "min_visits" in skip or options.get("skip", "defer") != "defer":
        return config
    most = 4 if optimizer.get("name") == "sgd" else 8
    return {**config, "policy_options": {"by": "visits", "every": 32, "at_most": most, **options}}


def check_same_data(path: Path, record: Mapping[str, Any], dataset: Dataset) -> None:
    """Check that the data are those of the run in directory `path`.

    Raises:
        InputError: if they are not; says what differs.
    """
    recorded, found = record.get("data"), plain(dataset.fingerprint())
    if recorded == found:
        return
    recorded = recorded if isinstance(recorded, dict) else {}
    names = sorted(name for name in recorded.keys() | found.keys() if recorded.get(name) != found.get(name))
    differences = "; ".join(f"{name}: expected {recorded.get(name)}, found {found.get(name)}" for name in names)
    raise InputError(f"the data are not those of {path}: {differences}")
