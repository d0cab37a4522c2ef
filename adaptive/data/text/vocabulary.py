"""Fitted vocabularies: every category that is frequent enough gets a row, the most frequent ones the first rows.

Fitted once, over all training files in one pass (also over what `holdout` or `time_split` keep for evaluation:
no label is used), and stored, so that a later evaluation or another run maps alike.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive.data.text.texts import Texts
from adaptive.errors import ConfigError
from adaptive.kernels.data import text_rows as kernels
from adaptive.storage.durable import write_atomic

_INDEX = "vocabulary.json"
_FORMAT = 1
_ADVICE = "remove the folder to fit it anew, or give another vocabulary_path"

KeyKind = Literal["int", "hex", "string"]


@dataclass(frozen=True)
class Vocabulary:
    """The keys that have a row, by row; kept if they came at least `min_count` times.

    A key is the id itself where `kind` says that ids are numbers, else the hash of the text in `texts`. Both are None
    in vocabularies of versions that did not keep them, and where features with other kinds of ids share the table.
    """

    keys: NDArray[np.int64]
    min_count: int
    kind: KeyKind | None = None
    texts: Texts | None = None

    def ids(self) -> Iterator[str]:
        """The id of each row as it stands in the data; of kind 'hex' in lower case, without leading zeros.

        Raises:
            ConfigError: if the ids are not known.
        """
        if self.kind == "int":
            return map(str, self.keys.tolist())
        if self.kind == "hex":
            return (f"{key % 2**64:x}" for key in self.keys.tolist())
        if self.texts is None:
            raise ConfigError(
                "this vocabulary has no ids, only hashes of them: it was fitted by an earlier version, or features "
                "with other kinds of ids share the table; fit it anew"
            )
        return iter(self.texts)

    def hash_table(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Keys and rows by hash cell, for `adaptive.kernels.data.text_rows.fitted_rows`; at most half full."""
        size = _power_of_two(2 * len(self.keys) + 1)
        table_keys, table_rows = np.zeros(size, np.int64), np.full(size, -1, np.int64)
        kernels.insert_keys(self.keys, np.arange(len(self.keys)), table_keys, table_rows)
        return table_keys, table_rows

    def checksum(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.keys).astype("<i8").tobytes()).hexdigest()


class KeyCounter:
    """Counts keys in a hash table that doubles when it is half full: 32 bytes per distinct key at most."""

    def __init__(self) -> None:
        self._resize(1024)
        self._used = 0

    def _resize(self, size: int) -> None:
        self._keys, self._counts = np.zeros(size, np.int64), np.zeros(size, np.int64)

    def add(self, keys: NDArray[np.int64], amounts: NDArray[np.int64] | NDArray[np.bool_]) -> None:
        """Add `amounts` to the counts of `keys`; 0 or False: not counted."""
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
        """Keys by falling count, equal counts by key."""
        kept = self._counts >= max(min_count, 1)
        keys, counts = self._keys[kept], self._counts[kept]
        return Vocabulary(keys[np.lexsort((keys, -counts))], min_count)


def save_vocabularies(folder: Path, vocabularies: Mapping[str, Vocabulary]) -> None:
    """Write a `.npy` of keys per table, two more where ids are texts, and `vocabulary.json`, which names and vouches
    for them, last.

    Raises:
        OSError: if writing fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables: dict[str, dict[str, object]] = {}
    for number, (table, vocabulary) in enumerate(vocabularies.items()):
        stored = _store(folder / f"{number:04d}.npy", vocabulary.keys)
        tables[table] = {**stored, "rows": len(vocabulary.keys), "min_count": vocabulary.min_count}
        if vocabulary.kind is not None:
            tables[table]["kind"] = vocabulary.kind
        if vocabulary.texts is not None:
            first = len(vocabularies) + 2 * number
            tables[table]["texts"] = _store(folder / f"{first:04d}.npy", vocabulary.texts.data)
            tables[table]["ends"] = _store(folder / f"{first + 1:04d}.npy", vocabulary.texts.ends)
    index = json.dumps({"format": _FORMAT, "tables": tables}, indent=1)
    write_atomic(folder / _INDEX, index.encode())


def load_vocabularies(folder: Path, wanted: Mapping[str, int]) -> dict[str, Vocabulary] | None:
    """The stored vocabularies of the tables in `wanted` (table -> min_count), or None if nothing is stored.

    Raises:
        ConfigError: if what is stored is damaged or was fitted for other tables or another min_count.
    """
    if not (folder / _INDEX).exists():
        return None
    with _readable(folder):
        stored = _entries(folder)
        found = {table: int(entry["min_count"]) for table, entry in stored.items()}
        if found != dict(wanted):
            raise ConfigError(f"{folder}: vocabulary of {_named(found)}, wanted {_named(wanted)}; {_ADVICE}")
        return {
            table: Vocabulary(_load(folder, entry), int(entry["min_count"]), entry.get("kind"))
            for table, entry in stored.items()
        }


def stored_tables(folder: Path) -> dict[str, int]:
    """The tables of a stored vocabulary, each with its number of ids.

    Raises:
        ConfigError: if there is none, or it is damaged.
    """
    with _readable(folder):
        return {table: int(entry["rows"]) for table, entry in _entries(folder).items()}


def load_vocabulary(folder: Path, table: str) -> Vocabulary:
    """The stored vocabulary of one table, with its ids.

    Raises:
        ConfigError: if there is none, or it is damaged.
    """
    with _readable(folder):
        entry = _entries(folder)[table]
        texts = Texts(_load(folder, entry["texts"]), _load(folder, entry["ends"])) if "texts" in entry else None
        return Vocabulary(_load(folder, entry), int(entry["min_count"]), entry.get("kind"), texts)


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{folder}: the stored vocabulary cannot be read ({error!r}); {_ADVICE}") from error


def _entries(folder: Path) -> dict[str, dict[str, Any]]:
    """What the index says of each table."""
    found: dict[str, dict[str, Any]] = json.loads((folder / _INDEX).read_text("utf-8"))["tables"]
    return found


def _store(path: Path, array: NDArray[Any]) -> dict[str, object]:
    data = _npy(array)
    write_atomic(path, data)
    return {"file": path.name, "sha256": hashlib.sha256(data).hexdigest()}


def _load(folder: Path, entry: Mapping[str, object]) -> NDArray[Any]:
    name = str(entry["file"])
    if name != Path(name).name:
        raise ConfigError(f"{folder}: the stored vocabulary names a file outside its folder: {name!r}")
    path = folder / name
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise ConfigError(f"{path}: damaged, its checksum is not the one stored; remove the folder to fit it anew")
    array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array


def _npy(array: NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def _named(tables: Mapping[str, int]) -> str:
    names = [f"{table} (min_count {count})" for table, count in tables.items()]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _power_of_two(least: int) -> int:
    return 1 << max(least - 1, 1).bit_length()
