"""A trained run as files that plain torch scores with: tables, dense part, id maps, and the code to use them."""

import copy
import json
import os
import resource
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from adaptive.errors import ConfigError, OutputError
from adaptive.models.custom import OwnConfig, given_to
from adaptive.models.factory import model_config
from adaptive.models.options import OPTIONS
from adaptive.models.widths import Widened
from adaptive.serving import dense_models, onnx_scoring, scoring, values
from adaptive.serving.id_maps import dense_rules, id_rules, ignored_names, vocabularies
from adaptive.serving.onnx_files import onnx_or_error, write_onnx
from adaptive.serving.page import page_text
from adaptive.serving.tensors import blocks_of, write_safetensors, write_torch
from adaptive.storage.arrays import Blocks, write_array
from adaptive.storage.durable import DISK, write_directory, write_new
from adaptive.training.build import inputs_of
from adaptive.training.runs.loading import NO_SETTINGS, LoadedRun, load_with
from adaptive.training.telemetry.report import SCHEMA

ALONE: Final = ("dlrm", "tbsm")  # models that `scoring.py` has itself
OWN_FILE: Final = "own_model.py"
FORMAT: Final = "adaptive-export"
VERSION: Final = 1
BLOCK_BYTES: Final = 8 << 20  # of a table that are in memory at once
FORMATS: Final[Mapping[str, str]] = {
    "torch": "model.pt",
    "safetensors": "model.safetensors",
    "onnx": "model.onnx",
}


def export_run(
    run_directory: Path | str, out: Path | str, *, to: str = "torch", settings: Mapping[str, Any] = NO_SETTINGS
) -> dict[str, Any]:
    """Export a trained run into the new folder `out`, which is there whole afterwards, or not at all.

    The folder holds the tensors of plain `nn.EmbeddingBag`s and of the dense part in one file, `model.json` (features,
    id maps, shapes), `ids/` (keys of fitted vocabularies), `scoring.py` and `values.py` (which need torch and numpy
    only, of an ONNX file onnxruntime and numpy) and a `README.md`.
    Tables are written 8 MiB at a time, and no value is read through pickle: rows lie as in the run.

    Args:
        to: "torch" (`model.pt`, for `torch.load(..., weights_only=True)`), "safetensors" (needs no package), or "onnx"
            (`model.onnx` and, for tables, `model.onnx.data`; needs the extra `onnx`; any batch size).
        settings: as in `evaluate_run`.

    Returns:
        `run_dir`, `out`, `to`, `tables`, `rows`, `export_bytes`; `peak_memory_bytes`, the most that this process has
        held in memory so far.

    Raises:
        CheckpointError: if the run or its weights are missing or damaged.
        ConfigError: for a format that is none of these, a model of a module, which has no file to go along, or settings
            that cannot work; of ONNX, if its packages are not there, or torch cannot trace the model.
        InputError: if the run's vocabulary is not there.
        OutputError: if `out` exists or cannot be written.
    """
    if to not in FORMATS:
        raise ConfigError(f"--to {to}: needed one of {', '.join(FORMATS)}")
    if to == "onnx":
        onnx_or_error()
    path = Path(out)
    if os.path.lexists(path):
        raise OutputError(f"--out {path}: exists already; an export makes a folder of its own")
    with load_with(Path(run_directory), settings) as run:
        _own_file(run)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_directory(path, partial(_fill, run, to))
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        except OSError as error:
            raise OutputError(f"{path} could not be written: {error}") from error
        return {
            "schema": SCHEMA,
            "run_dir": str(run.path),
            "out": str(path),
            "to": to,
            "tables": len(run.components.tables),
            "rows": sum(table.num_embeddings for table in run.components.tables),
            "export_bytes": size,
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }


def _fill(run: LoadedRun, to: str, folder: Path) -> None:
    """Write all files into a folder."""
    keys = vocabularies(run)
    facts = _facts(run, FORMATS[to], keys)
    _write_tensors(run, to, folder, facts)
    (folder / "ids").mkdir()
    for feature in facts["features"]:
        if feature["vocabulary"] and not (folder / feature["vocabulary"]).exists():
            table = facts["tables"][feature["table"]]["name"]
            write_array(folder / feature["vocabulary"], keys[table], DISK)
    DISK.sync_directory(folder / "ids")
    _write_text(folder / "model.json", json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    _write_text(folder / "README.md", page_text(facts))
    _write_code(run, to, folder)


def _write_tensors(run: LoadedRun, to: str, folder: Path, facts: Mapping[str, Any]) -> None:
    path, tables = folder / FORMATS[to], _tables(run)
    if to == "onnx":
        write_onnx(path, facts, list(tables.values()), _plain(run, facts))
        return
    write = write_torch if to == "torch" else write_safetensors
    dense = {f"dense.{name}": blocks_of(tensor) for name, tensor in run.model.state_dict().items()}
    write(path, tables | dense)


def _write_code(run: LoadedRun, to: str, folder: Path) -> None:
    """Copies of the code that scores."""
    _copy(Path(values.__file__), folder / "values.py")
    if to == "onnx":
        _copy(Path(onnx_scoring.__file__), folder / "scoring.py")
        return
    _copy(Path(scoring.__file__), folder / "scoring.py")
    if run.config.model not in ALONE or isinstance(run.model, Widened):
        _copy(Path(dense_models.__file__), folder / "dense_models.py")
    if (own := _own_file(run)) is not None:
        _copy(own, folder / OWN_FILE)


def _plain(run: LoadedRun, facts: Mapping[str, Any]) -> nn.Module:
    """The dense part on the CPU, in plain torch. A model of the user's own is that already.

    Raises:
        ConfigError: if it computes in bfloat16.
    """
    if facts["model"].get("bf16"):
        raise ConfigError(
            f"{run.path}: the model computes in bfloat16 (model.bf16), which onnxruntime cannot on a CPU; export it "
            "--to torch"
        )
    if _own_file(run) is not None:
        return copy.deepcopy(run.model).cpu().eval()
    with torch.device("meta"):
        model = scoring.dense_part(facts, run.path)
    model.load_state_dict({name: tensor.cpu() for name, tensor in run.model.state_dict().items()}, assign=True)
    return model.eval()


def _copy(path: Path, target: Path) -> None:
    with open(path, "rb") as source:
        write_new(target, lambda file: shutil.copyfileobj(source, file))


def _own_file(run: LoadedRun) -> Path | None:
    """The file of a model of the user's own; None: it is one that is here.

    Raises:
        ConfigError: if it is of a module.
    """
    if run.config.model in OPTIONS:
        return None
    place, _, _ = run.config.model.rpartition(":")
    if not place.endswith(".py"):
        raise ConfigError(
            f"{run.path}: the model {run.config.model} is code of a module, which an export cannot take along; name "
            "its file instead: --set model=PATH.py:CLASS"
        )
    return Path(place)


def _model_facts(run: LoadedRun) -> dict[str, Any]:
    """Name and settings of the model, as `scoring` takes them."""
    config = model_config(run.config.model, run.config.model_options, inputs_of(run.shape))
    found = config.model_dump(mode="json")
    if not isinstance(config, OwnConfig):
        return {"name": run.config.model, **found}
    shared = {name: found.pop(name) for name in OwnConfig.model_fields}
    model = run.model.model if isinstance(run.model, Widened) else run.model
    return {"name": "own", "file": OWN_FILE, "class": type(model).__name__, **shared, "own": found,
            "given": given_to(type(model))}  # fmt: skip


def _facts(run: LoadedRun, tensors: str, keys: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
    """The content of `model.json`."""
    tables = run.components.tables
    numbers = {table.name: number for number, table in enumerate(tables)}
    rules = id_rules(run, keys, {table: f"ids/{numbers[table]}.npy" for table in keys})
    return {
        "format": FORMAT,
        "version": VERSION,
        "run": {"folder": run.path.absolute().name, "steps": run.steps, "data": run.record["config"]["data"]},
        "tensors": tensors,
        "tables": [{"name": t.name, "rows": t.num_embeddings, "width": t.embedding_dim} for t in tables],
        "features": [{**rule, "table": numbers[table]} for rule, table in zip(rules, run.shape.tables, strict=True)],
        "dense": dense_rules(run),
        "ignored": ignored_names(run),
        "steps": run.shape.steps,
        "labels": list(run.shape.labels),
        "model": _model_facts(run),
    }


def _tables(run: LoadedRun) -> dict[str, Blocks]:
    """Name -> rows of each table, as `scoring.Model` names its own."""
    found = {}
    for number, table in enumerate(run.components.tables):
        shape = (table.num_embeddings, table.embedding_dim)
        make = partial(_table, run, table.name)
        found[f"tables.{number}.weight"] = Blocks(np.dtype(np.float32), shape, make)
    return found


def _table(run: LoadedRun, name: str) -> Iterator[NDArray[np.float32]]:
    return run.embeddings.rows.table_blocks(name, BLOCK_BYTES)


def _write_text(path: Path, text: str) -> None:
    write_new(path, lambda file: DISK.write(file, text.encode()))
