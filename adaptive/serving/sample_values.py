"""Map values of the data to rows and dense inputs, with numpy only.

Each export has a copy of this file.

Letters: B samples, N lookups of one feature.
"""

import contextlib
import difflib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WORD = 2**64 - 1
LARGEST = float(np.finfo(np.float32).max)
NUMBER = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")  # numbers that the readers of data take
Bag = tuple[NDArray[np.int64], NDArray[np.int64]]
Sample = Mapping[str, Any]  # name of a feature or dense input -> its value as in the data


class SampleError(ValueError):
    """A sample that cannot be scored: its `number`, and a `reason` without it."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"sample {number}, {reason}")
        self.number, self.reason = number, reason


@dataclass(frozen=True)
class TableFacts:
    """A table: its name, number of rows, and width of a row."""

    name: str
    rows: int
    width: int


@dataclass(frozen=True)
class FeatureFacts:
    """A feature with the rule that maps its values to rows.

    Attributes:
        table: number of its table.
        rule: "row" (the key is the row, below `rows`), "hash" (the upper 64 bits of `rows` times the hash of the key)
            or "vocabulary" (the position of the key in the file `vocabulary`).
        key: conversion of a value to a 64-bit number: "int", "hex" or "text".
        bag: True for several values: a list, or one text if there is a `separator`.
        unknown, missing: rows of such values; None: such values are errors.
        null: texts of missing values.
        max_length: of a bag whose values are steps of a sequence; earlier ones are left out.
        padding: value that is left out of bags.
    """

    name: str
    table: int
    rule: str
    key: str
    rows: int
    bag: bool
    separator: str | None
    unknown: int | None
    missing: int | None
    null: Sequence[str]
    vocabulary: str | None
    max_length: int | None = None
    padding: str | None = None


@dataclass(frozen=True)
class DenseFacts:
    """A dense input.

    Attributes:
        kind: "int" or "float".
        transform: "none", "log" (log(1 + max(x, 0))) or "standard" ((x - mean) / deviation, of x in float32).
        null: texts of missing values, which become 0.
    """

    name: str
    kind: str
    transform: str
    null: Sequence[str]
    mean: float = 0.0
    deviation: float = 1.0


@dataclass(frozen=True)
class ExportFacts:
    """Content of an export's `model.json`.

    Attributes:
        run: `folder`, `steps` and `data` of the run.
        row_dtype: of the tables: float32 or bfloat16.
        ignored: columns of the data that are no inputs.
        steps: length of a sample that is a sequence, else 1.
        keep_negatives: share of the training samples with label 0 that were kept; probabilities are corrected for it.
        model: `name` and settings of the model.
    """

    format: str
    version: int
    run: Mapping[str, Any]
    tables: Sequence[TableFacts]
    features: Sequence[FeatureFacts]
    dense: Sequence[DenseFacts]
    ignored: Sequence[str]
    steps: int
    model: Mapping[str, Any]
    row_dtype: str = "float32"
    keep_negatives: float = 1.0

    @property
    def is_widened(self) -> bool:
        """True if the model takes concatenated vectors: tables differ in width."""
        return any(table.width != self.model["embedding_dim"] for table in self.tables)


def read_facts(folder: Path) -> ExportFacts:
    """Read the `model.json` of an export; ValueError if it names files that no export has."""
    content = json.loads((folder / "model.json").read_text("utf-8"))
    kinds = {"tables": TableFacts, "features": FeatureFacts, "dense": DenseFacts}
    facts = ExportFacts(**content | {key: [kind(**entry) for entry in content[key]] for key, kind in kinds.items()})
    files = [facts.model.get("file", "custom_model.py")]
    files += [feature.vocabulary for feature in facts.features if feature.vocabulary is not None]
    for file in files:
        if not re.fullmatch(r"custom_model\.py|ids/[0-9]+\.npy", str(file)):
            raise ValueError(f"expected a file of an export, got {file!r} ({folder / 'model.json'})")
    return facts


class Values:
    """Converts samples to inputs of the model, by the `facts` of the export in `folder`."""

    def __init__(self, facts: ExportFacts, folder: Path) -> None:
        self.facts = facts
        self.ids = [IdMap(feature, folder) for feature in facts.features]
        self.names = [*(dense.name for dense in facts.dense), *(ids.name for ids in self.ids)]

    def inputs(self, samples: Sequence[Sample]) -> tuple[NDArray[np.float32], list[Bag]]:
        """Return dense inputs (B, dense inputs) float32, and a bag for each feature.

        A bag is the rows of all lookups (N,) and the first lookup of each sample (B,), both int64.

        Raises:
            SampleError: for an unknown name, or a value of the wrong kind.
        """
        dense: list[list[float]] = []
        rows: list[list[list[int]]] = [[] for _ in self.ids]
        for number, sample in enumerate(samples):
            try:
                self._check_names(sample)
                dense.append([dense_input(sample, column) for column in self.facts.dense])
                for ids, of_samples in zip(self.ids, rows, strict=True):
                    of_samples.append(ids.rows(sample.get(ids.name)))
            except ValueError as error:
                raise SampleError(number, str(error)) from None
        shape = (len(samples), len(self.facts.dense))
        return np.array(dense, np.float32).reshape(shape), list(map(bag_of, rows))

    def _check_names(self, sample: Sample) -> None:
        for name in sample:
            if name not in self.names and name not in self.facts.ignored:
                near = difflib.get_close_matches(str(name), self.names, n=1)
                hint = f"did you mean {near[0]}?" if near else f"the model has {', '.join(self.names)}"
                raise ValueError(f"{name}: expected a feature or dense input of the model; {hint}")

    @staticmethod
    def score_lines(score: Callable[[Sequence[Sample]], list[Any]], lines: Iterable[bytes]) -> None:
        """Print the score of each line, a JSON object.

        The first line that cannot be scored ends the program with exit code 3 and a message on stderr.
        """
        for number, line in enumerate(lines, start=1):
            try:
                print(score([object_of(line)])[0], flush=True)
            except SampleError as error:
                print(f"error: line {number}, {error.reason}", file=sys.stderr)
                raise SystemExit(3) from None
            except ValueError as error:
                print(f"error: line {number}: {error}", file=sys.stderr)
                raise SystemExit(3) from None


def bag_of(rows: Sequence[Sequence[int]]) -> Bag:
    """Return the rows of all lookups (N,) and the first lookup of each sample (B,)."""
    starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)[:-1]
    return np.array([row for sample in rows for row in sample], np.int64), starts


def dense_input(sample: Sample, facts: DenseFacts) -> float:
    """Return a transformed dense input, 0 if missing; ValueError unless finite float32."""
    value = sample.get(facts.name)
    if is_missing(value, facts.null):
        return 0.0
    number = math.nan
    if facts.kind == "int":
        whole = whole_number(value)
        number = math.nan if whole is None else float(whole)
    elif isinstance(value, Real | Decimal) or (isinstance(value, str) and NUMBER.fullmatch(value)):
        with contextlib.suppress(OverflowError):  # of integers
            number = float(value)
    if not abs(number) <= LARGEST:  # also true for NaN
        expected = "a whole number" if facts.kind == "int" else "a number"
        raise ValueError(f"{facts.name}: expected {expected}, got {repr(value)[:80]}")
    if facts.transform == "standard":
        return (float(np.float32(number)) - facts.mean) / facts.deviation
    return math.log1p(max(number, 0.0)) if facts.transform == "log" else number


def is_missing(value: Any, nulls: Sequence[str]) -> bool:
    """True for None, the texts in `nulls`, and NaN (as in Parquet files)."""
    return value is None or (isinstance(value, str) and value in nulls) or (isinstance(value, float) and value != value)


class IdMap:
    """Maps values of a feature to rows of its table."""

    def __init__(self, facts: FeatureFacts, folder: Path) -> None:
        self.facts, self.name = facts, facts.name
        if facts.vocabulary is not None:
            where = folder / facts.vocabulary
            keys = np.load(where, allow_pickle=False)
            if keys.dtype != np.int64 or keys.shape != (facts.rows,):
                form = f"int64 ({facts.rows},), got {keys.dtype} {keys.shape}"
                raise ValueError(f"expected {form} ({where}). Export the run again.")
            self._order = np.argsort(keys)
            self._keys = keys[self._order]
            if (self._keys[1:] == self._keys[:-1]).any():
                raise ValueError(f"expected each key once, got one twice ({where}). Export the run again.")

    def rows(self, value: Any) -> list[int]:
        """Return the rows of one sample: one, or any number for a bag.

        A bag is a list of values, or one text with the data's separator between them.
        """
        if not self.facts.bag:
            return [self.row(value)]
        if isinstance(value, str):
            value = [value] if self.facts.separator is None else value.split(self.facts.separator)
        elif value is not None and (isinstance(value, bytes) or not isinstance(value, Sequence | np.ndarray)):
            value = [value]
        nulls = self.facts.null
        present = [item for item in (() if value is None else value) if not is_missing(item, nulls)]
        if self.facts.padding is not None:
            padding = key_of(self.facts.padding, self.facts.key)
            present = [item for item in present if key_of(item, self.facts.key) != padding]
        return list(map(self.row, present[-self.facts.max_length :] if self.facts.max_length else present))

    def row(self, value: Any) -> int:
        """Return the row of a value, which may be missing; ValueError if it has no row."""
        facts = self.facts
        if is_missing(value, facts.null):
            return self._special("missing", value)
        key = key_of(value, facts.key)
        if key is None:
            raise ValueError(f"{self.name}: expected {EXPECTED[facts.key]}, got {value!r}")
        if facts.rule == "hash":
            return mixed(key) * int(facts.rows) >> 64
        if facts.rule == "row":
            return key if 0 <= key < facts.rows else self._special("unknown", value)
        place = int(np.searchsorted(self._keys, key))
        if place < len(self._keys) and self._keys[place] == key:
            return int(self._order[place])
        return self._special("unknown", value)

    def _special(self, name: str, value: Any) -> int:
        row = self.facts.missing if name == "missing" else self.facts.unknown
        if row is None:
            expected = "a known value" if name == "unknown" else "a value"
            raise ValueError(f"{self.name}: expected {expected}, got {value!r}; the table has no row for {name} values")
        return row


EXPECTED = {
    "int": "a 64-bit integer",
    "hex": "a text of at most 16 hexadecimal digits",
    "text": "a text or an integer",
}


def key_of(value: Any, kind: str) -> int | None:
    """Return the 64-bit key of a value: integer, hex digits, or FNV-1a of a text.

    None: the value is of another kind, by the rules of the readers of training data. As they read columns of Arrow,
    whole decimals are integers.
    """
    if kind == "int":
        return whole_number(value)
    if isinstance(value, np.bool_):
        value = bool(value)
    elif isinstance(value, Decimal) and value == value.to_integral_value():
        value = int(value)
    if kind == "hex":
        if not (isinstance(value, str) and re.fullmatch("[0-9a-fA-F]{1,16}", value)):
            return None
        key = int(value, 16)
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if not isinstance(value, str | Integral) or "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
            return None
        key = 0xCBF29CE484222325
        for byte in text.encode():
            key = (key ^ byte) * 0x100000001B3 & WORD
    return key - 2**64 if key >= 2**63 else key


def whole_number(value: Any) -> int | None:
    """Return a number or a text of digits as 64 bits, signed; None for other values."""
    if isinstance(value, str):
        is_whole = re.fullmatch("-?[0-9]{1,20}", value) is not None
    elif isinstance(value, Integral | np.bool_):
        is_whole = True
    elif isinstance(value, Decimal):
        is_whole = value.is_finite() and value == value.to_integral_value()
    else:  # larger floats stand for several integers
        exact = 2 ** (np.finfo(type(value)).nmant + 1 if isinstance(value, np.floating) else 53)
        is_whole = isinstance(value, Real) and abs(float(value)) < exact and float(value).is_integer()
    if not is_whole:
        return None
    number = int(value)
    return None if not -(2**63) <= number < 2**64 else number if number < 2**63 else number - 2**64


def mixed(key: int) -> int:
    """Return the hash of a key: the finalizer of SplitMix64."""
    x = key & WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)


def object_of(line: bytes) -> Sample:
    """Parse the sample in a line; ValueError if it is not a JSON object."""
    try:
        sample = json.loads(line)
    except (ValueError, RecursionError):
        sample = None
    if not isinstance(sample, dict):
        raise ValueError(f"expected a JSON object, got {line.decode(errors='replace').strip()[:60]!r}")
    return sample
