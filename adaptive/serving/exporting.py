"""A trained run as files that plain torch scores with: tables, dense part, id maps, and the code to use them."""

import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.errors import ConfigError, OutputError
from adaptive.models.dlrm import DLRM
from adaptive.models.tbsm import TBSM
from adaptive.runs.evaluating import NO_SETTINGS
from adaptive.runs.loading import LoadedRun, load_with
from adaptive.serving import scoring
from adaptive.serving.id_maps import dense_rules, id_rules, vocabularies
from adaptive.serving.page import page_text
from adaptive.serving.tensors import blocks_of, write_safetensors, write_torch
from adaptive.storage.arrays import Blocks, write_array
from adaptive.storage.durable import DISK, write_directory, write_new
from adaptive.telemetry.report import SCHEMA

FORMAT: Final = "adaptive-export"
VERSION: Final = 1
BLOCK_BYTES: Final = 8 << 20  # of a table that are in memory at once
WRITERS: Final[Mapping[str, tuple[str, Callable[[Path, Mapping[str, Blocks]], None]]]] = {
    "torch": ("model.pt", write_torch),
    "safetensors": ("model.safetensors", write_safetensors),
}


def export_run(
    run_directory: Path | str, out: Path | str, *, to: str = "torch", settings: Mapping[str, Any] = NO_SETTINGS
) -> dict[str, Any]:
    """Export a trained run into the new folder `out`, which is there whole afterwards, or not at all.

    The folder holds the tensors of plain `nn.EmbeddingBag`s and of the dense part in one file, `model.json` (features,
    id maps, shapes), `ids/` (keys of fitted vocabularies), `scoring.py` (needs torch and numpy only) and a `README.md`.
    Tables are written 8 MiB at a time, and no value is read through pickle: rows lie as in the run.

    Args:
        to: "torch" (`model.pt`, for `torch.load(..., weights_only=True)`) or "safetensors" (needs no package).
        settings: as in `evaluate_run`.

    Returns:
        `run_dir`, `out`, `to`, `tables`, `rows`, `export_bytes`; `peak_memory_bytes`, the most that this process has
        held in memory so far.

    Raises:
        CheckpointError: if the run or its weights are missing or damaged.
        ConfigError: for a format that is none of these, another model than DLRM and TBSM, or settings that cannot work.
        InputError: if the run's vocabulary is not there.
        OutputError: if `out` exists or cannot be written.
    """
    if to not in WRITERS:
        raise ConfigError(f"--to {to}: needed one of {', '.join(WRITERS)}")
    path = Path(out)
    if os.path.lexists(path):
        raise OutputError(f"--out {path}: exists already; an export makes a folder of its own")
    with load_with(Path(run_directory), settings) as run:
        if not isinstance(run.model, DLRM | TBSM):
            raise ConfigError(f"{run.path}: only dlrm and tbsm can be exported, found {type(run.model).__name__}")
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
    tensors, write = WRITERS[to]
    keys = vocabularies(run)
    facts = _facts(run, tensors, keys)
    write(folder / tensors, _tensors(run))
    (folder / "ids").mkdir()
    for feature in facts["features"]:
        if feature["vocabulary"] and not (folder / feature["vocabulary"]).exists():
            table = facts["tables"][feature["table"]]["name"]
            write_array(folder / feature["vocabulary"], keys[table], DISK)
    DISK.sync_directory(folder / "ids")
    _write_text(folder / "model.json", json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    _write_text(folder / "README.md", page_text(facts))
    with open(scoring.__file__, "rb") as source:
        write_new(folder / "scoring.py", lambda file: shutil.copyfileobj(source, file))


def _facts(run: LoadedRun, tensors: str, keys: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
    """The content of `model.json`."""
    tables = run.components.tables
    numbers = {table.name: number for number, table in enumerate(tables)}
    rules = id_rules(run, keys, {table: f"ids/{numbers[table]}.npy" for table in keys})
    assert isinstance(run.model, DLRM | TBSM)
    return {
        "format": FORMAT,
        "version": VERSION,
        "run": {"folder": run.path.absolute().name, "steps": run.steps, "data": run.record["config"]["data"]},
        "tensors": tensors,
        "tables": [{"name": t.name, "rows": t.num_embeddings, "width": t.embedding_dim} for t in tables],
        "features": [{**rule, "table": numbers[table]} for rule, table in zip(rules, run.shape.tables, strict=True)],
        "dense": dense_rules(run),
        "steps": run.shape.steps,
        "model": {"name": run.config.model, **run.model.config.model_dump(mode="json")},
    }


def _tensors(run: LoadedRun) -> dict[str, Blocks]:
    """Name -> values, as `scoring.Model` names its own."""
    found = {}
    for number, table in enumerate(run.components.tables):
        shape = (table.num_embeddings, table.embedding_dim)
        make = partial(_table, run, table.name)
        found[f"tables.{number}.weight"] = Blocks(np.dtype(np.float32), shape, make)
    return found | {f"dense.{name}": blocks_of(tensor) for name, tensor in run.model.state_dict().items()}


def _table(run: LoadedRun, name: str) -> Iterator[NDArray[np.float32]]:
    return run.embeddings.table_blocks(name, BLOCK_BYTES)


def _write_text(path: Path, text: str) -> None:
    write_new(path, lambda file: DISK.write(file, text.encode()))
