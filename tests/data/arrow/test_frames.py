"""Frames of three libraries: the batches of a Parquet file with the same columns; messages name the row."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.builders import assert_same_batches
from test_parquet import TEXT, columns, of_text

from adaptive.data.arrow.frames import from_frame
from adaptive.data.data_options import DataOptions
from adaptive.data.text.schema import load_schema
from adaptive.errors import ConfigError, InputError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'adaptive-train[parquet]'")


def pandas_frame(rows: dict[str, object]) -> object:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    return pandas.DataFrame(rows).astype({"city": "category"})


def polars_frame(rows: dict[str, object]) -> object:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    return polars.DataFrame(rows).with_columns(polars.col("city").cast(polars.Categorical))


FRAMES = {
    "arrow": pa.table,
    "batch": pa.RecordBatch.from_pydict,
    "slice": lambda rows: pa.concat_tables([pa.table(rows)] * 2).slice(4),
    "pandas": pandas_frame,
    "polars": polars_frame,
}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("more", [{}, {"shuffle_buffer": 3}, {"holdout": 0.5}], ids=str)
def test_batches_are_those_of_the_text(tmp_path: Path, kind: str, more: dict[str, object]) -> None:
    text = of_text(tmp_path, TEXT, **more)
    data = from_frame(FRAMES[kind](columns()), tmp_path / "schema.toml", options=DataOptions(**more))
    assert data.features == text.features
    assert_same_batches(data.train(2), text.train(2))
    assert_same_batches(data.evaluation(2), text.evaluation(2))


def test_another_frame_to_evaluate_on(tmp_path: Path) -> None:
    text, table = of_text(tmp_path, TEXT), pa.table(columns())
    data = from_frame(table, tmp_path / "schema.toml", evaluation=table.slice(1))
    assert [batch.num_samples for batch in data.evaluation(2)] == [2, 1]
    assert_same_batches(data.train(2), text.train(2))
    with pytest.raises(InputError, match="evaluation: expected the columns of the first file"):
        from_frame(table, tmp_path / "schema.toml", evaluation=table.drop_columns(["user"]))


def test_the_fingerprint_follows_the_values() -> None:
    schema = {"categorical": [{"columns": ["a"], "kind": "int"}]}

    def fingerprint(*values: int) -> object:
        return from_frame(pa.table({"a": list(values)}), schema).fingerprint()

    assert fingerprint(1, 2) == fingerprint(1, 2) != fingerprint(2, 1)


def test_mistakes_name_the_place() -> None:
    schema = {"label": {"column": "y"}, "categorical": [{"columns": ["a"], "kind": "int"}]}
    data = from_frame(pa.table({"a": [1, 2], "y": [0, 2]}), schema)
    with pytest.raises(InputError, match="frame:2: expected a valid label for y, got '2'"):
        list(data.train(2))
    with pytest.raises(ConfigError, match="got list"):
        from_frame([1], schema)
    with pytest.raises(ConfigError, match="schema:\n  categorical: "):
        from_frame(pa.table({"a": [1]}), {})
    with pytest.raises(InputError, match=r"expected each column once, got a twice"):
        from_frame(pa.Table.from_arrays([pa.array([1])] * 2, ["a", "a"]), schema)
    with pytest.raises(ConfigError, match="Remove eval_data"):
        from_frame(pa.table({"a": [1]}), schema, options=DataOptions(eval_data="x"))


def test_schemas_are_installed_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_schema(Path("avazu")) == load_schema(Path(__file__).parents[3] / "adaptive/data/schemas/avazu.toml")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "avazu").write_text('[[categorical]]\ncolumns = ["own"]')
    assert load_schema(Path("avazu")).categorical[0].columns == ("own",)
    with pytest.raises(ConfigError, match="one of these names: avazu, kdd12-click"):
        load_schema(Path("x"))


LISTS = [["a", "b"], [], None, ["c"], ["a"]]


@pytest.mark.parametrize(
    "make", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view], ids=lambda make: make.__name__
)
@pytest.mark.parametrize("item", [pa.string(), pa.string_view()], ids=str)
def test_every_type_of_list_has_the_same_bags(make: Callable[[object], object], item: object) -> None:
    """pyarrow casts list views to other lists wrongly, so they are never cast."""
    schema = {"label": {"column": "y"}, "categorical": [{"columns": ["t"], "hash_rows": 1000}]}
    expected = from_frame(pa.table({"y": [0] * 5, "t": pa.array(LISTS, pa.large_list(pa.string()))}), schema)
    table = pa.table({"y": [0] * 6, "t": pa.array([["z"], *LISTS], make(item))}).slice(1)
    assert_same_batches(from_frame(table, schema).train(8), expected.train(8))
    (batch,) = expected.train(8)
    assert batch.offsets.tolist() == [0, 2, 2, 2, 3, 4] and len(set(batch.ids.tolist())) == 3


def test_missing_lists_are_empty_bags() -> None:
    """A column of Arrow's type null, and a polars frame with a missing list."""
    polars = pytest.importorskip("polars", reason="polars is not installed")
    schema = {"label": {"column": "y"}, "categorical": [{"columns": ["t"], "inner_separator": "|", "hash_rows": 9}]}
    (batch,) = from_frame(pa.table({"y": [0, 0], "t": pa.nulls(2)}), schema).train(8)
    assert batch.offsets.tolist() == [0, 0, 0]
    (batch,) = from_frame(polars.DataFrame({"y": [0, 0], "t": [["a"], None]}), schema).train(8)
    assert batch.offsets.tolist() == [0, 1, 1]


def test_frames_that_arrow_has_no_type_for_are_refused() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    schema = {"label": {"column": "y"}, "categorical": [{"columns": ["u"], "hash_rows": 9}]}
    mixed, twice = pandas.DataFrame({"y": [0, 1], "u": [1, "a"]}, dtype=object), pandas.DataFrame([[0, 1]] * 2)
    twice.columns = ["u", "u"]
    for frame in (mixed, twice):
        with pytest.raises(InputError, match="frame: expected columns with names of their own and values of one type"):
            from_frame(frame, schema)
