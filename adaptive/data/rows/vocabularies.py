"""Fitted vocabularies: a row for each frequent category, most frequent ones first.

A vocabulary is fitted once, in one pass over all training files (including rows held out for evaluation, since no label
is used), and stored, so that later evaluations and runs use the same rows.
"""

import hashlib
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from adaptive.config import Config
from adaptive.data.kernels import text_rows as kernels
from adaptive.errors import ConfigError
from adaptive.storage.durable import write_atomic
from adaptive.storage.files import checked, json_text, read_file, read_json

INDEX: Final = "vocabulary.json"
_FORMAT = 2
_ADVICE = "Remove the folder to fit the vocabulary again, or set another data.vocabulary_path."

Ids = NDArray[np.int64]
KeyKind = Literal["int", "hex", "string"]


@dataclass(frozen=True)
class Vocabulary:
    """The keys that have a row, by row: those that occur at least `min_count` times.

    A key is the id itself if `kind` is a kind of number, else the hash of the text. The kind is None if features with
    different kinds of ids share the table.
    """

    keys: Ids
    min_count: int
    kind: KeyKind | None = None

    def hash_table(self) -> tuple[Ids, Ids]:
        """Return keys and rows by hash cell, for `text_rows.fitted_rows`; at most half full."""
        size = 1 << (2 * len(self.keys)).bit_length()
        table_keys, table_rows = np.zeros(size, np.int64), np.full(size, -1, np.int64)
        kernels.insert_keys(self.keys, np.arange(len(self.keys)), table_keys, table_rows)
        return table_keys, table_rows

    def checksum(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.keys).astype("<i8").tobytes()).hexdigest()


def extend_vocabulary(old: Vocabulary, new: Vocabulary) -> Vocabulary:
    """Return the ids of `old`, then the new ones; raise ConfigError if their kinds differ."""
    if old.kind != new.kind:
        raise ConfigError(
            f"data.vocabulary_from: expected ids of kind {old.kind}, got {new.kind}. Use the stored kind in the schema."
        )
    fresh = new.keys[~np.isin(new.keys, old.keys)]
    return Vocabulary(np.concatenate([old.keys, fresh]), new.min_count, new.kind)


class KeyCounter:
    """Counts keys in a hash table that is at most half full: up to 32 bytes for each key."""

    def __init__(self) -> None:
        self._resize(1024)
        self._used = 0

    def _resize(self, size: int) -> None:
        self._keys, self._counts = np.zeros(size, np.int64), np.zeros(size, np.int64)

    def add(self, keys: Ids, amounts: Ids | NDArray[np.bool_]) -> None:
        """Add `amounts` (N,) to the counts of `keys` (N,); entries of 0 or False are ignored."""
        while len(keys):
            room = len(self._keys) // 2 - self._used
            done, new = kernels.count_keys(keys, amounts, self._keys, self._counts, room)
            self._used += int(new)
            keys, amounts = keys[done:], amounts[done:]
            if len(keys):
                self._grow()

    def _grow(self) -> None:
        filled = self._counts > 0
        keys, counts = self._keys[filled], self._counts[filled]
        self._resize(2 * len(self._keys))
        kernels.count_keys(keys, counts, self._keys, self._counts, len(keys))

    def vocabulary(self, min_count: int) -> Vocabulary:
        """Return the keys by falling count; keys of equal count are in ascending order."""
        frequent = self._counts >= max(min_count, 1)
        keys, counts = self._keys[frequent], self._counts[frequent]
        return Vocabulary(keys[np.lexsort((keys, -counts))], min_count)


class _Entry(Config):
    """A table in the index."""

    file: str = Field(pattern=r"^[0-9]+\.npy$")  # a plain name: no folder, no ".."
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    rows: int = Field(ge=0)
    min_count: int = Field(ge=0)
    kind: KeyKind | None


class _Index(Config):
    format: int = _FORMAT
    tables: dict[str, _Entry]


def save_vocabularies(folder: Path, vocabularies: Mapping[str, Vocabulary]) -> None:
    """Write the keys of each table, and finally `vocabulary.json`, their index.

    Raises:
        OSError: if writing fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = dict[str, _Entry]()
    for number, (table, vocabulary) in enumerate(vocabularies.items()):
        out = io.BytesIO()
        np.save(out, vocabulary.keys, allow_pickle=False)
        path = folder / f"{number:04d}.npy"
        write_atomic(path, out.getvalue())
        tables[table] = _Entry(
            file=path.name,
            sha256=hashlib.sha256(out.getvalue()).hexdigest(),
            rows=len(vocabulary.keys),
            min_count=vocabulary.min_count,
            kind=vocabulary.kind,
        )
    write_atomic(folder / INDEX, json_text(_Index(tables=tables).model_dump(mode="json")))


def load_vocabularies(folder: Path, wanted: Mapping[str, int] | None = None) -> dict[str, Vocabulary]:
    """Return the stored vocabularies by table; none if the folder has none.

    Args:
        wanted: table -> min_count, of the tables that a vocabulary must be of; None: of any.

    Raises:
        ConfigError: if they are damaged, or were fitted for other tables or another min_count.
    """
    if not os.path.lexists(folder / INDEX):
        return {}
    content = read_json(folder / INDEX, {"format": _FORMAT}, advice=_ADVICE, error=ConfigError)
    stored = checked(_Index, content, str(folder / INDEX)).tables
    counts = {table: entry.min_count for table, entry in stored.items()}
    if wanted is not None and counts != dict(wanted):
        raise ConfigError(
            f"{folder}: expected a vocabulary of {_named(wanted)}, got one of {_named(counts)}. {_ADVICE}"
        )
    return {table: Vocabulary(_keys(folder, entry), entry.min_count, entry.kind) for table, entry in stored.items()}


def _keys(folder: Path, entry: _Entry) -> Ids:
    path = folder / entry.file
    data = read_file(path, error=ConfigError)
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise ConfigError(f"{path}: expected sha256 {entry.sha256}, got another: the file is damaged. {_ADVICE}")
    keys: Ids = np.load(io.BytesIO(data), allow_pickle=False)
    if keys.dtype != np.int64 or keys.shape != (entry.rows,):
        raise ConfigError(f"{path}: expected int64 ({entry.rows},), got {keys.dtype} {keys.shape}. {_ADVICE}")
    return keys


def _named(tables: Mapping[str, int]) -> str:
    names = [f"{table} (min_count {count})" for table, count in tables.items()]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
