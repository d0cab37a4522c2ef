"""What the record of a run (`run.json`) says of its settings and data, for resuming, evaluating and serving it."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset, DataShape, shape_of
from adaptive.data.text.schema import schema_file
from adaptive.errors import CheckpointError, InputError
from adaptive.training.telemetry.jsonl import plain

Json = Mapping[str, Any]
"""`run.json`, or a part of it, as it was read: values are checked where they are used."""

FOLDER, SHAPE = "folder", "shape"


def where_and_what(dataset: Dataset) -> Json:
    """Entries of `run.json`: the folder from which the run's relative paths are meant, and the shape of its data."""
    return {FOLDER: os.getcwd(), SHAPE: TypeAdapter(DataShape).dump_python(shape_of(dataset), mode="json")}


MOST_DENSE = 1 << 24  # inputs of a sample: far more than anyone has, and a layer of them still fits in memory


def recorded_shape(record: Json, path: Path) -> DataShape:
    """The shape of the data of the run in directory `path`.

    Raises:
        CheckpointError: if it is missing, or there is something else in its place.
    """
    try:
        shape = TypeAdapter(DataShape).validate_python(record.get(SHAPE))
    except ValidationError as error:
        raise CheckpointError(f"{path / 'run.json'}: {SHAPE}: {error.errors()[0]['msg']}") from error
    sizes = len(shape.features), shape.num_dense
    possible = 1 <= sizes[0] == len(shape.tables) and 0 <= sizes[1] < MOST_DENSE and shape.steps >= 1
    if not possible or any(size % shape.steps for size in sizes):
        raise CheckpointError(
            f"{path / 'run.json'}: {SHAPE}: expected as many tables as features, at least one, fewer than "
            f"{MOST_DENSE:,} dense inputs, and steps that divide both, got {len(shape.tables)} tables, "
            f"{sizes[0]} features, {sizes[1]:,} dense inputs and {shape.steps} steps. Use a copy of the run directory."
        )
    return shape


def at_home(config: TrainConfig, record: Json) -> TrainConfig:
    """The settings with their paths as they were meant: relative ones from the folder in which the run was made."""
    home = Path(str(record.get(FOLDER, "")))

    def path_of(text: object) -> Path:
        return Path(str(text).strip()).expanduser()

    def meant(text: object) -> str:
        return str(home / path_of(text))

    kind, colon, paths = config.data.partition(":")
    options = dict(config.data_options)
    if options.get("schema_path") is not None:
        options["schema_path"] = str(schema_file(path_of(options["schema_path"]), home))
    if options.get("vocabulary_path") is not None:
        options["vocabulary_path"] = meant(options["vocabulary_path"])
    if options.get("eval_data") is not None:
        options["eval_data"] = ",".join(map(meant, str(options["eval_data"]).split(",")))
    host = config.tier.host
    if host.startswith("mmap:"):
        host = f"mmap:{meant(host.removeprefix('mmap:'))}"
    return config.model_copy(
        update={
            "data": f"{kind}:{','.join(map(meant, paths.split(',')))}" if colon else config.data,
            "data_options": options,
            "tier": config.tier.model_copy(update={"host": host}),
        }
    )


def config_of(record: Json, path: Path) -> TrainConfig:
    """The settings in the record of the run in directory `path`.

    Raises:
        CheckpointError: if they are none.
    """
    if record.get("own_loop"):
        raise CheckpointError(
            f"{path}: expected a run of adaptive-train, got the recording of a training loop in Python, which holds no "
            f"settings and no weights. See it with adaptive-train report {shlex.quote(str(path))}"
        )
    try:
        return TrainConfig.model_validate(record.get("config"))
    except ValidationError as error:
        raise CheckpointError(f"{path / 'run.json'}: config: {error.errors()[0]['msg']}") from error


def check_same_data(path: Path, record: Json, dataset: Dataset) -> None:
    """Check that the data are those of the run in directory `path`, wherever their files lie by now.

    Raises:
        InputError: if they are not; says what differs.
    """
    recorded, data = record.get("data"), plain(dataset.fingerprint())
    if _without_paths(recorded) == _without_paths(data):
        return
    recorded = recorded if isinstance(recorded, dict) else {}
    names = sorted(name for name in recorded.keys() | data.keys() if recorded.get(name) != data.get(name))
    differences = "; ".join(text for name in names for text in _differences(name, recorded.get(name), data.get(name)))
    raise InputError(f"the data are not those of {path}: {differences}")


def _without_paths(data: object) -> object:
    """The same files in another folder are the same data."""
    if not isinstance(data, dict) or not isinstance(data.get("files"), list):
        return data
    files = [{**file, "path": None} if isinstance(file, dict) else file for file in data["files"]]
    return {**data, "files": files}


def _differences(name: str, recorded: object, data: object) -> list[str]:
    """What differs in an entry; of files each that does."""
    if name != "files" or not isinstance(recorded, list) or not isinstance(data, list):
        return [f"{name}: expected {recorded}, found {data}"]
    if len(recorded) != len(data):
        return [f"expected {len(recorded)} files, found {len(data)}"]
    return [
        f"file {number}: expected {_file_text(before)}, found {_file_text(now)}"
        for number, (before, now) in enumerate(zip(recorded, data, strict=True), start=1)
        if {**before, "path": None} != {**now, "path": None}
    ]


def _file_text(file: Json) -> str:
    return f"{file.get('path')} of {file.get('bytes')} bytes with sha256 {file.get('sha256')}"
