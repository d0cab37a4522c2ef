"""Which rows the values of features look up, as data that a server can follow; read off the record of a run.

Real categories own the first rows of a table; behind them is the row for unknown values, then the one for missing ones,
as far as there are such (`adaptive.data.rows.batcher`).
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.data.dataset import Feature
from adaptive.data.rows.vocabularies import load_vocabularies
from adaptive.data.text.schema import NULLS
from adaptive.training.runs.loading import LoadedRun, lacks_vocabulary, vocabulary_folder

IdRule = dict[str, Any]
"""JSON values: `rule` is "row" (the key is the row, below `rows`), "hash" (the upper 64 bits of `rows` times the hash
of the key) or "vocabulary" (the place of the key among those in the file `vocabulary`); `key` is how a value becomes a
64-bit number: "int", "hex" or "text"; `bag`: several values, in a text with `separator` between them; `unknown`,
`missing`: rows, or null if there is none; `null`: texts of missing values."""

_RULES = {"direct": "row", "hashed": "hash", "fitted": "vocabulary"}
_KEYS = {"int": "int", "hex": "hex", "string": "text"}


def vocabularies(run: LoadedRun) -> dict[str, NDArray[np.int64]]:
    """Table -> (rows,) the keys of its rows, of tables whose vocabulary was fitted.

    Raises:
        InputError: if they are not where the run has them.
    """
    data = _data(run)
    if not data.get("vocabularies"):
        return {}
    folder, wanted = vocabulary_folder(run), dict[str, int]()
    for feature, table in zip(run.shape.features, run.shape.tables, strict=True):
        kind, size, _ = _described(feature, data)
        if kind == "fitted":
            wanted[table] = size
    found = load_vocabularies(folder, wanted)
    if found is None or {table: one.checksum() for table, one in found.items()} != data["vocabularies"]:
        raise lacks_vocabulary(run, folder)
    return {table: one.keys for table, one in found.items()}


def id_rules(run: LoadedRun, keys: Mapping[str, NDArray[np.int64]], files: Mapping[str, str]) -> list[IdRule]:
    """The rule of each feature, in order.

    Args:
        keys: what `vocabularies` gave.
        files: table -> file of its keys, for the entry `vocabulary`.
    """
    rules, data = [], _data(run)
    has_unknown = run.record["config"]["data_options"].get("out_of_range") == "oov"
    for feature, table in zip(run.shape.features, run.shape.tables, strict=True):
        kind, size, group = _described(feature, data)
        rows = len(keys[table]) if kind == "fitted" else size
        bag = bool(group.get("inner_separator"))
        unknown = kind == "fitted" or (kind == "direct" and has_unknown)
        missing = kind != "direct" or (group.get("missing") == "row" and not bag)
        total = rows + unknown + missing
        assert total == feature.num_embeddings, f"{feature.name}: {total} rows by its rule, {feature.num_embeddings}"
        rules.append(
            {
                "name": feature.name,
                "bag": bag,
                "separator": group.get("inner_separator"),
                "rule": _RULES[kind],
                "key": _KEYS[group.get("kind", "int")],
                "rows": rows,
                "unknown": rows if unknown else None,
                "missing": rows + unknown if missing else None,
                "null": _nulls(data),
                "vocabulary": files.get(table),
            }
        )
    return rules


def dense_rules(run: LoadedRun) -> list[dict[str, Any]]:
    """`name`, `transform` ("none" or "log") and `null` (texts of missing values) of each dense input, in order; missing
    ones are 0."""
    data = _data(run)
    names = run.shape.dense_names or tuple(f"dense_{number}" for number in range(run.shape.num_dense))
    groups = (data.get("schema") or {}).get("dense", [])

    def transform(name: str) -> str:
        if data.get("format") == "criteo":
            return "log"
        return next((str(group["transform"]) for group in groups if _matches(name, group["columns"])), "none")

    return [{"name": name, "transform": transform(name), "null": _nulls(data)} for name in names]


def _nulls(data: Mapping[str, Any]) -> list[str]:
    """Texts of missing values, the empty one among them."""
    schema = data.get("schema")
    return sorted({"", *schema.get("null", NULLS)}) if schema else [""]


def ignored_names(run: LoadedRun) -> list[str]:
    """Columns of the data that are no inputs: labels and the time. Samples may have them all the same."""
    schema = _data(run).get("schema") or {}
    columns = [schema.get("label"), *schema.get("more_labels", ()), schema.get("time")]
    names = [str(column["column"]) for column in columns if column]
    return names or (["label"] if _data(run).get("format") == "criteo" else [])


def _data(run: LoadedRun) -> Mapping[str, Any]:
    data = run.record.get("data")
    return data if isinstance(data, dict) else {}


def _described(feature: Feature, data: Mapping[str, Any]) -> tuple[str, int, Mapping[str, Any]]:
    """The kind of a feature's rule, its size, and the schema's settings of its column. Where nothing is said of how
    values become rows, they are rows."""
    schema, rows = data.get("schema") or {}, data.get("rows")
    if "categorical" in schema and isinstance(rows, dict):
        kind, size = str(rows[feature.name]).split()
        group = next(group for group in schema["categorical"] if _matches(feature.name, group["columns"]))
        return kind, int(size), group
    if data.get("format") == "criteo":
        return str(rows), int(data["rows_setting"]), {"kind": "hex"}
    return "direct", feature.num_embeddings, {}


def _matches(name: str, patterns: list[str]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)
