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
    run, mapped = facts["run"], facts["tensors"].endswith(".pt")
    read = 'torch.load("model.pt", weights_only=True, mmap=True)' if mapped else "safetensors.torch.load_file"
    tables = "".join(
        f"| `tables.{number}.weight` | {table['name']} | {table['rows']:,} | {table['width']} |\n"
        for number, table in enumerate(facts["tables"])
    )
    features = "".join(f"| {_feature(feature, facts)} |\n" for feature in facts["features"])
    dense = ", ".join(f"`{one['name']}`" + _transform(one) for one in facts["dense"]) or "none"
    return f"""# A model for scoring

Exported from the run `{run["folder"]}` after {run["steps"]:,} batches of `{run["data"]}`. It needs torch and numpy, not
the package that trained it.

    import scoring                       # this folder's scoring.py
    model = scoring.load(".")            # tables are mapped into memory, not read
    print(model.score([{_example(facts)}]))

`score` takes values as they stand in the data, and gives the probability that the label is 1. From the command line:
`python scoring.py < samples.jsonl`, a JSON object a line. `model(dense, bags)` takes rows and gives logits.

| file | holds |
|---|---|
| `{facts["tensors"]}` | all tensors: `{read}` |
| `model.json` | shapes, features, how values become rows |
| `ids/` | keys of fitted vocabularies, by row: `.npy`, int64 |
| `scoring.py` | the model in plain torch: an `nn.EmbeddingBag(mode="sum")` a table, and the dense part |

## Tables

| tensor | table | rows | width |
|---|---|---|---|
{tables}
## Features

A value is turned into a 64-bit key, and the key into a row; `hash` is the finaliser of SplitMix64. Values that are
missing, or unknown, have a row of their own where one is named. `scoring.IdMap` does all this.

| feature | table | key | row | unknown | missing |
|---|---|---|---|---|---|
{features}
Dense inputs, in order: {dense}. Missing ones are 0.
"""


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
