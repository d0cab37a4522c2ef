"""Fitted vocabularies: a row for each frequent category, most frequent ones first.

A vocabulary is fitted once, in one pass over all training files (including rows held out for evaluation, since no label
is used), and stored, so that later evaluations and runs use the same rows. `TextKeeper` stores the distinct texts of a
table's categories by key.
"""

import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from adaptive.config import Config
from adaptive.data.kernels import text_rows as kernels
from adaptive.errors import ConfigError
from adaptive.storage.durable import write_atomic
from adaptive.storage.files import checked, json_text, read_file, read_json

INDEX: Final = "vocabulary.json"
_FORMAT = 1
_ADVICE = "Remove the folder to fit the vocabulary again, or set another data.vocabulary_path."

Ids = NDArray[np.int64]
KeyKind = Literal["int", "hex", "string"]


@dataclass(frozen=True)
class Texts:
    """T texts in UTF-8: text t is `data[ends[t] : ends[t + 1]]`."""

    data: NDArray[np.uint8]
    ends: Ids  # (T + 1,)

    def __iter__(self) -> Iterator[str]:
        """Yield each text. Raises UnicodeDecodeError if one is not UTF-8."""
        whole = self.data.tobytes()
        return (whole[start:stop].decode() for start, stop in zip(self.ends[:-1], self.ends[1:], strict=True))

    def followed_by(self, others: "Texts", chosen: Ids) -> "Texts":
        """Return these texts followed by the chosen (n,) ones of the others, in this order."""
        starts, lengths = others.ends[chosen], others.ends[chosen + 1] - others.ends[chosen]
        after = np.cumsum(lengths, dtype=np.int64)
        within = np.arange(int(after[-1]) if len(after) else 0) - np.repeat(after - lengths, lengths)
        data = others.data[np.repeat(starts, lengths) + within]
        return Texts(np.concatenate([self.data[: self.ends[-1]], data]), np.append(self.ends, self.ends[-1] + after))


NO_TEXTS: Final = Texts(np.empty(0, np.uint8), np.zeros(1, np.int64))


class TextKeeper:
    """Stores each distinct text once; a text takes its bytes plus 40."""

    def __init__(self) -> None:
        self._places, self._keys, self._ends = np.full(64, -1), np.empty(32, np.int64), np.zeros(33, np.int64)
        self._data, self._count = np.empty(1024, np.uint8), 0

    def add(self, data: NDArray[np.uint8], spans: Ids) -> None:
        """Add the texts at `spans` of `data`; see `kernels.text_rows.keep_texts`."""
        done = 0
        while done < len(spans):
            done, self._count = kernels.keep_texts(
                data, spans, done, self._places, self._keys, self._ends, self._data, self._count
            )
            if done < len(spans):
                self._grow(int(spans[done, kernels.STOP] - spans[done, kernels.START]))

    def _grow(self, size: int) -> None:
        """Double the array that is full."""
        used = int(self._ends[self._count])
        if used + size > len(self._data):
            self._data = np.concatenate([self._data, np.empty(len(self._data) + size, np.uint8)])
            return
        self._keys = np.concatenate([self._keys, np.empty_like(self._keys)])
        self._ends = np.concatenate([self._ends, np.zeros(len(self._keys) + 1 - len(self._ends), np.int64)])
        self._places = np.full(2 * len(self._places), -1)
        filled = np.zeros(len(self._places), np.int64)
        kernels.insert_keys(self._keys[: self._count], np.arange(self._count), filled, self._places)

    def texts_of(self, keys: Ids) -> Texts:
        """Return the texts of stored keys, in the order of `keys`."""
        whole = Texts(self._data, self._ends[: self._count + 1])
        order = np.argsort(self._keys[: self._count], kind="stable")
        return NO_TEXTS.followed_by(whole, order[np.searchsorted(self._keys[: self._count], keys, sorter=order)])


@dataclass(frozen=True)
class Vocabulary:
    """The keys that have a row, by row: those that occur at least `min_count` times.

    A key is the id itself if `kind` is a kind of number, else the hash of the text in `texts`. Both are None if
    features with different kinds of ids share the table.
    """

    keys: Ids
    min_count: int
    kind: KeyKind | None = None
    texts: Texts | None = None

    def ids(self) -> Iterator[str]:
        """Return the id of each row, as in the data.

        Ids of kind 'hex' are in lower case, without leading zeros.

        Raises:
            ConfigError: if the ids are not known.
        """
        if self.kind == "int":
            return map(str, self.keys.tolist())
        if self.kind == "hex":
            return (f"{key % 2**64:x}" for key in self.keys.tolist())
        if self.texts is None:
            raise ConfigError(
                "vocabulary: expected ids of one kind, got only hashes, since features with different kinds of ids "
                "share the table. Give each kind its own table, and fit the vocabulary again."
            )
        return iter(self.texts)

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
    fresh = ~np.isin(new.keys, old.keys)
    texts = None
    if old.texts is not None and new.texts is not None:
        texts = old.texts.followed_by(new.texts, np.flatnonzero(fresh))
    return Vocabulary(np.concatenate([old.keys, new.keys[fresh]]), new.min_count, new.kind, texts)


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


class _File(Config):
    file: str = Field(pattern=r"^[0-9]+\.npy$")  # a plain name: no folder, no ".."
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class _Entry(_File):
    """A table in the index."""

    rows: int = Field(ge=0)
    min_count: int = Field(ge=0)
    kind: KeyKind | None
    texts: _File | None = None
    ends: _File | None = None


class _Index(Config):
    format: int = _FORMAT
    tables: dict[str, _Entry]


def save_vocabularies(folder: Path, vocabularies: Mapping[str, Vocabulary]) -> None:
    """Write the arrays of each table, and finally `vocabulary.json`, their index.

    Raises:
        OSError: if writing fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables, number = dict[str, _Entry](), 0

    def store(array: NDArray[Any]) -> _File:
        nonlocal number
        out = io.BytesIO()
        np.save(out, array, allow_pickle=False)
        path, number = folder / f"{number:04d}.npy", number + 1
        write_atomic(path, out.getvalue())
        return _File(file=path.name, sha256=hashlib.sha256(out.getvalue()).hexdigest())

    for table, vocabulary in vocabularies.items():
        texts = vocabulary.texts
        tables[table] = _Entry(
            **store(vocabulary.keys).model_dump(),
            rows=len(vocabulary.keys),
            min_count=vocabulary.min_count,
            kind=vocabulary.kind,
            texts=None if texts is None else store(texts.data),
            ends=None if texts is None else store(texts.ends),
        )
    write_atomic(folder / INDEX, json_text(_Index(tables=tables).model_dump(mode="json")))


def load_vocabularies(folder: Path, wanted: Mapping[str, int]) -> dict[str, Vocabulary] | None:
    """Return the stored vocabularies of tables (table -> min_count), or None without any.

    Raises:
        ConfigError: if they are damaged, or were fitted for other tables or another min_count.
    """
    if not os.path.lexists(folder / INDEX):
        return None
    stored = _entries(folder)
    counts = {table: entry.min_count for table, entry in stored.items()}
    if counts != dict(wanted):
        raise ConfigError(
            f"{folder}: expected a vocabulary of {_named(wanted)}, got one of {_named(counts)}. {_ADVICE}"
        )
    return {
        table: Vocabulary(_keys(folder, table, entry), entry.min_count, entry.kind) for table, entry in stored.items()
    }


def stored_tables(folder: Path) -> dict[str, int]:
    """Return the number of ids of each stored table; raise ConfigError if none or damaged."""
    return {table: entry.rows for table, entry in _entries(folder).items()}


def load_vocabulary(folder: Path, table: str) -> Vocabulary:
    """Return the stored vocabulary of a table, with its ids; raises what `stored_tables` does."""
    stored = _entries(folder)
    if table not in stored:
        raise ConfigError(f"{folder}: expected one of the tables {', '.join(stored)}, got {table!r}. Correct the name.")
    entry, texts = stored[table], None
    if entry.texts is not None and entry.ends is not None:
        data, ends = _load(folder, entry.texts, np.uint8), _load(folder, entry.ends, np.int64)
        texts = Texts(data, ends)
    return Vocabulary(_keys(folder, table, entry), entry.min_count, entry.kind, texts)


def _entries(folder: Path) -> dict[str, _Entry]:
    path = folder / INDEX
    content = read_json(path, {"format": _FORMAT}, advice=_ADVICE, error=ConfigError)
    return checked(_Index, content, str(path)).tables


def _keys(folder: Path, table: str, entry: _Entry) -> Ids:
    keys: Ids = _load(folder, entry, np.int64)
    if len(keys) != entry.rows:
        raise ConfigError(f"{folder / entry.file}: expected {entry.rows} ids of {table!r}, got {len(keys)}. {_ADVICE}")
    return keys


def _load(folder: Path, entry: _File, dtype: type[np.generic]) -> NDArray[Any]:
    path = folder / entry.file
    data = read_file(path, error=ConfigError)
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise ConfigError(f"{path}: expected sha256 {entry.sha256}, got another: the file is damaged. {_ADVICE}")
    array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    if array.dtype != dtype or array.ndim != 1:
        raise ConfigError(f"{path}: expected a vector of {np.dtype(dtype)}, got {array.dtype} {array.shape}. {_ADVICE}")
    return array


def _named(tables: Mapping[str, int]) -> str:
    names = [f"{table} (min_count {count})" for table, count in tables.items()]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
