"""Description of an export: `model.json`, for servers.

Known categories have the first rows of a table. The row for unknown values follows, then the one for missing values, if
the table has them (`adaptive.data.rows.batcher`). A table with keys is exported with the vocabulary of its keys, and a
missing value has a key.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.data.dataset import Feature
from adaptive.data.rows.batcher import MISSING_KEY
from adaptive.data.rows.vocabularies import load_vocabularies
from adaptive.serving.sample_values import DenseFacts, FeatureFacts
from adaptive.training.runs.loading import LoadedRun

DataRecord = Mapping[str, Any]  # `data` in the record of a run, or a part of it
_RULES = {"direct": "row", "hashed": "hash", "fitted": "vocabulary", "keyed": "vocabulary"}
_KEYS = {"int": "int", "hex": "hex", "string": "text"}


def vocabularies(run: LoadedRun) -> dict[str, NDArray[np.int64]]:
    """Return table -> keys (rows,) of fitted vocabularies and of tables with keys; InputError if they are missing."""
    data, tables = _data(run), run.components.tables
    keyed = {table.name: run.embeddings.rows.table_keys(table.name) for table in tables if table.keys is not None}
    if not data.get("vocabularies"):
        return keyed
    folder, wanted = run.vocabulary_folder, dict[str, int]()
    for feature, table in zip(run.shape.features, run.shape.tables, strict=True):
        kind, size, _ = _described(feature, data)
        if kind == "fitted":
            wanted[table] = size
    loaded = load_vocabularies(folder, wanted)
    if {table: words.checksum() for table, words in loaded.items()} != data["vocabularies"]:
        raise run.lacks_vocabulary()
    return keyed | {table: words.keys for table, words in loaded.items()}


def feature_facts(
    run: LoadedRun, keys: Mapping[str, NDArray[np.int64]], numbers: Mapping[str, int]
) -> list[FeatureFacts]:
    """Return the rule of each feature, in order.

    Args:
        keys: result of `vocabularies`.
        numbers: table -> its number; keys of table N are in the file `ids/N.npy`.
    """
    features, data = [], _data(run)
    has_unknown = run.record["config"]["data_options"].get("out_of_range") == "oov"
    for feature, table in zip(run.shape.features, run.shape.tables, strict=True):
        kind, size, group = _described(feature, data)
        kind = "keyed" if table in run.shape.key_rules else kind
        rows = len(keys[table]) if kind in ("fitted", "keyed") else size
        bag = feature.name in run.shape.bags
        unknown = kind in ("fitted", "keyed") or (kind == "direct" and has_unknown)
        missing = kind != "direct" or (group.get("missing") == "row" and not bag)
        total, missing_row = rows + unknown + missing, rows + unknown
        if kind == "keyed":
            missing, missing_row = group.get("missing") != "reject", _row_of(keys[table], MISSING_KEY)
        else:
            assert total == feature.num_embeddings, f"{feature.name}: {total} rows, not {feature.num_embeddings}"
        features.append(
            FeatureFacts(
                name=feature.name,
                table=numbers[table],
                rule=_RULES[kind],
                key=_KEYS[group.get("kind", "int")],
                rows=rows,
                bag=bag,
                separator=group.get("inner_separator"),
                unknown=rows if unknown else None,
                missing=missing_row if missing else None,
                null=_nulls(data),
                vocabulary=f"ids/{numbers[table]}.npy" if kind in ("fitted", "keyed") else None,
                max_length=run.shape.sequences.get(feature.name),
                padding=group.get("padding"),
            )
        )
    return features


def _row_of(keys: NDArray[np.int64], key: int) -> int:
    """Return the row of a key among ascending keys; the row after them if it has none."""
    row = int(np.searchsorted(keys, key))
    return row if row < len(keys) and keys[row] == key else len(keys)


def dense_facts(run: LoadedRun) -> list[DenseFacts]:
    """Return the facts of each dense input, in order."""
    data = _data(run)
    names = run.shape.dense_names or tuple(f"dense_{number}" for number in range(run.shape.num_dense))
    groups = (data.get("schema") or {}).get("dense", [])

    def facts(name: str) -> DenseFacts:
        kind, transform = ("int", "log") if data.get("format") == "criteo" else ("float", "none")
        for group in groups:
            if _matches(name, group["columns"]):
                kind, transform = str(group["kind"]), str(group["transform"])
                break
        return DenseFacts(name, kind, transform, _nulls(data), *(data.get("scales") or {}).get(name, ()))

    return list(map(facts, names))


def _nulls(data: DataRecord) -> list[str]:
    """Texts of missing values, including the empty text."""
    schema = data.get("schema")
    return sorted({"", *schema.get("null", ())}) if schema else [""]


def ignored_names(run: LoadedRun) -> list[str]:
    """Columns of the data that are no inputs (label, weight, time). Samples may contain them."""
    schema = _data(run).get("schema") or {}
    columns = [schema.get("label"), schema.get("weight"), schema.get("time")]
    names = [str(column["column"]) for column in columns if column]
    return names or (["label"] if _data(run).get("format") == "criteo" else [])


def _data(run: LoadedRun) -> DataRecord:
    data = run.record.get("data")
    return data if isinstance(data, dict) else {}


def _described(feature: Feature, data: DataRecord) -> tuple[str, int, DataRecord]:
    """Return the kind of a feature's rule, its size, and the schema's settings of its column.

    Without a rule in the data's record, values are rows ("direct").
    """
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
