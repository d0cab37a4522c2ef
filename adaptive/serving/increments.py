"""Increments of exports: changed rows, new keys, keys without a row any more, and the dense part.

An increment takes one export, its base, to another of the same model. Rows are compared bit by bit, those of keys by
key. So an increment does not depend on what happened in between, and its cost does not depend on how much has changed:
rows are read twice, the base once to identify it and once to compare.

A folder with an increment has `increment.safetensors` (values; see `scoring.Increment`), `increment.json` (fingerprints
of the base and of the result, digests of all other files), `model.json`, and each other file of the export that
differs. `scoring.py` of an export reads increments, too; what both need is in that module.
"""

import filecmp
import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive.errors import CheckpointError, ConfigError
from adaptive.serving import exporting, scoring
from adaptive.serving.exporting import FORMATS, blocks_of, export_run, refuse_existing, write_folder
from adaptive.serving.sample_values import ExportFacts, FeatureFacts, read_facts
from adaptive.storage.arrays import Blocks
from adaptive.storage.durable import DISK
from adaptive.training.runs.loading import NO_SETTINGS, Settings, load_with
from adaptive.training.telemetry.document import aligned
from adaptive.training.telemetry.formatting import count_text
from adaptive.training.telemetry.report import SCHEMA

Keys = NDArray[np.int64]
AT_ONCE: Final = 1 << 16  # rows that are merged at once


@dataclass(frozen=True)
class TableChanges:
    """Rows of a table in an increment, and keys that got or lost their row."""

    table: str
    rows: int
    changed: int
    added: int
    removed: int


@dataclass(frozen=True)
class IncrementResult:
    """Result of an increment, also as the text `table`; `base` and `result` are fingerprints of both exports."""

    schema: int
    run_dir: str
    since: str
    out: str
    base: str
    result: str
    tables: list[TableChanges]
    increment_bytes: int
    table: str


@dataclass(frozen=True)
class ApplyResult:
    """Result of an increment that was merged into an export."""

    schema: int
    export: str
    increment: str
    out: str
    result: str
    export_bytes: int


@dataclass(frozen=True)
class Export:
    """An export in a folder: its tensors, mapped, and its keys by the path of their file."""

    folder: Path
    facts: ExportFacts
    tensors: Mapping[str, NDArray[Any]]
    keys: Mapping[str, Keys]

    def fingerprint(self) -> str:
        """Return the fingerprint; reads all values."""
        arrays = {**self.tensors, **self.keys}
        return scoring.fingerprint(self.facts, {name: scoring.digest_of(array) for name, array in arrays.items()})


@contextmanager
def _as_ours(path: Path, what: str) -> Iterator[None]:
    """Turn errors of files of others into CheckpointError."""
    try:
        yield
    except (CheckpointError, ConfigError):
        raise
    except Exception as error:  # torch raises several kinds for a damaged file
        raise CheckpointError(f"{what} {path}: expected one that can be read, got an error: {error}") from error


def read_export(folder: Path) -> Export:
    """Read an export, mapped into memory.

    Raises:
        CheckpointError: if a file is missing or damaged.
        ConfigError: for ONNX.
    """
    with _as_ours(folder, "export"):
        facts = read_facts(folder)
        if facts.format != exporting.FORMAT or facts.version != exporting.VERSION:
            raise ValueError(f"{facts.format} of version {facts.version}")
        if facts.tensors not in (FORMATS["torch"], FORMATS["safetensors"]):
            raise ConfigError(
                f"expected an export with model.pt or model.safetensors, got {facts.tensors} ({folder}). Increments of "
                "ONNX are not supported: export the run completely"
            )
        tensors = scoring.read_tensors(folder / facts.tensors)
        paths = {feature.vocabulary for feature in facts.features if feature.vocabulary is not None}
        keys = {path: np.load(folder / path, allow_pickle=False) for path in sorted(paths)}
        return Export(folder, facts, {name: scoring.array_of(tensor) for name, tensor in tensors.items()}, keys)


# -- writing an increment --------------------------------------------------------------------------------------------


def export_increment(
    run_directory: Path | str,
    since: Path | str,
    out: Path | str,
    *,
    to: str | None = None,
    row_dtype: str | None = None,
    settings: Settings = NO_SETTINGS,
) -> IncrementResult:
    """Export what a trained run has changed since an earlier export, into the new folder `out`, completely or not.

    `apply_increment` merges it into that export; the result equals `export_run` of the run, file by file.

    Args:
        since: the folder of an export, whose format the increment has; or an earlier run, which is first exported as
            `to` and `row_dtype` say, next to `out`, into a folder that is removed afterwards.
        to, row_dtype: as for `export_run`; None: those of the export, or else "torch" and "float32".
        settings: as in `evaluate_run`.

    Raises:
        CheckpointError: if a run or the export is missing or damaged.
        ConfigError: for ONNX, another format than that of the export, or a run of another model.
        InputError: if the run's vocabulary is missing.
        OutputError: if `out` exists or cannot be written.
    """
    path, base = Path(out), Path(since)
    refuse_existing(path)
    if to == "onnx":
        raise ConfigError("expected torch or safetensors with --since, got onnx (--to)")
    if not (base / "model.json").is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            whole = Path(folder) / "base"
            export_run(base, whole, to=to or "torch", row_dtype=row_dtype or "float32", settings=settings)
            return replace(export_increment(run_directory, whole, path, settings=settings), since=str(since))
    export = read_export(base)
    for option, wanted, actual in (
        ("--to", to and FORMATS.get(to, to), export.facts.tensors),
        ("--row-dtype", row_dtype, export.facts.row_dtype),
    ):
        if wanted not in (None, actual):
            raise ConfigError(
                f"expected the format of the base {base}, {actual}, got {wanted} ({option}). Omit {option}"
            )
    with load_with(Path(run_directory), settings) as run:
        facts, keys = exporting.facts_of(run, export.facts.tensors, export.facts.row_dtype)
        is_live = {table.name for table in run.components.tables if table.keys is not None}
        changes = Changes(export, facts, exporting.tensors_of(run, facts), keys, is_live)
        size = write_folder(path, lambda folder: changes.write(folder, partial(exporting.write_others, run)))
        header = ["table", "rows", "changed", "new keys", "keys without a row"]
        lines = [[name, *map(count_text, numbers)] for name, *numbers in map(astuple, changes.counts)]
        return IncrementResult(
            schema=SCHEMA,
            run_dir=str(run.path),
            since=str(since),
            out=str(path),
            base=changes.base,
            result=changes.result,
            tables=changes.counts,
            increment_bytes=size,
            table="\n".join(aligned([header, *lines])) + f"\n{size:,} bytes in {path}",
        )


class Changes:
    """Differences of a newer export from its base.

    Args:
        base: the export.
        facts, tensors, keys: content of the newer export; tensors have the names of `scoring.Model`, those of the dense
            part are one block; keys have the path of their file.
        live: names of the tables whose keys come and go. Others have a vocabulary, which only grows.

    Attributes:
        base, result: fingerprints.
        counts: of each table, once written.

    Raises:
        ConfigError: if the exports are not of the same model.
    """

    def __init__(
        self,
        base: Export,
        facts: ExportFacts,
        tensors: Mapping[str, Blocks],
        keys: Mapping[str, Keys],
        live: Collection[str],
    ) -> None:
        self._export, self._facts, self._tensors, self._keys, self._live = base, facts, tensors, keys, live
        self.counts: list[TableChanges] = []
        self._files = {f.table: f.vocabulary for f in facts.features if f.vocabulary is not None}
        self._check_model()
        self.base, self.result = base.fingerprint(), ""

    def write(self, folder: Path, write_others: Callable[[Path, ExportFacts], None]) -> None:
        """Write the increment into a folder; `write_others` writes all files but those of tensors and keys."""
        write_others(folder, self._facts)
        for name in scoring.file_names(folder):
            if name != "model.json" and _is_equal(folder / name, self._export.folder / name):
                (folder / name).unlink()
        for path in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
            if not any(path.iterdir()):
                path.rmdir()
        digests = {name: scoring.digest_of(keys) for name, keys in self._keys.items()}
        arrays: dict[str, Blocks] = {}
        for number in range(len(self._facts.tables)):
            arrays |= self._table(number, digests)
        for name, blocks in self._tensors.items():
            if name.startswith("dense."):
                arrays[name], digests[name] = blocks, scoring.digest_of(next(blocks.make()).reshape(blocks.shape))
        exporting.write_safetensors(folder / scoring.CHANGES, arrays)
        self.result = scoring.fingerprint(self._facts, digests)
        files = {name: scoring.file_digest(folder / name) for name in scoring.file_names(folder)}
        facts = {
            "format": scoring.INCREMENT,
            "version": scoring.INCREMENT_VERSION,
            "base": self.base,
            "result": self.result,
            "files": files,
        }
        exporting.write_text(folder / scoring.FACTS, json.dumps(facts, indent=1) + "\n")

    def _table(self, number: int, digests: dict[str, str]) -> dict[str, Blocks]:
        """Return the arrays of a table's changes, and add the digests of its tensors."""
        table, of_base = self._facts.tables[number], self._export.facts.tables[number]
        source, keys, old_keys = None, None, None  # source: row of the base, or -1
        is_changed = np.zeros(table.rows, np.bool_)
        if (file := self._files.get(number)) is not None:
            keys, old_keys = self._keys[file], self._export.keys[file]
            if table.name in self._live:
                source = np.searchsorted(old_keys, keys)
                is_changed[: len(keys)] = ~scoring.contains(old_keys, keys)
            is_changed[min(len(keys), len(old_keys)) :] |= source is None
            is_changed[len(keys) :] = True
        names = [name for name in (f"tables.{number}.weight", f"tables.{number}.scales") if name in self._tensors]
        for name in names:
            digests[name] = self._compare(name, source, is_changed)
        places = np.flatnonzero(is_changed)
        arrays = {name: _chosen(self._tensors[name], is_changed) for name in names}
        added = removed = 0
        if keys is None:
            arrays[f"tables.{number}.rows"] = _whole(places)
        else:
            assert old_keys is not None
            arrays[f"tables.{number}.keys"] = _whole(keys[places[places < len(keys)]])
            added = len(keys) - len(old_keys)
            if table.name in self._live:
                gone = old_keys[~scoring.contains(keys, old_keys)]
                arrays[f"tables.{number}.gone"] = _whole(gone)
                added, removed = added + len(gone), len(gone)
        assert keys is not None or table.rows == of_base.rows
        self.counts.append(TableChanges(table.name, table.rows, len(places), added, removed))
        return arrays

    def _compare(self, name: str, source: NDArray[np.int64] | None, is_changed: NDArray[np.bool_]) -> str:
        """Mark the rows of a tensor that differ from those of the base; return the tensor's digest."""
        blocks, base, at = self._tensors[name], self._export.tensors[name], 0
        digest, bits = scoring.begin_digest(blocks.dtype, blocks.shape), np.dtype(f"u{blocks.dtype.itemsize}")
        for block in blocks.make():
            digest.update(scoring.bytes_of(block))
            rows = slice(at, at + len(block))
            at += len(block)
            old = base[rows] if source is None else _rows_of(base, source[rows], len(block))
            size = min(len(old), len(block))  # a table of a vocabulary grows
            differs = np.ascontiguousarray(block[:size]).view(bits) != np.ascontiguousarray(old[:size]).view(bits)
            is_changed[rows][:size] |= differs.any(axis=1)
        text: str = digest.hexdigest()
        return text

    def _check_model(self) -> None:
        """Raise ConfigError unless base and newer export differ in values, and rows of keys, only."""
        expected, got = (_model_of(facts) for facts in (self._export.facts, self._facts))
        for name in expected:
            if expected[name] != got[name]:
                self._refuse(f"{name} {expected[name]}", f"{got[name]}")
        for number, (of_base, newer) in enumerate(zip(self._export.facts.tables, self._facts.tables, strict=True)):
            what, file = f"table {newer.name!r}: ", self._files.get(number)
            if file is None:
                if of_base.rows != newer.rows:
                    self._refuse(f"{what}{of_base.rows} rows", f"{newer.rows}")
            elif newer.name not in self._live:
                words = self._export.keys[file]
                if not np.array_equal(words, self._keys[file][: len(words)]):
                    self._refuse(f"{what}a vocabulary that continues that of the base", "another one")
        for name in self._export.tensors.keys() | self._tensors.keys():
            if name.startswith("dense."):
                both = self._export.tensors.get(name), self._tensors.get(name)
                forms = ["none" if array is None else f"{array.dtype} {array.shape}" for array in both]
                if forms[0] != forms[1]:
                    self._refuse(f"{name} {forms[0]}", forms[1])

    def _refuse(self, expected: str, got: str) -> None:
        raise ConfigError(
            f"expected the model of the base, with {expected}, got {got} ({self._export.folder}). Export the run "
            "completely"
        )


def _model_of(facts: ExportFacts) -> dict[str, object]:
    """Return everything in `model.json` that no increment changes."""
    values = asdict(facts)
    del values["run"]
    values["tables"] = [{"name": table.name, "width": table.width} for table in facts.tables]
    values["features"] = [_without_rows(feature) for feature in facts.features]
    return {name: json.loads(json.dumps(value, default=asdict)) for name, value in values.items()}


def _without_rows(feature: FeatureFacts) -> FeatureFacts:
    """Return a feature without the rows that follow from the number of its keys."""
    if feature.vocabulary is None:
        return feature
    unknown, missing = (None if row is None else 0 for row in (feature.unknown, feature.missing))
    return replace(feature, rows=0, unknown=unknown, missing=missing)


def _rows_of(array: NDArray[Any], source: NDArray[np.int64], size: int) -> NDArray[Any]:
    """Return the rows (size, ...) at `source`, which may be shorter or point beyond the end."""
    places = np.zeros(size, np.int64)
    places[: len(source)] = source.clip(max=len(array) - 1)
    rows: NDArray[Any] = array[places]
    return rows


def _chosen(blocks: Blocks, chosen: NDArray[np.bool_]) -> Blocks:
    """Return the chosen rows of blocks, as blocks."""

    def make() -> Iterator[NDArray[Any]]:
        at = 0
        for block in blocks.make():
            yield block[chosen[at : at + len(block)]]
            at += len(block)

    return Blocks(blocks.dtype, (int(chosen.sum()), *blocks.shape[1:]), make)


def _whole(array: NDArray[Any]) -> Blocks:
    return Blocks(array.dtype, array.shape, lambda: iter([array]))


def _is_equal(path: Path, other: Path) -> bool:
    return other.is_file() and filecmp.cmp(path, other, shallow=False)


# -- applying an increment -------------------------------------------------------------------------------------------


def apply_increment(export: Path | str, increment: Path | str, out: Path | str) -> ApplyResult:
    """Merge an increment into its base, and write the newer export into the new folder `out`, completely or not.

    The result equals the full export that the increment was made of, file by file. The base does not change. Rows pass
    through memory in blocks; keys need 40 bytes each.

    Raises:
        CheckpointError: if the increment has another base, or a file is missing or damaged.
        ConfigError: for an export as ONNX.
        OutputError: if `out` exists or cannot be written.
    """
    path, folder = Path(out), Path(increment)
    refuse_existing(path)
    base = read_export(Path(export))
    with _as_ours(folder, "increment"):
        changes = scoring.read_increment(folder, read_facts)
    try:
        changes.check_base(base.fingerprint(), base.folder)
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    size = write_folder(path, partial(_fill, base, changes))
    return ApplyResult(SCHEMA, str(export), str(increment), str(path), changes.result, size)


def _fill(base: Export, changes: scoring.Increment, folder: Path) -> None:
    """Write the merged export into a folder, and verify it."""
    facts, tensors, keys = changes.facts, dict[str, Blocks](), dict[str, Keys]()

    def copy(source: Path, name: str) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        exporting.copy_file(source / name, folder / name)

    files = {f.table: f.vocabulary for f in facts.features if f.vocabulary is not None}
    for number, table in enumerate(facts.tables):
        file = files.get(number)
        merge = changes.merge(number, None if file is None else base.keys[file])
        if file is not None and merge.keys is not None:
            keys[file] = merge.keys
        for name in (f"tables.{number}.weight", f"tables.{number}.scales"):
            if name in base.tensors:
                tensors[name] = _merged(base.tensors[name], changes.state[name], merge, table.rows)
    tensors |= {name: blocks_of(tensor) for name, tensor in changes.state.items() if name.startswith("dense.")}
    exporting.write_tensors(folder / facts.tensors, {name: tensors[name] for name in base.tensors})
    exporting.write_ids(folder, keys)
    for name in scoring.file_names(base.folder):
        if name not in (facts.tensors, *keys, *changes.files):
            copy(base.folder, name)
    for name in changes.files:
        copy(changes.folder, name)
    for path in folder.rglob("*"):
        if path.is_dir():
            DISK.sync_directory(path)
    if (result := read_export(folder).fingerprint()) != changes.result:
        raise CheckpointError(
            f"expected the export {changes.result[:12]} from the increment {changes.folder}, got {result[:12]}. The "
            "increment is damaged. Copy it again"
        )


def _merged(base: NDArray[Any], changed: Tensor, merge: scoring.Merge, num_rows: int) -> Blocks:
    """Return a tensor of a table after an increment."""
    values = scoring.array_of(changed)

    def make() -> Iterator[NDArray[Any]]:
        for first in range(0, num_rows, AT_ONCE):
            last = min(first + AT_ONCE, num_rows)
            source = np.arange(first, last) if merge.source is None else merge.source[first:last]
            block = _rows_of(base, source, last - first)
            start, end = np.searchsorted(merge.rows, [first, last])
            block[merge.rows[start:end] - first] = values[start:end]
            yield block

    return Blocks(base.dtype, (num_rows, *base.shape[1:]), make)
