"""Is the hash of ids even, and does it matter which one it is? For `study_quality`, on the real ids of its sets.

`rows_table` counts how many distinct rows a set's ids hit, against balls thrown into bins: k ids into n rows hit
n (1 - (1 - 1/n)^k) on average. `rehash` has the samples of kdd12-click with the rows of another hash or salt.
"""

import csv
import gzip
import hashlib
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from adaptive.batch import Batch
from benchmarks import study_sets
from benchmarks.study_report import markdown

if TYPE_CHECKING:
    from benchmarks.study_quality import Held

WORD: Final = 2**64
SALTS: Final = 5
SIZES: Final = (1_000, 10_000, 50_000, 200_000, 1_000_000)


def fnv(text: str) -> int:
    """FNV-1a over UTF-8: the key of a text, even only after `mixed`."""
    key = 14695981039346656037
    for byte in text.encode():
        key = (key ^ byte) * 1099511628211 % WORD
    return key


def mixed(key: int) -> int:
    """The finalizer of splitmix64, as docs/data.md has it."""
    key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 % WORD
    key = (key ^ key >> 27) * 0x94D049BB133111EB % WORD
    return key ^ key >> 31


HASHES: Final[dict[str, Callable[[str], int]]] = {  # to 64 bits, the upper ones choose the row
    "FNV-1a, mixed (ours)": lambda text: mixed(fnv(text)),
    "crc32": lambda text: zlib.crc32(text.encode()) << 32,
    "BLAKE2b": lambda text: int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"),
}


def rehash(held: "Held", name: str, salt: int) -> "Held":
    """The samples of kdd12-click with the rows that another hash gives `salt|id`, in as many rows."""
    with gzip.open(study_sets.data_folder() / study_sets.FILES["kdd12-click"], "rt", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    known: dict[tuple[str, int], int] = {}

    def row(text: str, rows: int) -> int:
        if (text, rows) not in known:
            known[text, rows] = HASHES[name](f"{salt}|{text}") * rows // WORD
        return known[text, rows]

    def rehashed(batch: Batch) -> Batch:
        assert batch.origin is not None
        samples = [lines[int(line) - 2] for line in batch.origin.lines]  # line 1 is the header
        rows = [row(sample[f.name], f.num_embeddings) for f in held.features for sample in samples]
        return replace(batch, ids=np.array(rows, np.int64))

    return type(held)(held, rehashed(held.trained), rehashed(held.evaluated))


def rows_table(sets: Sequence[str], folder: Path) -> str:
    """For each set and hash the furthest that the number of rows hit is from what chance gives, in deviations."""
    rows = [["data", "hash", "columns and table sizes", "furthest from chance, deviations"]]
    hashes = {**HASHES, "FNV-1a, not mixed": fnv, "of whole numbers, mixed (ours)": lambda text: mixed(int(text))}
    for data in sets:
        columns = {name: ids for name, ids in _columns(data, folder) if len(ids) > 1000}
        for name, hashed in hashes.items():
            taken = [ids for ids in columns.values() if "numbers" not in name or all(map(str.isdecimal, ids))]
            hashes_of = ([hashed(text) for text in ids] for ids in taken)
            found = [value for some in hashes_of for size in SIZES if (value := _deviation(some, size)) is not None]
            if found:
                rows.append([data, name, str(len(found)), f"{min(found, key=lambda z: -abs(z)):+.1f}"])
    return markdown(rows)


def _deviation(hashes: list[int], rows: int) -> float | None:
    """How far the distinct rows are from balls in bins, in standard deviations; None if nearly all rows are hit."""
    ids, hit = len(hashes), len({value * rows // WORD for value in hashes})
    one, two = math.exp(ids * math.log1p(-1 / rows)), math.exp(ids * math.log1p(-2 / rows))  # a row, two rows stay free
    variance = rows * one + rows * (rows - 1) * two - (rows * one) ** 2
    return (hit - rows * (1 - one)) / math.sqrt(variance) if rows * one > 10 else None


def _columns(data: str, folder: Path) -> Iterator[tuple[str, set[str]]]:
    """Distinct ids of each column; values of bags are told apart."""
    path = Path(study_sets.data_of(data, folder)["data"].removeprefix("csv:"))
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open("rt", encoding="utf-8") as file:
        lines = csv.DictReader(file)
        found: dict[str, set[str]] = {name: set() for name in lines.fieldnames or ()}
        for line in lines:
            for name, text in line.items():
                found[name].update(text.split("|") if "|" in text else (text,))
    return iter((name, ids - {""}) for name, ids in found.items())
