"""Settings and data in the record of a run (`run.json`)."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from adaptive.config import TrainConfig, explain
from adaptive.data.dataset import Dataset, DataShape, shape_of
from adaptive.data.text.schema import schema_file
from adaptive.errors import CheckpointError, InputError
from adaptive.training.telemetry.jsonl import plain

Json = Mapping[str, Any]
"""`run.json` or a part of it, unchecked: users check the values."""

FOLDER, SHAPE = "folder", "shape"


def data_entries(dataset: Dataset) -> Json:
    """Entries of `run.json`: folder of relative paths, and shape of the data."""
    return {FOLDER: os.getcwd(), SHAPE: TypeAdapter(DataShape).dump_python(shape_of(dataset), mode="json")}


def recorded_shape(record: Json, path: Path) -> DataShape:
    """The shape of a run's data; CheckpointError if it is missing or invalid."""
    try:
        return TypeAdapter(DataShape).validate_python(record.get(SHAPE))
    except ValidationError as error:
        raise CheckpointError(f"{error.errors()[0]['msg']} ({path / 'run.json'}: {SHAPE})") from error


def resolve_paths(config: TrainConfig, record: Json) -> TrainConfig:
    """The settings with relative paths resolved from the folder in which the run was started."""
    home = Path(str(record.get(FOLDER, "")))

    def path_of(text: object) -> Path:
        return Path(str(text).strip()).expanduser()

    def resolved(text: object) -> str:
        return str(home / path_of(text))

    kind, colon, paths = config.data.partition(":")
    options = dict(config.data_options)
    if options.get("schema_path") is not None:
        options["schema_path"] = str(schema_file(path_of(options["schema_path"]), home))
    if options.get("vocabulary_path") is not None:
        options["vocabulary_path"] = resolved(options["vocabulary_path"])
    if options.get("eval_data") is not None:
        options["eval_data"] = ",".join(map(resolved, str(options["eval_data"]).split(",")))
    host = config.tier.host
    if host.startswith("mmap:"):
        host = f"mmap:{resolved(host.removeprefix('mmap:'))}"
    return config.model_copy(
        update={
            "data": f"{kind}:{','.join(map(resolved, paths.split(',')))}" if colon else config.data,
            "data_options": options,
            "tier": config.tier.model_copy(update={"host": host}),
        }
    )


def config_of(record: Json, path: Path) -> TrainConfig:
    """The settings of a run; CheckpointError if they are missing or invalid."""
    if record.get("own_loop"):
        raise CheckpointError(
            f"expected a run of adaptive-train, got a recording of a Python training loop without settings and weights "
            f"({path}). View it with tensorboard --logdir {shlex.quote(str(path))}"
        )
    try:
        return TrainConfig.model_validate(record.get("config"))
    except ValidationError as error:
        raise CheckpointError(
            f"{path / 'run.json'}: expected settings of this version, got config.{explain(TrainConfig, error)}. Read "
            "it with the version of adaptive-train that wrote it."
        ) from error


def check_same_data(path: Path, record: Json, dataset: Dataset) -> None:
    """Raise InputError unless the data are those of the run; their files may have moved."""
    recorded, data = record.get("data"), plain(dataset.fingerprint())
    if _without_paths(recorded) == _without_paths(data):
        return
    recorded = recorded if isinstance(recorded, dict) else {}
    names = sorted(name for name in recorded.keys() | data.keys() if recorded.get(name) != data.get(name))
    differences = "; ".join(text for name in names for text in _differences(name, recorded.get(name), data.get(name)))
    raise InputError(f"expected the data of {path}, got other data: {differences}")


def _without_paths(data: object) -> object:
    """The data without paths of files: the same files in another folder are the same data."""
    if not isinstance(data, dict) or not isinstance(data.get("files"), list):
        return data
    files = [{**file, "path": None} if isinstance(file, dict) else file for file in data["files"]]
    return {**data, "files": files}


def _differences(name: str, recorded: object, data: object) -> list[str]:
    """Differences in an entry, one for each file that differs."""
    if name != "files" or not isinstance(recorded, list) or not isinstance(data, list):
        return [f"{name}: expected {recorded}, got {data}"]
    if len(recorded) != len(data):
        return [f"expected {len(recorded)} files, got {len(data)}"]
    return [
        f"file {number}: expected {_file_text(old)}, got {_file_text(new)}"
        for number, (old, new) in enumerate(zip(recorded, data, strict=True), start=1)
        if {**old, "path": None} != {**new, "path": None}
    ]


def _file_text(file: Json) -> str:
    return f"{file.get('path')} of {file.get('bytes')} bytes with sha256 {file.get('sha256')}"
