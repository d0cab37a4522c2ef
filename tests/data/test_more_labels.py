"""Several labels: from columns of text, of Parquet and of prepared data, and in the built-in stream."""

from pathlib import Path

import numpy as np
import pytest

from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import by_table, shape_of
from adaptive.data.open import open_dataset
from adaptive.data.prepared.prepared_writer import prepare
from adaptive.data.synthetic.synthetic_stream import Synthetic, SyntheticConfig
from adaptive.data.text.schema import load_schema
from adaptive.errors import ConfigError, InputError

SCHEMA = """
label = { column = "click" }
more_labels = [{ column = "buy" }, { column = "stars", threshold = 4 }]
dense = [{ columns = ["price"], transform = "log" }]
categorical = [{ columns = ["user"], kind = "int", num_embeddings = 9 }]
"""
HEADER = "buy,click,price,stars,user"
ROWS = ["1,1,0,5,3", "0,1,1,3.5,4", "0,0,3,4,5", "1,0,,1,6"]


def options(folder: Path, schema: str = SCHEMA, **more: object) -> DataOptions:
    (folder / "schema.toml").write_text(schema)
    return DataOptions.model_validate({"schema_path": folder / "schema.toml", **more})


def written(folder: Path, rows: list[str] = ROWS) -> str:
    (folder / "data.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    return f"csv:{folder / 'data.csv'}"


@pytest.mark.parametrize("kind", ["csv", "parquet", "prepared", "prepared, in blocks", "shuffled"])
def test_labels_belong_to_their_samples(tmp_path: Path, kind: str) -> None:
    spec, given = written(tmp_path), options(tmp_path)
    if kind == "parquet":
        pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
        csv = pytest.importorskip("pyarrow.csv", reason="needs pyarrow")
        pq.write_table(csv.read_csv(tmp_path / "data.csv"), tmp_path / "data.parquet")
        spec = f"parquet:{tmp_path / 'data.parquet'}"
    if kind.startswith("prepared"):
        prepare(spec, given, tmp_path / "prepared")
        spec, given = f"prepared:{tmp_path / 'prepared'}", DataOptions()
    if kind == "shuffled":
        given = options(tmp_path, shuffle_buffer=4, seed=3)
    data = by_table(open_dataset(spec, given))
    assert data.labels == ("click", "buy", "stars") == shape_of(data).labels and data.num_dense == 1
    batches = list(data.train(3 if kind.endswith("blocks") else 4))
    actual = {
        int(user): (float(click), float(buy), float(stars), round(float(price), 4))
        for b in batches
        for user, click, buy, stars, price in zip(
            b.ids, b.labels, b.extras["buy"], b.extras["stars"], b.dense[:, 0], strict=True
        )
    }
    assert actual == {3: (1, 1, 1, 0), 4: (1, 0, 0, 0.6931), 5: (0, 0, 1, 1.3863), 6: (0, 1, 0, 0)}
    assert all(b.extras["buy"].dtype == np.float32 for b in batches)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2,1,0,5,3", r"data.csv:6: expected 0 or 1 for label 'buy', got 2"),
        (",1,0,5,3", r"data.csv:6: expected 0 or 1 for label 'buy', got an empty field"),
        ("1,1,0,,3", r"data.csv:6: expected a number for label 'stars', got an empty field"),
    ],
)
def test_bad_labels_are_reported_by_line(tmp_path: Path, row: str, message: str) -> None:
    data = open_dataset(written(tmp_path, [*ROWS, row]), options(tmp_path))
    with pytest.raises(InputError, match=message):
        list(data.train(2))


def test_files_to_score_need_no_labels(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("price,user\n1,3\n")
    path = str(tmp_path / "data.csv")
    data = open_dataset(f"csv:{path}", options(tmp_path, label_optional=True, eval_data=path))
    (batch,) = data.evaluation(4)
    assert not batch.extras and np.isnan(batch.labels).all() and batch.dense.shape == (1, 1)


def test_wrong_schemas_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected \[label\], the first label"):
        load_schema(options(tmp_path, SCHEMA.replace('label = { column = "click" }', "")).schema_path)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"more_labels.1.column: expected an unused column, got 'buy'"):
        open_dataset(
            written(tmp_path), options(tmp_path, SCHEMA.replace("stars", "buy").replace(", threshold = 4", ""))
        )
    with pytest.raises(ConfigError, match=r"more_labels.0.column: expected a column of the file, got 'bye'"):
        open_dataset(written(tmp_path), options(tmp_path, SCHEMA.replace("buy", "bye")))


def test_the_built_in_stream_has_some() -> None:
    small = {"num_train": 4000, "rows": 100_000}
    several, plain = Synthetic(SyntheticConfig(labels=4, **small)), Synthetic(SyntheticConfig(**small))
    (batch,), (alone,) = several.train(4000), plain.train(4000)
    assert several.labels == ("label", "label_2", "label_3", "label_4") and plain.labels == ()
    assert np.array_equal(batch.labels, alone.labels) and np.array_equal(batch.ids, alone.ids) and not alone.extras
    values = np.stack([batch.labels, *batch.extras.values()])
    assert (np.abs(values.mean(axis=1) - 0.22) < 0.1).all()
    assert (np.abs(np.corrcoef(values) - np.eye(4)) < 0.5).all()
    first, second = several.train(2000)
    assert np.array_equal(np.concatenate([first.extras["label_3"], second.extras["label_3"]]), batch.extras["label_3"])
