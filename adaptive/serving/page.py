"""The `README.md` of an export: what lies there, and how to score with it."""

import json
from collections.abc import Mapping
from typing import Any

_RULES = {
    "row": "the value is the row",
    "hash": "upper 64 bits of rows * hash(key)",
    "vocabulary": "place of the key in `{vocabulary}`",
}
_KEYS = {"int": "the number", "hex": "hex digits as a number", "text": "FNV-1a of its UTF-8"}


def page_text(facts: Mapping[str, Any]) -> str:
    """The page of an export whose `model.json` says `facts`."""
    run, is_onnx = facts["run"], facts["tensors"].endswith(".onnx")
    needs = "onnxruntime and numpy" if is_onnx else "torch and numpy"
    load = "" if is_onnx else "            # tables are mapped into memory, not read"
    tables = "".join(
        f"| `tables.{number}.weight` | {table['name']} | {table['rows']:,} | {table['width']} |\n"
        for number, table in enumerate(facts["tables"])
    )
    features = "".join(f"| {_feature(feature, facts)} |\n" for feature in facts["features"])
    dense = ", ".join(f"`{one['name']}`" + _transform(one) for one in facts["dense"]) or "none"
    return f"""# A model for scoring

Exported from the run `{run["folder"]}` after {run["steps"]:,} batches of `{run["data"]}`. It needs {needs}, not
the package that trained it.

    import scoring                       # this folder's scoring.py
    model = scoring.load("."){load}
    print(model.score([{_example(facts)}]))

`score` takes values as they stand in the data, and gives {_given(facts)}. From the command line:
`python scoring.py < samples.jsonl`, a JSON object a line; it stops at the first line that it cannot score.
`model(dense, bags)` takes rows and gives logits.

| file | holds |
|---|---|
{_tensors(facts["tensors"])}
| `model.json` | shapes, features, how values become rows |
| `ids/` | keys of fitted vocabularies, by row: `.npy`, int64 |
{_code(facts)}
## Tables

| tensor | table | rows | width |
|---|---|---|---|
{tables}
## Features

A value is turned into a 64-bit key, and the key into a row; `hash` is the finaliser of SplitMix64. Values that are
missing, or unknown, have a row of their own where one is named. `values.IdMap` does all this.

| feature | table | key | row | unknown | missing |
|---|---|---|---|---|---|
{features}
Dense inputs, in order: {dense}. Missing ones are 0.
"""


def _tensors(name: str) -> str:
    """Lines of the files of tensors."""
    if name.endswith(".onnx"):
        return (
            "| `model.onnx` | the model. Inputs: `dense` (batch, dense inputs) float32; of feature n, as below, "
            "`rows.n`, the rows of all its look-ups, and `offsets.n` (batch), where those of each sample begin, int64, "
            "the first 0. Outputs: `logits` and `scores`, their probabilities |\n"
            "| `model.onnx.data` | the tables, which `model.onnx` refers to |"
        )
    read = 'torch.load("model.pt", weights_only=True, mmap=True)'
    return f"| `{name}` | all tensors: `{read if name.endswith('.pt') else 'safetensors.torch.load_file'}` |"


def _code(facts: Mapping[str, Any]) -> str:
    """Lines of the files of code."""
    values = "| `values.py` | how values become rows and dense inputs, by numpy alone |\n"
    if facts["tensors"].endswith(".onnx"):
        return "| `scoring.py` | a session of onnxruntime, and values to its inputs |\n" + values
    torch = 'the model in plain torch: an `nn.EmbeddingBag(mode="sum")` a table, and the dense part'
    return f"| `scoring.py` | {torch} |\n{values}{_beside(facts)}"


def _given(facts: Mapping[str, Any]) -> str:
    """What `score` gives of a sample."""
    labels = facts["labels"] if facts["model"]["name"] in ("multi-task", "own") else []
    names = ", ".join(labels)
    return f"of each label the probability that it is 1: {names}" if labels else "the probability that the label is 1"


def _beside(facts: Mapping[str, Any]) -> str:
    """Lines of files that only some models need."""
    name, width = facts["model"]["name"], facts["model"]["embedding_dim"]
    lines = "| `own_model.py` | the model's own file, which `scoring.py` runs |\n" if name == "own" else ""
    if name not in ("dlrm", "tbsm") or any(table["width"] != width for table in facts["tables"]):
        lines = "| `dense_models.py` | more dense parts, for `scoring.py` |\n" + lines
    return lines


def _feature(feature: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    name = f"`{feature['name']}`" + (" (several values)" if feature["bag"] else "")
    rule = _RULES[feature["rule"]].format(vocabulary=feature["vocabulary"]) + f", {feature['rows']:,} rows"
    rows = [str(feature[kind]) if feature[kind] is not None else "none" for kind in ("unknown", "missing")]
    return " | ".join([name, facts["tables"][feature["table"]]["name"], _KEYS[feature["key"]], rule, *rows])


def _transform(dense: Mapping[str, str]) -> str:
    return " as log(1 + max(x, 0))" if dense["transform"] == "log" else ""


def _example(facts: Mapping[str, Any]) -> str:
    """A sample of the first dense input and the first two features."""
    values: dict[str, Any] = {one["name"]: 1.5 for one in facts["dense"][:1]}
    for feature in facts["features"][:2]:
        value = {"int": 1, "hex": "1f", "text": "a"}[feature["key"]]
        values[feature["name"]] = [value] if feature["bag"] else value
    return json.dumps(values, ensure_ascii=False)
