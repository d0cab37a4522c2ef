"""Categories that are 64-bit keys: through every way to read, with their times and rules, to the tables."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders import assert_same_batches, csv_data
from support.text_twin import key, signed

from adaptive.batch import concatenate
from adaptive.config import KeyRules
from adaptive.data.arrow.frames import from_frame
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset, by_table, shape_of
from adaptive.data.kernels import text as kernels
from adaptive.data.open import open_dataset
from adaptive.data.prepared_writer import prepare
from adaptive.data.rows.batcher import MISSING_KEY
from adaptive.data.rows.row_source import key_of
from adaptive.data.text.schema import load_schema
from adaptive.errors import ConfigError, InputError
from adaptive.training.components import build_tables
from adaptive.training.runs.run_record import data_entries, recorded_shape

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'adaptive-train[parquet]'")
pq = pytest.importorskip("pyarrow.parquet")

SCHEMA = """
null = ["", "NA"]
label = { column = "y" }
time = { column = "day", kind = "iso" }

[[categorical]]
columns = ["user"]
kind = "int"
keys = true
capacity = 1000
admit = 3
expire = "14d"
when_full = "error"

[[categorical]]
columns = ["city", "tags"]
keys = true
capacity = 50
table = "word"

[[categorical]]
columns = ["site"]
kind = "hex"
hash_rows = 7
"""
BAG = SCHEMA.replace('columns = ["city", "tags"]', 'columns = ["tags"]\ninner_separator = "|"').replace("50\n", "60\n")
USERS: list[int | None] = [-(2**63), 2**63 - 1, 0, -1, None, 7, 7, 12_345_678_901_234]
CITIES = ["Ulm", "", "Köln", "Ulm", "東京", None, "a b", "NA"]
TAGS = ["x", "y", "x", "Ulm", None, "z", "z", "z"]
DAYS = ["2024-01-01", "2024-01-01 00:00:00.5", *["2024-01-02"] * 5, "2024-02-01"]


def columns(users: Any = USERS) -> dict[str, list[Any]]:
    size = len(USERS)
    labels, sites = [i % 2 for i in range(size)], [f"{i:x}" for i in range(size)]
    return {"y": labels, "user": users, "city": CITIES, "tags": TAGS, "site": sites, "day": DAYS}


def text(folder: Path, schema: str = SCHEMA, values: dict[str, list[Any]] | None = None, **options: Any) -> Dataset:
    values = values or columns()
    lines = [",".join("" if one is None else str(one) for one in row) for row in zip(*values.values(), strict=True)]
    return csv_data(folder, schema, "\n".join([",".join(values), *lines]) + "\n", **options)


def parquet(folder: Path, table: pa.Table, **options: Any) -> Dataset:
    (folder / "schema.toml").write_text(SCHEMA)
    pq.write_table(table, folder / "data.parquet", row_group_size=3)
    return open_dataset(
        f"parquet:{folder / 'data.parquet'}", DataOptions(schema_path=folder / "schema.toml", **options)
    )


def ids_of(dataset: Dataset) -> dict[str, list[int]]:
    batch = concatenate(list(dataset.train(3)))
    spans = {feature.name: batch.feature_span(place) for place, feature in enumerate(dataset.features)}
    return {name: batch.ids[span].tolist() for name, span in spans.items()}


def test_keys_are_taken_as_they_are(tmp_path: Path) -> None:
    dataset = text(tmp_path)
    ids = ids_of(dataset)
    assert ids["user"] == [MISSING_KEY if user is None else user for user in USERS]
    words = [MISSING_KEY if city in ("", "NA", None) else key(city, kernels.KEY_TEXT) for city in CITIES]
    assert ids["city"] == words
    assert ids["tags"][3] == ids["city"][0]  # one table, one key
    assert [feature.num_embeddings for feature in dataset.features] == [1000, 50, 50, 8]


def test_a_missing_id_has_the_key_of_the_empty_text() -> None:
    assert MISSING_KEY == key_of("") == signed(0xCBF29CE484222325)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("", 0xCBF29CE484222325),
        ("a", 0xAF63DC4C8601EC8C),
        ("foobar", 0x85944171F73967E8),
        ("Ulm", 0x62AFC819DBCC71FB),
        ("東京", 0x2F3C04F1FF1B2DAF),
    ],
)
def test_texts_have_published_hashes(word: str, expected: int) -> None:
    """The first three are test vectors of FNV-1a's authors."""
    assert key_of(word) == signed(expected)


def test_every_format_has_the_same_keys_and_times(tmp_path: Path) -> None:
    twin, table = text(tmp_path), pa.table(columns())
    assert concatenate(list(twin.train(3))).extras["timestamp"].tolist() == [
        1704067200.0, 1704067200.5, *[1704153600.0] * 5, 1706745600.0
    ]  # fmt: skip
    spec = f"csv:{tmp_path / 'data.csv'}"
    schema_path = DataOptions(schema_path=tmp_path / "schema.toml")
    prepare(spec, schema_path, tmp_path / "prepared")
    for other in (
        parquet(tmp_path, table),
        from_frame(table, tmp_path / "schema.toml"),
        open_dataset(f"prepared:{tmp_path / 'prepared'}", DataOptions()),
    ):
        assert_same_batches(other.train(3), twin.train(3))
        assert shape_of(other) == shape_of(twin)
    shuffled = text(tmp_path, shuffle_buffer=5, seed=3)
    again = open_dataset(f"prepared:{tmp_path / 'prepared'}", DataOptions(shuffle_buffer=5, seed=3))
    assert_same_batches(again.train(2, epoch=1), shuffled.train(2, epoch=1))


def test_unsigned_keys_are_taken_by_their_bits(tmp_path: Path) -> None:
    unsigned = [2**64 - 3, 2**63, 2**64 - 1, 0, 1, None, 7, 7]
    expected = [-3, -(2**63), -1, 0, 1, MISSING_KEY, 7, 7]
    table = pa.table({**columns(unsigned), "user": pa.array(unsigned, pa.uint64())})
    for dataset in (text(tmp_path, values=columns(unsigned)), parquet(tmp_path, table)):
        assert ids_of(dataset)["user"] == expected


def test_bags_of_keys_skip_what_is_missing(tmp_path: Path) -> None:
    values = {**columns(), "tags": ["x|y", "", "x||NA|y", None, "y", "y", "y", "y"]}
    dataset = text(tmp_path, BAG, values)
    batch = next(iter(dataset.train(8)))
    place = [feature.name for feature in dataset.features].index("tags")
    x, y = key_of("x"), key_of("y")
    assert batch.ids[batch.feature_span(place)].tolist() == [x, y, x, y, y, y, y, y]
    assert np.diff(batch.offsets)[place * 8 : place * 8 + 8].tolist() == [2, 0, 2, 0, 1, 1, 1, 1]
    lists = pa.table({**values, "tags": [["x", "y"], [], ["x", None, "NA", "y"], None, ["y"], ["y"], ["y"], ["y"]]})
    assert_same_batches(from_frame(lists, tmp_path / "schema.toml").train(8), dataset.train(8))


def test_rules_reach_the_tables(tmp_path: Path) -> None:
    dataset = by_table(text(tmp_path))
    assert dict(dataset.key_rules) == {
        "user": KeyRules(admit=3, expire="14d", when_full="error"),
        "word": KeyRules(),
    }
    recorded = recorded_shape(data_entries(dataset), tmp_path)
    assert recorded == shape_of(dataset)
    for source in (dataset, recorded):
        user, word, site = build_tables(source, 4)
        assert (user.keys, user.num_embeddings, user.admit, user.expire, user.when_full) == (
            "int64", 1000, 3, "14d", "error"
        )  # fmt: skip
        assert (word.keys, word.num_embeddings, word.expire) == ("int64", 50, None)
        assert (site.keys, site.num_embeddings) == (None, 8)


def test_rules_do_not_change_the_data(tmp_path: Path) -> None:
    changed = SCHEMA.replace("admit = 3\n", "").replace('expire = "14d"', 'expire = "7d"').replace('"zero"', '"shared"')
    assert text(tmp_path).fingerprint() == text(tmp_path, changed).fingerprint()
    other = SCHEMA.replace('kind = "hex"\nhash_rows = 7', 'kind = "hex"\nkeys = true\ncapacity = 7')
    assert text(tmp_path).fingerprint() != text(tmp_path, other).fingerprint()


def test_times_travel_only_if_keys_expire_by_them(tmp_path: Path) -> None:
    by_batches = SCHEMA.replace('"14d"', "500")
    assert not next(iter(text(tmp_path, by_batches).train(3))).extras
    assert text(tmp_path, by_batches).key_rules["user"].expire == 500


SCHEMA_MISTAKES = {
    "keys = true\ncapacity = 1000\nhash_rows = 5": "expected one of .*, vocabulary and keys, got hash_rows and keys",
    "keys = true": "expected capacity = ROWS with keys = true, the maximum number of keys with a row, got none",
    "capacity = 1000": r"expected keys = true with capacity, got none",
    "keys = false\nadmit = 2": r"expected keys = true with admit, got none",
    "keys = true\ncapacity = 0": "capacity: expected a value greater than or equal to 1, got 0",
    "keys = true\ncapacity = 2147483647": "capacity: expected a value less than or equal to 2147483646",
    "keys = true\ncapacity = 9\nadmit = 0": "admit: expected a value greater than or equal to 1, got 0",
    "keys = true\ncapacity = 9\nexpire = -1": "expire: expected a number of batches above 0 .*, got -1",
    'keys = true\ncapacity = 9\nexpire = "14 days"': "expire: expected a number of batches above 0 .*, got '14 days'",
    'keys = true\ncapacity = 9\nwhen_full = "grow"': "when_full: expected 'evict' or 'error'",
    "keys = true\ncapacity = 9\nmin_count = 2": "expected min_count only with vocabulary = true, got it with keys",
}


@pytest.mark.parametrize("settings", SCHEMA_MISTAKES)
def test_mistakes_in_a_schema_are_named(tmp_path: Path, settings: str) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(f'[[categorical]]\ncolumns = ["user"]\n{settings}\n')
    with pytest.raises(ConfigError, match=SCHEMA_MISTAKES[settings]):
        load_schema(path)


def test_expiry_by_time_needs_times(tmp_path: Path) -> None:
    schema = SCHEMA.replace('time = { column = "day", kind = "iso" }\n', "")
    with pytest.raises(ConfigError, match=r"table 'user': expected data with times for expire = '14d', got none"):
        text(tmp_path, schema, {name: values for name, values in columns().items() if name != "day"})


def test_keys_of_columns_without_a_mapping(tmp_path: Path) -> None:
    """Rules of `data.keys` apply as `data.hash_rows` does, to any source of categories."""
    schema = SCHEMA.replace("keys = true\ncapacity = 50\n", "")
    dataset = text(tmp_path, schema, keys={"capacity": 9, "expire": 40})
    assert ids_of(dataset) == ids_of(text(tmp_path))
    assert dataset.key_rules["word"] == KeyRules(expire=40)
    line = "\t".join(["1", *["3"] * 13, *[f"{key:08x}" for key in range(26)]])
    (tmp_path / "day.txt").write_text(f"{line}\n")
    criteo = open_dataset(f"criteo:{tmp_path / 'day.txt'}", DataOptions(keys={"capacity": 9}))
    assert next(iter(criteo.train(1))).ids.tolist() == list(range(26))
    with pytest.raises(ConfigError, match="table 'C1': expected data with times"):
        open_dataset(f"criteo:{tmp_path / 'day.txt'}", DataOptions(keys={"capacity": 9, "expire": "7d"}))


@pytest.mark.parametrize(
    ("mapping", "rows"),
    [("vocabulary = true\nmin_count = 2", 5), ("vocabulary = false", 10_001), ("keys = false", 10_001)],
)
def test_a_mapping_of_the_schema_wins_over_data_keys(tmp_path: Path, mapping: str, rows: int) -> None:
    """Of the words, Ulm, x, z and missing ones are not rare; so 3 rows and those of unknown and missing ids."""
    schema = SCHEMA.replace('keys = true\ncapacity = 50\ntable = "word"', mapping + '\ntable = "word"')
    options = {"keys": {"capacity": 9}, "hash_rows": 10_000}
    dataset = text(tmp_path, schema, **options)
    assert set(dataset.key_rules) == {"user"}
    sizes = {feature.name: feature.num_embeddings for feature in dataset.features}
    assert sizes == {"user": 1000, "city": rows, "tags": rows, "site": 8}
    ids = ids_of(dataset)
    assert ids == ids_of(text(tmp_path, schema, hash_rows=10_000))


@pytest.mark.parametrize("data", ["prepared:x", "taobao:x", "sequences"])
def test_data_whose_ids_are_rows_refuse_keys(data: str) -> None:
    with pytest.raises(ConfigError, match=r"expected no data\.keys, got a value"):
        open_dataset(data, DataOptions(keys={"capacity": 9}))


def test_features_of_a_table_share_the_rules_of_its_keys(tmp_path: Path) -> None:
    schema = SCHEMA + '[[categorical]]\ncolumns = ["other"]\ntable = "word"\nkeys = true\ncapacity = 50\nadmit = 2\n'
    with pytest.raises(ConfigError, match=r"table 'word': expected one mapping .* same .* and settings of keys"):
        text(tmp_path, schema, {**columns(), "other": TAGS})


def test_keys_that_are_floats_are_refused(tmp_path: Path) -> None:
    """Floats merge ids above 2^53, and pandas makes them of integers with gaps."""
    floats = pa.table({**columns(), "user": pa.array([float(i) for i in range(8)])})
    plain = re.sub(r"keys = true\ncapacity = 1000\n(.*\n){3}", "", SCHEMA, count=1)
    by_option = DataOptions(keys={"capacity": 9})
    for schema, options in ((SCHEMA, DataOptions()), (plain, by_option)):
        (tmp_path / "schema.toml").write_text(schema)
        with pytest.raises(ConfigError, match=r"column 'user': expected integers for keys, got double\. Store it as"):
            from_frame(floats, tmp_path / "schema.toml", options=options)
    (tmp_path / "schema.toml").write_text(plain.replace('kind = "int"\n', 'kind = "int"\nhash_rows = 7\n', 1))
    assert from_frame(floats, tmp_path / "schema.toml", options=by_option).features[0].num_embeddings == 8
    values = columns(["7.0", *USERS[1:]])
    with pytest.raises(InputError, match=r"expected a number for user, got '7\.0'"):
        list(text(tmp_path, values=values).train(8))


def test_keys_of_more_than_64_bits_are_bad(tmp_path: Path) -> None:
    for bad in (2**64, -(2**63) - 1):
        with pytest.raises(InputError, match=f"expected a number for user, got '{bad}'"):
            list(text(tmp_path, values=columns([bad, *USERS[1:]])).train(8))


@pytest.mark.parametrize("bad", ["", "yesterday", "NaN", "2024-13-01"])
def test_a_line_without_a_time_is_bad(tmp_path: Path, bad: str) -> None:
    with pytest.raises(InputError, match=f"data.csv:3: expected a time for day, got '{bad}'"):
        list(text(tmp_path, values={**columns(), "day": [DAYS[0], bad, *DAYS[2:]]}).train(8))
