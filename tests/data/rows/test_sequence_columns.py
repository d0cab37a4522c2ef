"""Columns of sequences: order, the latest ids, the same batches from every format, and mistakes in schemas."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptive.batch import Batch
from adaptive.data.arrow.frames import from_frame
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset, shape_of
from adaptive.data.open import open_dataset
from adaptive.data.prepared_writer import prepare
from adaptive.data.rows.batcher import keep_latest
from adaptive.errors import ConfigError
from adaptive.serving.sample_values import FeatureFacts, IdMap, key_of, mixed

pyarrow: ModuleType | None
try:
    import pyarrow
except ImportError:  # the tests of text run without it
    pyarrow = None

HISTORIES = [[3, 1, 2], [], [5], [1, 2, 3, 4, 5, 6], [7, 7, 7, 7]]
TOML = """
label = {{ column = "label" }}
[[categorical]]
columns = ["item"]
kind = "int"
num_embeddings = 10
table = "item"
missing = "reject"
[[categorical]]
columns = ["history"]
kind = "int"
num_embeddings = 10
table = "item"
{more}
"""
SEQUENCE = 'inner_separator = "|"\nsequence = true\nmax_length = 3'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_csv(more: str = SEQUENCE) -> DataOptions:
    lines = [f"{n % 2},{n + 1},{'|'.join(map(str, history))}" for n, history in enumerate(HISTORIES)]
    Path("data.csv").write_text("\n".join(["label,item,history", *lines]) + "\n")
    Path("data.toml").write_text(TOML.format(more=more))
    return DataOptions(schema_path=Path("data.toml"))


def histories(batch: Batch) -> list[list[int]]:
    offsets = batch.offsets[-batch.num_samples - 1 :]
    return [batch.ids[first:last].tolist() for first, last in pairwise(offsets)]


def check(dataset: Dataset) -> None:
    batches = list(dataset.train(2))
    assert [one for batch in batches for one in histories(batch)] == [history[-3:] for history in HISTORIES]
    assert dataset.sequences == shape_of(dataset).sequences == {"history": 3}
    assert dataset.tables == ("item", "item")


def test_text_keeps_the_latest_ids_in_order() -> None:
    dataset = open_dataset("csv:data.csv", write_csv())
    assert dataset.truncated() == {}
    check(dataset)
    assert dataset.truncated() == {"history": 2}


def test_prepared_data_keep_sequences() -> None:
    prepare("csv:data.csv", write_csv(), Path("out.prepared"))
    check(open_dataset("prepared:out.prepared", DataOptions()))


def test_the_default_length_is_50() -> None:
    options = write_csv('inner_separator = "|"\nsequence = true')
    assert open_dataset("csv:data.csv", options).sequences == {"history": 50}


def test_data_without_sequences_have_the_identity_they_had() -> None:
    """Runs and prepared data from before there were sequences are recognized."""
    dataset = open_dataset("csv:data.csv", write_csv('inner_separator = "|"'))
    (schema,) = [value for key, value in dataset.fingerprint().items() if key == "schema"]
    assert isinstance(schema, dict)
    assert all("sequence" not in group and "max_length" not in group for group in schema["categorical"])
    assert all("padding" not in group for group in schema["categorical"])
    sequences = open_dataset("csv:data.csv", write_csv()).fingerprint()["schema"]
    assert isinstance(sequences, dict) and sequences["categorical"][1]["max_length"] == 3


def schema_of(kind: str, padding: str, max_length: int) -> dict[str, Any]:
    group = {"columns": ["history"], "kind": kind, "hash_rows": 50, "table": "item", "inner_separator": "|",
             "sequence": True, "max_length": max_length, "padding": padding}  # fmt: skip
    item = {"columns": ["item"], "kind": kind, "hash_rows": 50, "table": "item"}
    return {"label": {"column": "label"}, "categorical": [item, group]}


def row_of(token: str, kind: str) -> int:
    key = key_of(token, {"string": "text"}.get(kind, kind))
    assert key is not None
    return mixed(key) * 50 >> 64


TOKENS = {"int": ("0", "00", "-1", "7", "7", "12"), "hex": ("0", "f", "0F", "a1"), "string": ("PAD", "pad", "x", "yz")}


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_padding_is_left_out_of_text_lists_parquet_prepared_and_served_samples(data: st.DataObject) -> None:
    """Bags of padding, missing values and ids, too long and empty ones, in batches of any size; one slow rule."""
    kind = data.draw(st.sampled_from(sorted(TOKENS)))
    tokens, padding, most = TOKENS[kind], TOKENS[kind][0], data.draw(st.integers(1, 4))
    bag = st.lists(st.sampled_from((*tokens, padding, "NA")), max_size=7)
    bags, size = data.draw(st.lists(bag, min_size=1, max_size=6)), data.draw(st.integers(1, 4))
    items = [tokens[number % len(tokens)] for number in range(len(bags))]
    schema = schema_of(kind, padding, most)
    schema["null"] = ["", "NA"]  # in every format
    is_padding = {"0", "00"} if kind == "int" else {padding}  # the same number in other digits is padding, too
    kept = [[token for token in one if token != "NA" and token not in is_padding] for one in bags]
    expected = [[row_of(token, kind) for token in one][-most:] for one in kept]
    lines = [f"{n % 2},{item},{'|'.join(one)}" for n, (item, one) in enumerate(zip(items, bags, strict=True))]
    Path("data.csv").write_text("\n".join(["label,item,history", *lines]) + "\n")
    Path("data.toml").write_text(
        'null = ["", "NA"]\nlabel = { column = "label" }\n' + "".join(
            "[[categorical]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in group.items())
            for group in schema["categorical"]
        )
    )  # fmt: skip
    datasets = [open_dataset("csv:data.csv", DataOptions(schema_path=Path("data.toml")))]
    shutil.rmtree("out.prepared", ignore_errors=True)
    prepare("csv:data.csv", DataOptions(schema_path=Path("data.toml")), Path("out.prepared"))
    datasets.append(open_dataset("prepared:out.prepared", DataOptions()))
    if pyarrow is not None:
        whole = {"label": [n % 2 for n in range(len(bags))], "item": items}
        lists = pyarrow.array(bags, pyarrow.list_(pyarrow.string()))
        datasets.append(from_frame(pyarrow.table({**whole, "history": lists}), schema))
    for dataset in datasets:
        batches = list(dataset.train(size))
        assert [one for batch in batches for one in histories(batch)] == expected
    assert datasets[0].truncated() == {"history": sum(len(one) > most for one in kept)}
    facts = FeatureFacts(
        "history",
        0,
        "hash",
        {"string": "text"}.get(kind, kind),
        50,
        True,
        "|",
        None,
        50,
        ["", "NA"],
        None,
        most,
        padding,
    )
    served = IdMap(facts, Path())
    assert [served.rows(one) for one in bags] == [served.rows("|".join(one)) for one in bags] == expected
    if kind == "int":
        assert [served.rows([None if token == "NA" else int(token) for token in one]) for one in bags] == expected


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("padding = 0", r"column 'history': expected a list with padding, got single values. Set inner_separator"),
        ('inner_separator = "|"\npadding = "none"', "expected padding to be a value of kind = 'int', got 'none'"),
        ("sequence = true", r"column 'history': expected a list with sequence = true, got single values.* inner_sep"),
        ('inner_separator = "|"\nmax_length = 3', "expected sequence = true with max_length, got max_length = 3 alone"),
        ('inner_separator = "|"\nsequence = true\nmax_length = 0', "max_length: .*greater than or equal to 1, got 0"),
        ('inner_separator = "|"\nsequence = true\nmissing = "reject"', "expected missing = 'row' for a bag"),
        (
            SEQUENCE + '\n[[categorical]]\ncolumns = ["label2"]\nkind = "int"\nnum_embeddings = 10\ntable = "item"\n'
            'inner_separator = "|"',
            "table 'item': expected columns of one value next to the sequence 'history', got the bag 'label2'",
        ),
    ],
)
def test_mistakes_in_schemas(more: str, message: str) -> None:
    options = write_csv(more)
    if "label2" in more:
        text = Path("data.csv").read_text().splitlines()
        Path("data.csv").write_text("\n".join(line + (",1" if n else ",label2") for n, line in enumerate(text)) + "\n")
    with pytest.raises(ConfigError, match=message):
        open_dataset("csv:data.csv", options)


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=8), st.integers(1, 7))
def test_latest_keys_of_each_row(rows: list[list[int]], most: int) -> None:
    keys = np.array([key for row in rows for key in row], np.int64)
    kept, ends, count = keep_latest(keys, np.cumsum([len(row) for row in rows], dtype=np.int64), most)
    assert [part.tolist() for part in np.split(kept, ends)[: len(rows)]] == [row[-most:] for row in rows]
    assert count == sum(len(row) > most for row in rows) and (not rows or ends[-1] == len(kept))
