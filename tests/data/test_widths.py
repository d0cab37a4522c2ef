"""Widths of tables in the schema: through every way to read, to the model, the export; the model's own settings win."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.served import bags_of
from support.toy import toy_config

from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import by_table, shape_of
from adaptive.data.open import open_dataset
from adaptive.data.prepared_writer import prepare
from adaptive.data.text.schema import load_schema
from adaptive.errors import ConfigError
from adaptive.models.factory import model_config
from adaptive.serving import export_run, scoring
from adaptive.training.components import inputs_of
from adaptive.training.evaluation import predict
from adaptive.training.runs import train_run
from adaptive.training.runs.loading import data_of, load_run

SCHEMA = """
label = { column = "click" }

[[categorical]]
columns = ["a", "c"]
hash_rows = 40
width = 3
table = "shared"

[[categorical]]
columns = ["b"]
hash_rows = 40
"""
ROWS = ["click,a,b,c", *(f"{i % 2},{i % 7},{i % 5},{i % 3}" for i in range(64))]


def options(folder: Path, schema: str = SCHEMA) -> DataOptions:
    (folder / "schema.toml").write_text(schema)
    (folder / "data.csv").write_text("\n".join(ROWS) + "\n")
    return DataOptions(schema_path=folder / "schema.toml")


def test_widths_reach_the_tables_and_the_model_wins(tmp_path: Path) -> None:
    given = options(tmp_path)
    data = open_dataset(f"csv:{tmp_path / 'data.csv'}", given)
    prepare(f"csv:{tmp_path / 'data.csv'}", given, tmp_path / "prepared")
    for actual in (data, by_table(data), open_dataset(f"prepared:{tmp_path / 'prepared'}", DataOptions())):
        assert shape_of(actual).widths == {"shared": 3}
        assert model_config("dcn", {"embedding_dim": 8}, inputs_of(actual)).widths == {"shared": 3}
        assert model_config("dcn", {"widths": {"shared": 5}}, inputs_of(actual)).widths == {"shared": 5}


def test_rows_of_a_table_are_stored_as_its_schema_says(tmp_path: Path) -> None:
    """Through every way to read; the model's settings win; the other tables keep theirs, and bits their placement."""
    given = options(tmp_path, SCHEMA.replace("width = 3", 'dtype = "bfloat16"'))
    spec = f"csv:{tmp_path / 'data.csv'}"
    data = open_dataset(spec, given)
    prepare(spec, given, tmp_path / "prepared")
    for actual in (data, by_table(data), open_dataset(f"prepared:{tmp_path / 'prepared'}", DataOptions())):
        assert shape_of(actual).row_dtypes == {"shared": "bfloat16"}
        assert model_config("dcn", {"row_dtypes": {"b": "bfloat16"}}, inputs_of(actual)).row_dtypes == {
            "shared": "bfloat16",
            "b": "bfloat16",
        }
    assert data.fingerprint() == open_dataset(spec, options(tmp_path)).fingerprint()
    options(tmp_path, SCHEMA.replace("width = 3", 'dtype = "bfloat16"'))
    config = {"data": spec, "data_options": {"schema_path": str(given.schema_path)}, "model": "dcn"}
    model = {"embedding_dim": 4, "deep_mlp": [6]}
    rows = []
    for number, size in enumerate(("100%", "60%", "100%")):
        changed = {"row_dtypes": {"shared": "float32"}} if number == 2 else {}
        out = tmp_path / f"run{number}"
        tier = {"device_rows": size}
        train_run(toy_config(**config, out=str(out), model_options={**model, **changed}, tier=tier, batch_size=8))
        with load_run(out) as run:
            dtypes = {table.name: table.dtype for table in run.components.tables}
            assert dtypes == {"shared": "float32" if changed else "bfloat16", "b": "float32"}
            rows.append({name: run.embeddings.rows.table_weights(name) for name in dtypes})
    for name in ("shared", "b"):
        np.testing.assert_array_equal(rows[0][name], rows[1][name])
        assert not np.array_equal(rows[0][name], rows[2][name])
    export_run(tmp_path / "run0", tmp_path / "served")
    assert scoring.load(tmp_path / "served").score([{"a": 1, "b": 2, "c": 3}])[0] > 0
    groups = 'columns = ["a"]\nhash_rows = 40\ntable = "shared"\ndtype = "bfloat16"\n[[categorical]]\ncolumns = ["c"]'
    text = SCHEMA.replace('columns = ["a", "c"]', groups).replace("width = 3", 'dtype = "float32"')
    with pytest.raises(
        ConfigError, match="table 'shared': expected one dtype, got bfloat16 for column 'a' and float32"
    ):
        open_dataset(spec, options(tmp_path, text))
    with pytest.raises(ConfigError, match="row_dtypes: expected tables among shared, b, got d"):
        model_config("dcn", {"row_dtypes": {"d": "bfloat16"}}, inputs_of(data))


def test_the_data_are_the_same_whatever_the_widths(tmp_path: Path) -> None:
    given = options(tmp_path)
    with_them = open_dataset(f"csv:{tmp_path / 'data.csv'}", given).fingerprint()
    without = open_dataset(f"csv:{tmp_path / 'data.csv'}", options(tmp_path, SCHEMA.replace("width = 3\n", "")))
    assert with_them == without.fingerprint()


def test_a_run_in_bf16_is_loaded_and_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options(tmp_path)
    train_run(
        toy_config(
            out="run",
            data="csv:data.csv",
            data_options={"schema_path": "schema.toml"},
            model="dcn",
            model_options={"embedding_dim": 4, "deep_mlp": [8], "bf16": True},
        )
    )
    export_run("run", "served")
    with load_run("run") as run:
        assert {table.name: table.embedding_dim for table in run.components.tables} == {"shared": 3, "b": 4}
        model, (batch,) = scoring.load(Path("served")), list(data_of(run, "csv:data.csv").evaluation(64))
        rows = [(torch.from_numpy(ids), torch.from_numpy(starts)) for ids, starts in bags_of(batch)]
        with torch.no_grad():
            actual = model(torch.from_numpy(batch.dense), rows).numpy()
        expected = np.concatenate(list(predict(run.embeddings, run.model, [batch])))
    np.testing.assert_allclose(actual, expected, atol=1e-6, rtol=1e-6)


def test_wrong_widths_are_reported_with_file_and_column(tmp_path: Path) -> None:
    two = SCHEMA + 'width = 4\ntable = "shared"\n'
    given = options(tmp_path, two)
    with pytest.raises(
        ConfigError,
        match=r"schema .*schema\.toml: table 'shared': expected one width, got 3 for column 'a' and 4 for column 'b'",
    ):
        open_dataset(f"csv:{tmp_path / 'data.csv'}", given)
    options(tmp_path, SCHEMA.replace("width = 3", "width = 0"))
    with pytest.raises(ConfigError, match=r"schema\.toml:\n  categorical\.0\.width: .*got 0"):
        load_schema(tmp_path / "schema.toml")
