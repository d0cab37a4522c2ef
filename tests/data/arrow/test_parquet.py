"""Parquet files: the rows of the same text file, whatever types hold them; places of bad values; files and folders."""

import json
import os
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders import assert_same_batches, csv_data
from support.parquet_rows import opened, rows_of, table

from adaptive.batch import concatenate
from adaptive.data.arrow.frames import from_frame
from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from adaptive.data.rows.split import read_part
from adaptive.errors import ConfigError, InputError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'adaptive-train[parquet]'")
pq = pytest.importorskip("pyarrow.parquet")

SCHEMA = """
[label]
column = "action"
positive = ["buy", "7"]

[[dense]]
columns = ["price"]

[[dense]]
columns = ["views"]
kind = "int"
transform = "log"

[[categorical]]
columns = ["user"]
kind = "int"
num_embeddings = 10

[[categorical]]
columns = ["liked"]
kind = "int"
inner_separator = "|"
num_embeddings = 5
table = "item"

[[categorical]]
columns = ["words"]
inner_separator = "|"
hash_rows = 100

[[categorical]]
columns = ["city"]
hash_rows = 50

[[categorical]]
columns = ["device"]
kind = "hex"
vocabulary = true

[time]
column = "day"
kind = "iso"
"""
TEXT = """junk,action,liked,user,views,price,words,city,device,day
x,buy,1|2,9,7,-1.5,red|blue,Ulm,ff,2024-01-01
x,view,,0,,0.25,,Ulm,0a,2024-01-02 12:30:00
x,7,0|3,,3,2,é,,,2024-01-02
x,view,4,1,1,,blue,Bonn,ff,2024-03-01
"""


def columns() -> dict[str, object]:
    """The rows of TEXT."""
    return {
        "junk": ["x"] * 4,
        "action": ["buy", "view", "7", "view"],
        "liked": [[1, 2], None, [0, 3], [4]],
        "user": [9, 0, None, 1],
        "views": [7, None, 3, 1],
        "price": [-1.5, 0.25, 2.0, None],
        "words": [["red", "blue"], [], ["é"], ["blue", ""]],
        "city": ["Ulm", "Ulm", "", "Bonn"],
        "device": ["ff", "0a", None, "ff"],
        "day": [datetime(2024, 1, 1), datetime(2024, 1, 2, 12, 30), datetime(2024, 1, 2), datetime(2024, 3, 1)],
    }


def of_parquet(folder: Path, table: object, schema: str = SCHEMA, *, written: dict | None = None, **options: object):
    """`written` is how pyarrow writes the table; three rows a row group by default."""
    (folder / "schema.toml").write_text(schema)
    pq.write_table(table, folder / "data.parquet", **{"row_group_size": 3, **(written or {})})
    return open_dataset(
        f"parquet:{folder / 'data.parquet'}", DataOptions(schema_path=folder / "schema.toml", **options)
    )


def of_text(folder: Path, text: str, schema: str = SCHEMA, **options: object):
    return csv_data(folder, schema, text, **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle_buffer": 3, "seed": 1},
        {"holdout": 0.3},
        {"time_split": "2024-01-02 01:00:00"},
        {"out_of_range": "oov"},
    ],
    ids=str,
)
def test_the_same_rows_as_text_and_as_parquet(tmp_path: Path, options: dict[str, object]) -> None:
    text, parquet = of_text(tmp_path, TEXT, **options), of_parquet(tmp_path, pa.table(columns()), **options)
    assert parquet.features == text.features and parquet.tables == text.tables
    assert parquet.num_train_samples() == text.num_train_samples()
    for epoch in range(2):
        assert_same_batches(parquet.train(2, epoch=epoch), text.train(2, epoch=epoch))
    assert_same_batches(parquet.evaluation(2), text.evaluation(2))
    assert_same_batches(parquet.train(3), text.train(3))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("user", "int8"), ("user", "uint64"), ("user", "double"), ("user", "string"), ("user", "dictionary"),
        ("action", "large_string"), ("action", "dictionary"), ("action", "binary"),
        ("views", "float"), ("views", "uint16"), ("views", "string"),
        ("price", "float"), ("price", "string"),
        ("price", "texts in a dictionary"), ("user", "texts in a dictionary"), ("price", "decimal128(9, 4)"),
        ("liked", "large_list"), ("liked", "text"), ("words", "list of dictionary"), ("words", "text"),
        ("city", "string_view"), ("city", "dictionary"), ("device", "int32"), ("device", "int64"),
        ("day", "timestamp[ns]"), ("day", "timestamp[ms, tz=UTC]"), ("day", "string"),
    ],
)  # fmt: skip
def test_types_that_hold_the_same_values(tmp_path: Path, name: str, kind: str) -> None:
    values, plain = columns()[name], pa.table(columns())
    if kind == "text":
        array = pa.array(["|".join(map(str, bag)) if bag is not None else None for bag in values])
    elif kind == "dictionary":
        array = pa.array(values).dictionary_encode()
    elif kind == "texts in a dictionary":
        array = pa.array([None if one is None else str(one) for one in values]).dictionary_encode()
    elif kind == "list of dictionary":
        array = pa.array(values, pa.list_(pa.dictionary(pa.int32(), pa.string())))
    elif kind == "large_list":
        array = pa.array(values, pa.large_list(pa.int16()))
    elif name == "device":
        array = pa.array([None if one is None else int(one, 16) for one in values], kind)
    elif kind.startswith("decimal"):
        array = pa.array(values).cast(pa.decimal128(9, 4))
    elif kind.startswith("timestamp"):
        array = pa.array(values).cast(pa.timestamp("ns") if kind.endswith("[ns]") else pa.timestamp("ms", "UTC"))
    else:
        array = pa.array([None if one is None else str(one) for one in values] if "string" in kind else values)
        if kind == "string_view":
            array = pa.array(array.to_pylist(), pa.string_view())
        array = array.cast(kind) if kind not in ("string", "string_view") else array
    table = plain.set_column(plain.schema.get_field_index(name), name, array)
    assert_same_batches(of_parquet(tmp_path, table).train(2), of_text(tmp_path, TEXT).train(2))


@pytest.mark.parametrize("null", [["", "NA", "NaN", "\\N"], ["", "n/a"]], ids=["default of text", "other"])
def test_texts_that_the_schema_names_are_missing_in_every_format(tmp_path: Path, null: list[str]) -> None:
    first, second, third = null[1:] if len(null) > 2 else null[1:] * 3
    schema = SCHEMA.replace("num_embeddings = 10", 'num_embeddings = 10\nmissing = "row"')
    text = TEXT.replace("x,view,,0,,0.25,,Ulm", f"x,view,{first},0,{second},0.25,{third},{third}")
    text = text.replace("x,7,0|3,,3,2,", f"x,7,0|{second}|3,{third},3,{first},")
    text = text.replace("1,1,,blue", f"1,1,{first},blue")
    words = {
        "liked": ["1|2", first, f"0|{second}|3", "4"], "user": ["9", "0", third, "1"], "views": ["7", second, "3", "1"],
        "price": ["-1.5", "0.25", first, first], "words": [["red", "blue"], [third], ["é"], ["blue", ""]],
        "city": ["Ulm", third, "", "Bonn"], "device": ["ff", "0a", third, "ff"],
    }  # fmt: skip
    schema = f"null = {json.dumps(null)}\n{schema}"
    wanted = list(of_text(tmp_path, TEXT.replace("0.25,,Ulm", "0.25,,").replace("3,2,é", "3,,é"), schema).train(2))
    as_text, table = of_text(tmp_path, text, schema), pa.table(columns() | words)
    assert_same_batches(as_text.train(2), wanted)
    assert_same_batches(of_parquet(tmp_path, table, schema).train(2), wanted)
    assert_same_batches(from_frame(table, tmp_path / "schema.toml").train(2), wanted)
    assert not as_text.rejects()


def test_formats_with_nulls_have_na_as_a_value(tmp_path: Path) -> None:
    """In text it is missing, unless the schema says otherwise. A column of numbers as texts refuses it."""
    words = ["NA", "NaN", "\\N", "null", ""]
    frame = pa.table({"a": [*words, None], "b": [[word, "x"] for word in words] + [[None, "x"]]})
    text = "a,b\n" + "".join(f"{word},{word}|x\n" for word in [*words, ""])
    schema = '[[categorical]]\ncolumns = ["a"]\nhash_rows = 1000\n[[categorical]]\ncolumns = ["b"]\nhash_rows = 1000'
    bags = schema + '\ninner_separator = "|"'
    values = _values(of_text(tmp_path, text, f'null = [""]\n{bags}'))
    assert _values(of_parquet(tmp_path, frame, schema)) == values
    assert _values(from_frame(frame, tmp_path / "schema.toml")) == values
    assert len(_values(of_text(tmp_path, text, bags))[0]) == 1 < len(values[0])
    with pytest.raises(InputError, match=r"expected a number for a, got 'NA'(.|\n)*null = \[TEXTS\]"):
        _values(of_parquet(tmp_path, frame, schema.replace('["a"]', '["a"]\nkind = "int"')))


def _values(data) -> tuple[list[int], list[int], list[int]]:
    """The keys of the column, those of the bags, and their ends."""
    (block,) = read_part(data._source, data._train, 100)
    columns, rows = block.columns, block.num_rows
    keys, ends = columns.keys[0, :rows][columns.present[0, :rows]], columns.bag_ends[: rows + 1]
    return keys.tolist(), columns.bag_keys[: ends[-1]].tolist(), ends.tolist()


@pytest.mark.parametrize("kind", ["int", "string"])
def test_integers_of_64_bits_are_the_same_ids_as_in_text(tmp_path: Path, kind: str) -> None:
    """Signed and unsigned; under kind 'int' an unsigned id is taken by its bits."""
    schema = f'[[categorical]]\ncolumns = ["a"]\nkind = "{kind}"\nhash_rows = 1000'
    signed = [-(2**63), -1, 2**63 - 1, 0, 7, -7, 10, 99, 100]
    for numbers, type_ in ((signed, pa.int64()), ([2**64 - 3, 2**63, 10**19, 1], pa.uint64())):
        text = of_text(tmp_path, "a\n" + "".join(f"{one}\n" for one in numbers), schema)
        parquet = of_parquet(tmp_path, pa.table({"a": pa.array(numbers, type_)}), schema)
        actual = _ids(parquet)
        assert actual == _ids(text)
        if kind == "int":
            assert actual == np.array(numbers, type_.to_pandas_dtype()).astype(np.int64).tolist()


def _ids(data) -> list[int]:
    blocks = read_part(data._source, data._train, 100)
    return [key for block in blocks for key in block.columns.keys[0, : block.num_rows].tolist()]


BAD = {
    "label": {"action": [None, "buy"]},
    "number in price": {"price": [1e300, 1.0]},
    "number in views": {"views": [1.5, 2.0]},
    "number in user": {"user": [0.5, 1.0]},
    "float in user": {"user": [2.0**53, 1.0]},
    "number in liked": {"liked": [["1", "x"], ["2"]]},
    "utf8 in city": {"city": [b"\xff", b"Ulm"]},
    "nul in city": {"city": ["a\0b", "Ulm"]},
    "hex in device": {"device": ["xyz", "f"]},
    "time in day": {"day": ["yesterday", "2024-01-01"]},
    "time of 1960": {"day": [datetime(1960, 1, 1), datetime(2024, 1, 1)]},
}


BAD_WORDS = {
    "label": "a valid label",
    "number": "a number",
    "hex": "hex digits",
    "float": "whole numbers that floats can tell apart (below 2^53, in float32 2^24, in float16 2^11)",
    "time": "a time",
    "utf8": "UTF-8 text",
    "nul": "text without NUL bytes",
}


@pytest.mark.parametrize("case", BAD)
def test_bad_values_are_reported_by_row_group_and_row(tmp_path: Path, case: str) -> None:
    good = pa.table(columns())
    rows = {name: good[name].to_pylist()[:2] for name in good.column_names} | BAD[case]
    table = pa.table({name: rows[name] * 2 for name in rows})
    cause, name = case.split()[0], next(iter(BAD[case]))
    with pytest.raises(InputError, match="2 of 4 rows read so far are bad") as error:
        list(of_parquet(tmp_path, table, written={"row_group_size": 4}).train(2))
    assert f"data.parquet[row group 0]:1: expected {BAD_WORDS[cause]} for {name}, got '" in str(error.value)
    assert "header" not in str(error.value)
    many = pa.table({name: rows[name] * 3 for name in rows})
    options = {"max_bad_fraction": 1.0}
    data = of_parquet(tmp_path, many, **options)
    assert concatenate(list(data.train(2))).num_samples == 3
    assert data.rejects() == {cause: 3}
    list(data.train(2))
    assert data.rejects() == {cause: 3}


def test_an_id_out_of_range_is_reported_with_its_place(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2, 3, 9], "y": [0, 1, 0, 1]})
    schema = '[label]\ncolumn = "y"\n[[categorical]]\ncolumns = ["a"]\nkind = "int"\nnum_embeddings = 9'
    with pytest.raises(InputError, match=r"data.parquet\[row group 1\]:1: expected an id from 0 to 8 for a, got 9"):
        list(of_parquet(tmp_path, table, schema).train(2))


SIMPLE = '[label]\ncolumn = "y"\n[[categorical]]\ncolumns = ["a"]\nkind = "int"\nhash_rows = 100'


def test_folders_patterns_and_lists_of_files(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text(SIMPLE)
    options = DataOptions(schema_path=tmp_path / "schema.toml")
    for number, name in enumerate(["b/2.parquet", "a/1.parquet", "_temporary/3.parquet", ".hidden.parquet"]):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"a": [number], "y": [1.0]}), tmp_path / "set" / name)
    (tmp_path / "set/_SUCCESS").touch()

    def keys(spec: str) -> list[int]:
        return _ids(open_dataset(f"parquet:{spec}", options))

    root = tmp_path / "set"
    assert keys(f"{root}") == [1, 0]
    assert keys(f"{root}/?/*.parquet") == [1, 0]
    assert keys(f"{root}/b/2.parquet,{root}/a") == [0, 1]
    with pytest.raises(InputError, match=r"expected a pattern that matches files"):
        keys(f"{root}/x*")
    with pytest.raises(InputError, match="expected a file, got an error"):
        keys(f"{root}/x.parquet")
    (tmp_path / "other" / "_dt=1").mkdir(parents=True)
    with pytest.raises(InputError, match=r"other: expected files with the ending.* begin with _ or \. are left out"):
        keys(f"{tmp_path}/other")


def test_files_may_differ_in_types_and_order_of_columns(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text(SIMPLE)
    options = DataOptions(schema_path=tmp_path / "schema.toml")
    pq.write_table(pa.table({"a": [5], "y": [1.0]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"y": [True], "z": [0], "a": ["6"]}), tmp_path / "2.parquet")
    assert _ids(open_dataset(f"parquet:{tmp_path}/1.parquet,{tmp_path}/2.parquet", options)) == [5, 6]
    pq.write_table(pa.table({"y": [True]}), tmp_path / "3.parquet")
    with pytest.raises(InputError, match=r"3.parquet: expected the columns of the first .*\n  column 'a': expected it"):
        open_dataset(f"parquet:{tmp_path}/1.parquet,{tmp_path}/3.parquet", options)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": [1.5], "y": [1]}, "Set kind = 'int' to read whole numbers, or store the column as texts"),
        ({"a": [[1]], "y": [[1]]}, r"column 'y': expected single values, got lists \(list<element: int64>\)"),
        ({"a": [date(2024, 1, 1)], "y": [1]}, r"column 'a': expected categories of kind 'int', got date32\[day\]"),
        ({"a": [{"b": 1}], "y": [1]}, "expected categories of kind 'int', got struct<b: int64>"),
        ({"y": [1]}, "expected a column of the file, got 'a'"),
    ],
)
def test_types_that_cannot_be_read_are_refused_when_it_is_opened(tmp_path: Path, values: object, message: str) -> None:
    texts = values.get("a") == [1.5]
    with pytest.raises(ConfigError, match=message):
        of_parquet(tmp_path, pa.table(values), SIMPLE.replace('kind = "int"\n', "") if texts else SIMPLE)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pa.table({"a": rng.integers(0, 2**60, 5000), "y": rng.integers(0, 2, 5000)})
    data = of_parquet(tmp_path, table, SIMPLE, written={"row_group_size": 5000})
    path = tmp_path / "data.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * 400 + whole[404:])
    os.utime(path, ns=(0, data._source.files[0].modified))
    with pytest.raises(InputError, match=r"data.parquet\[row group 0\]: expected a whole file, got a damaged"):
        list(data.train(64))
    path.write_bytes(whole + b"more")
    with pytest.raises(InputError, match="Do not change data files"):
        list(data.train(64))
    path.write_bytes(whole[:-100])
    with pytest.raises(InputError, match="expected a Parquet file"):
        open_dataset(f"parquet:{path}", DataOptions(schema_path=tmp_path / "schema.toml"))
    path.unlink()
    with pytest.raises(InputError, match="expected a Parquet file"):
        list(data.train(64))


@given(
    rows=st.integers(1, 400),
    seed=st.integers(0, 99),
    nulls=st.sampled_from([0.0, 0.03, 0.5, 1.0]),
    distinct=st.sampled_from([1, 2, 30, 300]),
    written=st.fixed_dictionaries(
        {
            "row_group_size": st.sampled_from([37, 1000]),
            "data_page_size": st.sampled_from([40, 1 << 20]),
            "write_batch_size": st.sampled_from([7, 1024]),
            "compression": st.sampled_from(["none", "snappy", "zstd", "gzip", "lz4", "brotli"]),
            "data_page_version": st.sampled_from(["1.0", "2.0"]),
            "use_dictionary": st.sampled_from([True, False, ["word", "user"]]),
            "dictionary_pagesize_limit": st.sampled_from([50, 1 << 20]),
        }
    ),
)
@settings(max_examples=20, deadline=None)
def test_a_file_written_in_any_way_has_the_rows_of_its_table(
    tmp_path_factory: pytest.TempPathFactory, rows: int, seed: int, nulls: float, distinct: int, written: dict
) -> None:
    folder = tmp_path_factory.mktemp("pages")
    drawn = table(rows, seed, nulls, distinct)
    pq.write_table(drawn, folder / "data.parquet", **written)
    data = opened(folder)
    wanted = rows_of(from_frame(drawn, folder / "schema.toml"))
    group = written["row_group_size"]
    assert rows_of(data, 64) == [(number % group + 1, *row[1:]) for number, row in enumerate(wanted)]


def test_an_unsupported_encoding_is_not_reported_as_damage(tmp_path: Path) -> None:
    table = pa.table(columns() | {"city": pa.array(columns()["city"]).dictionary_encode()})
    written = {"use_dictionary": False, "column_encoding": {"city": "DELTA_BYTE_ARRAY"}}
    with pytest.raises(InputError, match=r"row group 0\]: expected encodings that pyarrow .* reads, got one"):
        list(of_parquet(tmp_path, table, written=written).train(2))


@pytest.mark.parametrize(("kind", "bits"), [(pa.float64(), 53), (pa.float32(), 24), (pa.float16(), 11)], ids=str)
def test_floats_that_merge_ids_are_refused(tmp_path: Path, kind: object, bits: int) -> None:
    def table(value: float) -> object:
        return pa.table({"a": pa.array([value, None], pa.float64()).cast(kind), "y": [0, 1]})

    assert _ids(of_parquet(tmp_path, table(2.0**bits - 1), SIMPLE)) == [2**bits - 1, 0]
    with pytest.raises(
        InputError, match=r"row group 0\]:1: expected whole numbers that floats can tell apart .* for a"
    ):
        list(of_parquet(tmp_path, table(2.0**bits), SIMPLE).train(2))


def test_whole_decimals_are_ids(tmp_path: Path) -> None:
    """They are the ids of their texts."""
    schema = SIMPLE.replace('kind = "int"\n', "")
    numbers = [Decimal(12), Decimal(-5), Decimal(10**18)]
    decimals = pa.table({"a": pa.array(numbers, pa.decimal128(38, 0)), "y": [0, 1, 0]})
    assert _ids(of_parquet(tmp_path, decimals, SIMPLE)) == [12, -5, 10**18]
    digits = pa.table({"a": ["12", "-5", str(10**18)], "y": [0, 1, 0]})
    assert _ids(of_parquet(tmp_path, decimals, schema)) == _ids(of_parquet(tmp_path, digits, schema))
    with pytest.raises(ConfigError, match=r"column 'a': expected categories of kind 'int', got decimal128\(38, 2\)"):
        of_parquet(tmp_path, pa.table({"a": pa.array([Decimal(1)], pa.decimal128(38, 2)), "y": [0]}), SIMPLE)
