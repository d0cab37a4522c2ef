"""Lists of events as delimited files with labels: next items, and cancelled invoice lines."""

import csv
import gzip
import io
import tarfile
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Final, Literal

import numpy as np

from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset

Sequences = list[list[int]]
Part = Literal["all", "but last", "last"]
HISTORY: Final = 10  # items before the last one
LINES, STEPS = 48_000, 20  # of a file of sequences, and of each sequence, at most


# --- reading -------------------------------------------------------------------------------------------------------


def read_lines(path: Path) -> Sequences:
    """A sequence per line, items separated by spaces."""
    return [[int(item) for item in line.split()] for line in _lines(path)]


def read_pairs(path: Path) -> Sequences:
    """`user item` per line, the lines of a user together and in time order."""
    pairs = (line.split() for line in _lines(path))
    return [[int(item) for _, item in group] for _, group in groupby(pairs, key=lambda pair: pair[0])]


def read_behaviours(path: Path) -> Sequences:
    """Read a session per line, of steps `sku+behaviour+...`; repeats of a product count once."""
    return [_changes(int(step.partition("+")[0]) for step in line.split()) for line in _lines(path)]


def _changes(items: Iterable[int]) -> list[int]:
    return [item for item, _ in groupby(items)]


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield line.rstrip("\n")


# --- writing -------------------------------------------------------------------------------------------------------


def write_next_items(sequences: Sequences, path: Path, *, part: Part = "all") -> None:
    """Write lines `label,target,last,history` and a negative for each item but the first.

    A negative's target is that of a line drawn at random among all of `part`.
    """
    places = [place for sequence in sequences for place in _places(sequence, part)]
    rest = [(sequence[at - 1], _joined(sequence[max(at - 1 - HISTORY, 0) : at - 1])) for sequence, at in places]
    _write_with_negatives(path, ("last", "history"), [sequence[at] for sequence, at in places], rest)


def write_sequences(sequences: Sequences, path: Path) -> None:
    """Write lines `label,target,history`: the latest items that came next, each followed by a negative.

    A negative's target is that of one of these lines, drawn at random. A history ends with the item before the target.
    """
    places = [place for sequence in sequences for place in _places(sequence, "all")][-(LINES // 2) :]
    histories = [(_joined(sequence[max(at - STEPS, 0) : at]),) for sequence, at in places]
    _write_with_negatives(path, ("history",), [sequence[at] for sequence, at in places], histories)


def write_stream(path: Path, *, samples: int, most: int = STEPS) -> None:
    """Write samples of the built-in sequences, which have the shape of Taobao's, with histories as lists."""
    options = DataOptions.model_validate(
        {"history": most, "sequences": {"users": 100_000, "items": 200, "categories": 10, "num_train": samples}}
    )
    dataset = open_dataset("sequences", options)
    names = ("label", "user", "target", "category", "history", "categories")

    def rows() -> Iterator[tuple[object, ...]]:
        for batch in dataset.train(1 << 12):
            ids = batch.ids.reshape(3, most + 1, -1).transpose(2, 0, 1)
            for label, (user, item, category) in zip(batch.labels.tolist(), ids.tolist(), strict=True):
                lists = map(_joined, (item[:-1], category[:-1]))
                yield int(label), user[-1], item[-1], category[-1], *lists

    _write(path, names, rows())


def _places(sequence: list[int], part: Part) -> Iterator[tuple[list[int], int]]:
    first = len(sequence) - 1 if part == "last" else 1
    end = len(sequence) - 1 if part == "but last" else len(sequence)
    for at in range(max(first, 1), end):
        yield sequence, at


def _write_with_negatives(
    path: Path, names: tuple[str, ...], targets: list[int], rest: Iterable[tuple[object, ...]]
) -> None:
    """Write a line of each target and the rest, named `names`, each followed by one of another line's target."""
    drawn = np.random.default_rng(0).integers(len(targets), size=len(targets)).tolist()
    lines = zip(targets, drawn, rest, strict=True)
    rows = (row for target, other, cells in lines for row in ((1, target, *cells), (0, targets[other], *cells)))
    _write(path, ("label", "target", *names), rows)


def _joined(items: list[int]) -> str:
    return "|".join(map(str, items))


def write_invoices(archive: Path, path: Path) -> None:
    """Put the daily files of Online Retail together, with the columns that its schema names."""
    names = ("cancelled", "units", "UnitPrice", "StockCode", "CustomerID", "Country", "weekday", "hour")
    with tarfile.open(archive, "r:gz") as files:
        members = sorted((member for member in files if member.isfile()), key=lambda member: member.name)
        texts = (_text(files, member) for member in members)
        _write(path, names, (row for text in texts for row in _invoice_rows(text)))


def _text(files: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = files.extractfile(member)
    assert file is not None
    return file.read().decode("utf-8")


def _invoice_rows(text: str) -> Iterator[tuple[object, ...]]:
    for line in csv.DictReader(io.StringIO(text)):
        time = datetime.fromisoformat(line["InvoiceDate"])
        cancelled = int(line["InvoiceNo"].startswith("C"))
        units, price = abs(int(line["Quantity"])), line["UnitPrice"]
        ids = line["StockCode"], line["CustomerID"], line["Country"]
        yield cancelled, units, price, *ids, time.weekday(), time.hour


def _write(path: Path, names: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
