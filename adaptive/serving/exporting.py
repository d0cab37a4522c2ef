"""Export a trained run for plain torch: weights, id maps, scoring code."""

import json
import math
import os
import resource
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive.errors import ConfigError, InputError, OutputError
from adaptive.kernels.vector.bfloat16 import BFLOAT16, as_float32, narrow, widen
from adaptive.models import dense
from adaptive.models.dense.assembly import Widened
from adaptive.models.factory import CustomConfig, model_config, offered_to
from adaptive.models.model_settings import OPTIONS
from adaptive.serving import sample_values, scoring
from adaptive.serving.export_check import ExportCheck, check_export
from adaptive.serving.export_facts import dense_facts, feature_facts, ignored_names, vocabularies
from adaptive.serving.sample_values import ExportFacts, TableFacts
from adaptive.storage.arrays import Blocks, write_array
from adaptive.storage.durable import DISK, write_directory, write_new
from adaptive.training.components import inputs_of
from adaptive.training.runs.loading import (
    NO_SETTINGS,
    LoadedRun,
    Settings,
    load_with,
)
from adaptive.training.telemetry.report import SCHEMA

CUSTOM_FILE: Final = "custom_model.py"
FORMAT: Final = "adaptive-export"
VERSION: Final = 1
BLOCK_BYTES: Final = 4 << 20  # of a table in memory at once, plus the optimizer state of its rows
ROW_DTYPES: Final = ("float32", "bfloat16")


@dataclass(frozen=True)
class ExportResult:
    """Result of an export.

    Attributes:
        checked_rows: rows of the data whose scores agree with those of the run.
        largest_difference: between the two scores of a row.
        not_checked: why no row was checked; "" if some were.
        peak_memory_bytes: the maximum memory of this process so far.
    """

    schema: int
    run_dir: str
    out: str
    row_dtype: str
    tables: int
    rows: int
    export_bytes: int
    peak_memory_bytes: int
    checked_rows: int = 0
    largest_difference: float = 0.0
    not_checked: str = ""


def export_run(
    run_directory: Path | str,
    out: Path | str,
    *,
    row_dtype: str = "float32",
    check: str | None = None,
    settings: Settings = NO_SETTINGS,
) -> ExportResult:
    """Export a trained run into the new folder `out`, completely or not at all.

    The folder has `model.pt` with the tensors of plain `nn.EmbeddingBag`s and of the dense part (for
    `torch.load(..., weights_only=True)`), `model.json` (features, id maps, shapes), `ids/` (keys of fitted vocabularies
    and of tables with keys), and code
    (`scoring.py`, `sample_values.py`, `dense/`) that requires only numpy and torch. Tables are written in blocks, so
    they need not fit into memory, and no value is read through pickle.

    Args:
        row_dtype: "float32" or "bfloat16" (rounded to nearest).
        check: data, as for `evaluate_run`, whose first rows the export must score as the run does (`check_export`).
            None: the evaluation part of the run's data, if it is there.
        settings: as in `evaluate_run`.

    Raises:
        CheckpointError: if the run or its weights are missing or damaged.
        ConfigError: for another dtype, a custom model from a module (it has no file to copy), or invalid
            settings.
        InputError: if the run's vocabulary is missing, or the data to check.
        OutputError: if `out` exists or cannot be written, or a score differs from the run's.
    """
    if row_dtype not in ROW_DTYPES:
        raise ConfigError(f"expected one of {', '.join(ROW_DTYPES)}, got {row_dtype!r} (--row-dtype)")
    path = Path(out)
    if os.path.lexists(path):
        raise OutputError(f"expected a new folder, got {path}, which exists (--out). Choose another name")
    with load_with(Path(run_directory), settings) as run:
        _custom_file(run)
        tables = _tables(run)
        checked = ExportCheck(0, 0.0)
        not_checked = ""

        def fill(folder: Path) -> None:
            nonlocal checked, not_checked
            _fill(run, row_dtype, folder)
            try:
                checked = check_export(run, folder, check, as_float32 if row_dtype == "float32" else as_bfloat16)
            except (ConfigError, InputError) as error:
                if check is not None:
                    raise
                not_checked = str(error)

        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_directory(path, fill)
        except OSError as error:
            raise OutputError(f"{path} could not be written: {error}") from error
        return ExportResult(
            schema=SCHEMA,
            run_dir=str(run.path),
            out=str(path),
            row_dtype=row_dtype,
            tables=len(tables),
            rows=sum(table.rows for table in tables),
            export_bytes=sum(file.stat().st_size for file in path.rglob("*") if file.is_file()),
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            checked_rows=checked.rows,
            largest_difference=checked.largest_difference,
            not_checked=not_checked,
        )


def _tables(run: LoadedRun) -> list[TableFacts]:
    """Return the exported tables; rows with keys are those that have one, and the one for other keys."""
    store = run.embeddings.rows
    return [
        TableFacts(
            table.name,
            table.num_embeddings if table.keys is None else len(store.table_keys(table.name)) + 1,
            table.embedding_dim,
        )
        for table in run.components.tables
    ]


def as_bfloat16(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Return rows, as tables store them, rounded to bfloat16."""
    return widen(narrow(as_float32(rows)))


def _fill(run: LoadedRun, row_dtype: str, folder: Path) -> None:
    """Write all files of the export into a folder."""
    facts, keys = facts_of(run, row_dtype)
    write_tensors(folder / scoring.TENSORS, tensors_of(run, facts))
    (folder / "ids").mkdir()
    for name, array in keys.items():
        write_array(folder / name, array, DISK)
    DISK.sync_directory(folder / "ids")
    write_text(folder / "model.json", json.dumps(asdict(facts), indent=1, ensure_ascii=False) + "\n")
    _write_code(run, folder)


def tensors_of(run: LoadedRun, facts: ExportFacts) -> dict[str, Blocks]:
    """Return tables and the dense part, with the names of `scoring.Model`."""
    tensors: dict[str, Blocks] = {}
    for number, table in enumerate(facts.tables):
        name, shape = f"tables.{number}.weight", (table.rows, table.width)
        make = partial(_table, run, table.name)
        is_narrow = facts.row_dtype == "bfloat16"
        tensors[name] = (
            Blocks(BFLOAT16, shape, partial(_narrowed, make))
            if is_narrow
            else Blocks(np.dtype(np.float32), shape, make)
        )
    return tensors | {f"dense.{name}": blocks_of(tensor) for name, tensor in run.model.state_dict().items()}


def _table(run: LoadedRun, name: str) -> Iterator[NDArray[np.float32]]:
    return run.embeddings.rows.table_blocks(name, BLOCK_BYTES)


def _narrowed(make: Callable[[], Iterator[NDArray[np.float32]]]) -> Iterator[NDArray[np.uint16]]:
    return map(narrow, make())


def _write_code(run: LoadedRun, folder: Path) -> None:
    """Copy the scoring code and the code of the dense part, without its fused kernels."""
    copy_file(Path(sample_values.__file__), folder / "sample_values.py")
    copy_file(Path(scoring.__file__), folder / "scoring.py")
    source, target = Path(dense.__path__[0]), folder / "dense"
    target.mkdir()
    for path in source.glob("*.py"):
        if path.name != "interactions.py":
            copy_file(path, target / ("interactions.py" if path.name == "plain_interactions.py" else path.name))
    DISK.sync_directory(target)
    if (custom := _custom_file(run)) is not None:
        copy_file(custom, folder / CUSTOM_FILE)


def copy_file(path: Path, target: Path) -> None:
    """Copy and sync a new file; OSError unless the source is a regular file."""
    if not path.is_file():
        raise OSError(f"expected a regular file, got another kind: {path}")
    with open(path, "rb") as source:
        write_new(target, lambda file: shutil.copyfileobj(source, file))


def _custom_file(run: LoadedRun) -> Path | None:
    """Return a custom model's file, None for a built-in one; ConfigError for a module."""
    if run.config.model in OPTIONS:
        return None
    place, _, _ = run.config.model.rpartition(":")
    if not place.endswith(".py"):
        raise ConfigError(
            f"expected a custom model from a file, got {run.config.model} from a module ({run.path}). Name its file: "
            "--set model=PATH.py:CLASS"
        )
    return Path(place)


def _model_facts(run: LoadedRun) -> Mapping[str, Any]:
    """Name and settings of the model for `scoring`."""
    config = model_config(run.config.model, run.config.model_options, inputs_of(run.shape))
    settings = config.model_dump(mode="json", exclude={"row_dtype", "row_dtypes", "row_rounding"})  # of training
    if not isinstance(config, CustomConfig):
        return {"name": run.config.model, **settings}
    shared = {name: settings.pop(name) for name in CustomConfig.model_fields if name in settings}
    kind = type(run.model.model if isinstance(run.model, Widened) else run.model)
    code = {"file": CUSTOM_FILE, "class_name": kind.__name__, "offered": offered_to(kind)}
    return {"name": "custom", **code, **shared, "settings": settings}


def facts_of(run: LoadedRun, row_dtype: str) -> tuple[ExportFacts, dict[str, NDArray[np.int64]]]:
    """Return the content of `model.json`, and the keys of tables by the path of their file."""
    tables, keys = _tables(run), vocabularies(run)
    facts = ExportFacts(
        format=FORMAT,
        version=VERSION,
        run={"folder": run.path.absolute().name, "steps": run.steps, "data": run.record["config"]["data"]},
        row_dtype=row_dtype,
        keep_negatives=run.shape.keep_negatives,
        tables=tables,
        features=feature_facts(run, keys, {table.name: number for number, table in enumerate(tables)}),
        dense=dense_facts(run),
        ignored=ignored_names(run),
        steps=run.shape.steps,
        model=_model_facts(run),
    )
    files = {f.vocabulary: keys[tables[f.table].name] for f in facts.features if f.vocabulary is not None}
    return facts, files


def write_text(path: Path, text: str) -> None:
    """Write and sync a new file."""
    write_new(path, lambda file: DISK.write(file, text.encode()))


# -- the file of tensors, written block by block, so no tensor need fit into memory -----------------------------------


def write_tensors(path: Path, tensors: Mapping[str, Blocks]) -> None:
    """Write name -> tensor as `torch.save` writes an `OrderedDict` of tensors.

    `torch.save` takes whole tensors, so the values first go to an unnamed file next to `path`, which is memory-mapped.
    The export temporarily takes twice its size on disk, but no memory.

    Raises:
        OSError: if it cannot be written.
    """

    def write(file: BinaryIO) -> None:
        with tempfile.TemporaryFile(dir=path.parent) as values:
            starts = [_append(blocks, values) for blocks in tensors.values()]
            values.flush()
            mapped = [_mapped(values, start, blocks) for start, blocks in zip(starts, tensors.values(), strict=True)]
            torch.save(OrderedDict(zip(tensors, mapped, strict=True)), file)

    write_new(path, write)


def blocks_of(tensor: torch.Tensor) -> Blocks:
    """Return a tensor in memory as one block."""
    array = np.ascontiguousarray(tensor.detach().cpu().numpy())

    def make() -> Iterator[np.ndarray[Any, Any]]:
        yield array

    return Blocks(array.dtype, tuple(tensor.shape), make)


def num_bytes(blocks: Blocks) -> int:
    return math.prod(blocks.shape) * blocks.dtype.itemsize


def _append(blocks: Blocks, file: BinaryIO) -> int:
    """Append the values to the file; return their offset in bytes."""
    start = file.tell()
    for block in blocks.make():
        file.write(np.ascontiguousarray(block).data)
    assert file.tell() - start == num_bytes(blocks), "blocks are not the tensor"
    return start


def _mapped(file: BinaryIO, start: int, blocks: Blocks) -> torch.Tensor:
    """Map the values at `start` as a tensor."""
    if num_bytes(blocks) == 0:  # an empty range cannot be mapped
        array = np.empty(blocks.shape, blocks.dtype)
    else:  # shared and writable: private pages would count as memory, and torch warns about read-only arrays
        array = np.memmap(file, blocks.dtype, "r+", start, blocks.shape)
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if blocks.dtype == BFLOAT16 else tensor
