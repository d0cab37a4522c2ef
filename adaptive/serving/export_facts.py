"""Description of an export: `model.json` for servers, and the page `README.md`.

Known categories have the first rows of a table. The row for unknown values follows, then the one for missing values, if
the table has them (`adaptive.data.rows.batcher`). A table with keys is exported with the vocabulary of its keys, and a
missing value has a key.
"""

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.data.dataset import Feature
from adaptive.data.rows.batcher import MISSING_KEY
from adaptive.data.rows.vocabularies import load_vocabularies
from adaptive.serving.sample_values import DenseFacts, ExportFacts, FeatureFacts
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


# -- the page ------------------------------------------------------------------------------------------------------


_RULE_TEXTS = {
    "row": "the value is the row",
    "hash": "upper 64 bits of rows * hash(key)",
    "vocabulary": "position of the key in `{vocabulary}`",
}
_ROW_TEXTS = {"float32": "", "bfloat16": "Rows are bfloat16, rounded to nearest; they are pooled in float32.\n"}
_KEY_TEXTS = {"int": "the number", "hex": "hex digits as a number", "text": "FNV-1a of its UTF-8"}


def page_text(facts: ExportFacts) -> str:
    """Return the page `README.md` of an export."""
    run = facts.run
    tables = "".join(
        f"| `tables.{number}.weight` | {table.name} | {table.rows:,} | {table.width} |\n"
        for number, table in enumerate(facts.tables)
    )
    features = "".join(f"| {_feature(feature, facts)} |\n" for feature in facts.features)
    dense = ", ".join(f"`{dense.name}`" + _transform(dense) for dense in facts.dense) or "none"
    return f"""# A model for scoring

Exported from the run `{run["folder"]}` after {run["steps"]:,} batches of `{run["data"]}`. It requires torch and numpy,
but not the package that trained it.

    import scoring                       # this folder's scoring.py
    model = scoring.load(".")            # tables are mapped into memory, not read
    print(model.score([{_example(facts)}]))

`score` takes values as they are in the data, and returns {"the probability that the label is 1"}.
`model(dense, bags)` takes rows and returns logits. On the command line, `python scoring.py < samples.jsonl` scores one
JSON object per line and stops at the first line that it cannot score.

| file | content |
|---|---|
{_tensors(facts.tensors)}
| `model.json` | shapes, features, rules that map values to rows |
| `ids/` | keys of fitted vocabularies and of tables with keys, by row: `.npy`, int64 |
{_code(facts)}
## Tables

| tensor | table | rows | width |
|---|---|---|---|
{tables}
{_ROW_TEXTS[facts.row_dtype]}
## Features

A value is converted to a 64-bit key, and the key to a row; `hash` is the finalizer of SplitMix64. The last two columns
are the rows of unknown and of missing values; `none` means that such a value is an error. `sample_values.IdMap`
implements these rules.

| feature | table | key | row | unknown | missing |
|---|---|---|---|---|---|
{features}
Dense inputs, in order: {dense}. Missing ones are 0.{_kept(facts)}
"""


def _tensors(name: str) -> str:
    """Table line of the file of tensors."""
    read = 'torch.load("model.pt", weights_only=True, mmap=True)'
    return f"| `{name}` | all tensors: `{read if name.endswith('.pt') else 'safetensors.torch.load_file'}` |"


def _code(facts: ExportFacts) -> str:
    """Table lines of the files of code."""
    bag = 'an `nn.EmbeddingBag(mode="sum")`' if facts.row_dtype == "float32" else "a `scoring.Table`"
    lines = (
        f"| `scoring.py` | the model in plain torch: {bag} per table, and the dense part |\n"
        "| `sample_values.py` | maps values to rows and dense inputs, with numpy only |\n"
        "| `dense/` | the code of dense parts, as in training |\n"
    )
    if facts.model["name"] == "custom":
        lines += "| `custom_model.py` | the file of the custom model, which `scoring.py` runs |\n"
    return lines


def _kept(facts: ExportFacts) -> str:
    if facts.keep_negatives == 1:
        return ""
    return (
        f"\n\nTraining kept {facts.keep_negatives:.6g} of the samples with label 0. Logits and scores are corrected "
        "for it: a\nprobability p becomes p / (p + (1 - p) / keep_negatives)."
    )


def _feature(feature: FeatureFacts, facts: ExportFacts) -> str:
    name = f"`{feature.name}`" + (" (several values)" if feature.bag else "")
    rule = _RULE_TEXTS[feature.rule].format(vocabulary=feature.vocabulary) + f", {feature.rows:,} rows"
    rows = ["none" if row is None else str(row) for row in (feature.unknown, feature.missing)]
    return " | ".join([name, facts.tables[feature.table].name, _KEY_TEXTS[feature.key], rule, *rows])


def _transform(dense: DenseFacts) -> str:
    standard = f" as (x - {dense.mean:.6g}) / {dense.deviation:.6g}"
    return {"log": " as log(1 + max(x, 0))", "standard": standard}.get(dense.transform, "")


def _example(facts: ExportFacts) -> str:
    """An example sample with the first dense input and the first two features."""
    values: dict[str, object] = {dense.name: 1.5 for dense in facts.dense[:1]}
    for feature in facts.features[:2]:
        value = {"int": 1, "hex": "1f", "text": "a"}[feature.key]
        values[feature.name] = [value] if feature.bag else value
    return json.dumps(values, ensure_ascii=False)
