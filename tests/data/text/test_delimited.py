"""Files described by a schema: every key of it, mistakes in it, ids that are rows, bags, shipped schemas."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.builders import csv_data as opened

from adaptive.batch import concatenate
from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from adaptive.data.text.schema import load_schema
from adaptive.errors import ConfigError, InputError, shown_id

SCHEMAS = Path(__file__).parents[3] / "adaptive" / "data" / "schemas"


def rows(batches):
    return concatenate(list(batches))


def bags(batch, feature):
    first = feature * batch.num_samples
    ends = batch.offsets[first : first + batch.num_samples + 1]
    return [batch.ids[start:stop].tolist() for start, stop in pairwise(ends)]


EVERYTHING = """
[label]
column = "action"
positive = ["buy", "cart"]

[[dense]]
columns = ["price"]

[[dense]]
columns = ["views_*"]
kind = "int"
transform = "log"

[[categorical]]
columns = ["user"]
kind = "int"
num_embeddings = 10

[[categorical]]
columns = ["liked", "seen"]
kind = "int"
inner_separator = "|"
num_embeddings = 5
table = "item"

[[categorical]]
columns = ["city"]
hash_rows = 50
missing = "reject"

[time]
column = "day"
"""
TEXT = """action,junk,liked,user,views_a,views_b,price,seen,city,day
buy,"a, b",1|2,9,0,7,-1.5,,Ulm,1
view,,,0,,,,4,"Ulm",2
cart,,0||3|,,3,-3,2,1|1,Bonn,3
view,,,1,1,1,1,,,3
"""


def test_every_kind_of_column(tmp_path):
    data = opened(tmp_path, EVERYTHING, TEXT, max_bad_fraction=0.3)
    assert {f.name: f.num_embeddings for f in data.features} == {"user": 11, "liked": 5, "seen": 5, "city": 51}
    assert data.tables == ("user", "item", "item", "city")
    batch = rows(data.train(2))
    assert batch.labels.tolist() == [1, 0, 1]
    np.testing.assert_allclose(batch.dense, [[0, np.log(8), -1.5], [0, 0, 0], [np.log(4), 0, 2]], rtol=1e-6)
    assert bags(batch, 0) == [[9], [0], [10]]  # 10: missing
    assert bags(batch, 1) == [[1, 2], [], [0, 3]]
    assert bags(batch, 2) == [[], [4], [1, 1]]
    city = bags(batch, 3)
    assert city[0] == city[1] != city[2]
    assert data.rejects() == {"missing": 1}
    assert [batch.origin.where(n).split(":")[-1] for n in range(3)] == ["2", "3", "4"]


def test_many_values_in_few_bags_make_room(tmp_path):
    schema = '[[categorical]]\ncolumns = ["b"]\nkind = "int"\nnum_embeddings = 9000\ninner_separator = " "\n'
    text = "b\n1\n" + " ".join(map(str, range(9000))) + "\n2 3\n"
    data = opened(tmp_path, '[label]\ncolumn = "l"\n' + schema, text.replace("\n", ",1\n").replace("b,1", "b,l", 1))
    assert bags(rows(data.train(3)), 0) == [[1], list(range(9000)), [2, 3]]


def test_threshold_and_names_without_header(tmp_path):
    schema = """
separator = "\\t"
header = false
quote = ""
columns = ["user", "rating"]
label = {column = "rating", threshold = 4}
[[categorical]]
columns = ["user"]
"""
    data = opened(tmp_path, schema, '"a\t4\n"a\t3.5\nb\t5\n', hash_rows=1000)
    batch = rows(data.train(5))
    assert batch.labels.tolist() == [1, 0, 1]
    assert batch.ids[0] == batch.ids[1] != batch.ids[2]


DIRECT = '[label]\ncolumn = "l"\n[[categorical]]\ncolumns = ["a", "b"]\nkind = "int"\nnum_embeddings = 7\n'


@pytest.mark.parametrize("bad", [-1, 7, 2**31, 2**63 - 1])
@pytest.mark.parametrize("feature", ["a", "b"])
def test_an_id_out_of_range_stops_and_is_named(tmp_path, feature, bad):
    values = {"a": 0, "b": 0, feature: bad}
    data = opened(tmp_path, DIRECT, f"l,a,b\n1,6,0\n0,{values['a']},{values['b']}\n")
    with pytest.raises(
        InputError,
        match=rf"data\.csv:3: expected an id from 0 to 6 for {feature}, got {re.escape(shown_id(bad))} \(sample 1 of "
        "the batch\\).*--set data.out_of_range=oov",
    ):
        list(data.train(10))


def test_an_id_out_of_range_in_a_bag_names_its_sample(tmp_path):
    schema = DIRECT + 'inner_separator = "|"\n'
    data = opened(tmp_path, schema, "l,a,b\n1,,1|2\n1,1|2|3,\n1,,\n1,,4|5|8\n")
    with pytest.raises(InputError, match=r"data\.csv:5: expected an id from 0 to 6 for b, got 8 \(sample 3 of"):
        list(data.train(10))


@pytest.mark.parametrize("missing", ["row", "reject"])
def test_out_of_range_to_a_row_of_its_own(tmp_path, missing):
    schema = DIRECT + f'missing = "{missing}"\n'
    text = f"l,a,b\n1,-1,7\n1,{2**31},{2**63 - 1}\n1,0,6\n"
    data = opened(tmp_path, schema, text, out_of_range="oov")
    assert {f.num_embeddings for f in data.features} == {9 if missing == "row" else 8}
    batch = rows(data.train(10))
    assert bags(batch, 0) == [[7], [7], [0]]
    assert bags(batch, 1) == [[7], [7], [6]]
    assert data.out_of_range() == {"a": 2, "b": 2}
    assert not data.rejects()


def test_a_vocabulary_shared_by_two_columns(tmp_path):
    schema = (
        '[label]\ncolumn = "l"\n[[categorical]]\ncolumns = ["a", "b"]\nvocabulary = true\nmin_count = 2\ntable = "t"\n'
    )
    data = opened(tmp_path, schema, "l,a,b\n1,x,y\n1,y,z\n1,y,x\n1,,q\n")
    batch = rows(data.train(10))
    assert bags(batch, 0) == [[1], [0], [0], [3]]  # y three times, x twice; 2: all others, 3: missing
    assert bags(batch, 1) == [[0], [2], [1], [2]]
    assert {f.num_embeddings for f in data.features} == {4}


def test_time_split(tmp_path):
    data = opened(tmp_path, EVERYTHING, TEXT, max_bad_fraction=0.3, time_split=2)
    assert rows(data.train(10)).origin.lines.tolist() == [2]
    assert rows(data.evaluation(10)).origin.lines.tolist() == [3, 4]
    assert data.num_train_samples() == 1


def test_time_split_by_iso_time(tmp_path):
    schema = '[label]\ncolumn = "l"\n[time]\ncolumn = "t"\nkind = "iso"\n[[categorical]]\ncolumns = ["a"]\n'
    text = "l,t,a\n1,2020-01-03,x\n0,2020-01-01 10:00:00,x\n1,2020-01-01T09:59:59.5Z,x\n"
    data = opened(tmp_path, schema, text, time_split="2020-01-01 12:00:00+02:00")
    assert rows(data.train(2)).origin.lines.tolist() == [4]
    assert rows(data.evaluation(2)).origin.lines.tolist() == [2, 3]
    with pytest.raises(ConfigError, match="time_split: expected an ISO time, as in the data, got 'noon'"):
        opened(tmp_path, schema, text, time_split="noon")
    with pytest.raises(ConfigError, match=r"expected a schema with a time column, .* Add \[time\]"):
        opened(tmp_path, DIRECT, "l,a,b\n", time_split=1)


def test_an_empty_evaluation_part_is_refused(tmp_path):
    """As soon as the data are opened, by time and by half; a file for evaluation when it is read."""
    schema = '[label]\ncolumn = "l"\n[time]\ncolumn = "t"\nkind = "iso"\n[[categorical]]\ncolumns = ["a"]\n'
    text = "l,t,a\n1,2020-01-03,x\n0,2020-01-01 10:00:00,x\n0,2020-01-05 noon,x\n"
    limits = {"max_bad_fraction": 0.4}
    last = r"the last one in the data, 2020-01-03 00:00:00\+00:00, got 2030-01-01"
    with pytest.raises(InputError, match=f"data.time_split: expected a time up to {last}"):
        opened(tmp_path, schema, text, time_split="2030-01-01", **limits)
    data = opened(tmp_path, schema, text, time_split="2020-01-03", **limits)
    assert not data.rejects(), "a look at the times counts no bad line"
    assert rows(data.evaluation(2)).origin.lines.tolist() == [2]
    number = schema.replace("iso", "number")
    with pytest.raises(InputError, match=r"the last one in the data, 1578009600, got 1\.9e9"):
        opened(tmp_path, number, "l,t,a\n1,1578009600,x\n0,7,x\n", time_split="1.9e9")
    (tmp_path / "none.csv").write_text("l,t,a\n")
    data = opened(tmp_path, schema, text, eval_data=str(tmp_path / "none.csv"), **limits)
    with pytest.raises(InputError, match=r"none.csv: expected rows to evaluate on, got none \(no lines\)"):
        list(data.evaluation(2))


def test_files_must_have_the_same_header(tmp_path):
    (tmp_path / "other.csv").write_text("l,b,a\n1,0,0\n")
    with pytest.raises(InputError, match=r"other.csv:1: expected the header .*, got \['l', 'b', 'a'\]"):
        opened(tmp_path, DIRECT, "l,a,b\n1,0,0\n", eval_data=str(tmp_path / "other.csv"))


def test_without_label_there_is_nothing_to_train_with(tmp_path):
    schema = '[[categorical]]\ncolumns = ["a"]\n'
    with pytest.raises(InputError, match="expected a label column to train with"):
        opened(tmp_path, schema, "a\n1\n").train(1)


def test_no_rows(tmp_path):
    with pytest.raises(InputError, match="expected rows to train on, got none"):
        list(opened(tmp_path, DIRECT, "l,a,b\n").train(1))
    with pytest.raises(InputError, match=r"data\.csv:1: expected a header line, got an empty file"):
        opened(tmp_path, DIRECT, "")
    with pytest.raises(InputError, match=r"data.csv: expected rows, got no good one \(2 columns, 1 empty\)\. Check"):
        opened(tmp_path, DIRECT, "l,a,b\n1\n\n2\n", holdout=0.5, max_bad_fraction=1.0)


@pytest.mark.parametrize(
    ("schema", "messages"),
    [
        ("separator = ';;'\nfoo = 1", ["separator: expected one", "got ';;'", "categorical: ", "foo: unknown key"]),
        (DIRECT.replace("columns", "colums"), ["categorical.0.colums: unknown key (did you mean columns?)"]),
        ("[lable]\ncolumn = 'l'\n" + DIRECT, ["lable: unknown key (did you mean label?)"]),
        (DIRECT + "[time]\nx = 1", ["time.x: unknown key (known: column, kind)"]),
        ("separator = ';'\n" + DIRECT, ["With separator = ';' the header is one column. Set separator = ','"]),
        (DIRECT + "hash_rows = 5", ["categorical.0: expected one of", "got num_embeddings and hash_rows"]),
        (DIRECT.replace('"int"', '"string"'), ["categorical.0: expected kind = 'int' or 'hex'", "got 'string'"]),
        (DIRECT.replace('"int"', '"text"'), ["categorical.0.kind: expected 'hex', 'int' or 'string'"]),
        (DIRECT + 'inner_separator = ","', ["expected inner_separator to differ", "got [',']"]),
        ("null = ['-1']\n" + DIRECT, ["expected texts that are not numbers in null, got '-1'"]),
        ("null = ['ff']\n" + DIRECT.replace("int", "hex"), ["expected texts that are not numbers in null, got 'ff'"]),
        ("null = ['a,b']\n" + DIRECT, ["expected texts without separators, quotes and line ends in null, got 'a,b'"]),
        (DIRECT.replace('"l"', '"l"\npositive = ["NA"]'), ["not in label.positive, got 'NA'"]),
        (DIRECT + "min_count = 2", ["expected min_count only with vocabulary = true, got it with num_embeddings"]),
        ("header = false\n" + DIRECT, ["expected either header = true or columns = [...], got neither"]),
        ("a = ", ["schema.toml: expected TOML in UTF-8, got "]),
        (
            DIRECT.replace('"b"', '"c"').replace('"l"', '"a"'),
            ["expected a column of the file, got 'c'", "expected an unused column, got 'a'", "file: 'l', 'a', 'b'."],
        ),
        (DIRECT + "[[dense]]\ncolumns = ['l']", ["dense.0.columns: expected an unused column, got 'l', which is"]),
        (DIRECT + 'table="t"\n[[categorical]]\ncolumns = ["l"]\ntable="t"', ["expected an unused column, got 'l'"]),
        (
            DIRECT.replace(', "b"', "") + 'table = "t"\n[[categorical]]\ncolumns = ["b"]\ntable = "t"',
            ["table 't': expected one mapping", "feature 'b'", "Give features that share a table the same"],
        ),
    ],
)  # fmt: skip
def test_mistakes_in_a_schema_are_named(tmp_path, schema, messages):
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, schema, "l,a,b\n1,0,0\n")
    for message in messages:
        assert message in str(caught.value)


def test_a_table_larger_than_any_machine_is_refused(tmp_path):
    rows = 2**40 + 1
    with pytest.raises(ConfigError, match=rf"num_embeddings: .* 1099511627774, got {rows}"):
        opened(tmp_path, DIRECT.replace("num_embeddings = 7", f"num_embeddings = {rows}"), "l,a,b\n1,0,0\n")


@pytest.mark.parametrize("header", ["l, a, b", "L,A,B", "\tl,A ,b"])
def test_similar_names_are_suggested(tmp_path, header):
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, DIRECT, header + "\n1,0,0\n")
    for name, actual in zip("lab", header.split(","), strict=True):
        if name != actual:
            assert f"got '{name}'; did you mean {actual!r}? Case and spaces count" in str(caught.value)


def test_a_schema_may_begin_with_a_byte_order_mark(tmp_path):
    assert opened(tmp_path, "\ufeff" + DIRECT, "l,a,b\n1,0,0\n").num_train_samples() == 1


def test_a_schema_that_cannot_be_read_says_why(tmp_path):
    (tmp_path / "latin.toml").write_bytes(b"# \xe4\n")
    texts = {
        "none.toml": "expected a file or a known name, got neither",
        ".": "expected a regular file, got a folder",
        "latin.toml": "expected TOML in UTF-8, got 'utf-8' codec",
    }
    for name, why in texts.items():
        with pytest.raises(ConfigError, match=why):
            load_schema(tmp_path / name)


def test_a_schema_is_needed(tmp_path):
    for kind in ("csv", "parquet"):
        with pytest.raises(ConfigError, match=f"data {kind}: expected a schema"):
            open_dataset(f"{kind}:{tmp_path}/x", DataOptions())
    with pytest.raises(ConfigError, match=r"schema .*none\.toml': expected a file"):
        open_dataset(f"csv:{tmp_path}/x", DataOptions(schema_path=tmp_path / "none.toml"))


def real(real_data, path, schema, **options):
    return open_dataset(f"csv:{real_data / path}", DataOptions(schema_path=SCHEMAS / schema, **options))


def test_kdd12_click(real_data):
    path = "kdd12-click/Click_prediction_small.first32000.csv.gz"
    data = real(real_data, path, "kdd12-click.toml", holdout=0.2)
    train, evaluation = rows(data.train(4096)), rows(data.evaluation(4096))
    assert (train.num_samples, evaluation.num_samples, data.num_dense) == (25600, 6400, 3)
    assert data.num_train_samples() == 25600
    assert (train.labels.sum() + evaluation.labels.sum()) / 32000 == pytest.approx(0.1685, abs=5e-5)
    assert evaluation.origin.lines[[0, -1]].tolist() == [25602, 32001]
    assert not data.rejects()
    assert [f.name for f in data.features][:2] == ["url_hash", "ad_id"]
    user = concatenate([train, evaluation]).ids.reshape(8, -1)[7]
    assert np.bincount(user).max() >= 7727  # user 0, unknown


def test_a_candidate_with_a_row_for_missing_ids_shares_the_table_of_a_bag(tmp_path):
    """Whichever column comes first; a bag has no missing ids."""
    column = '[[categorical]]\ncolumns = ["{}"]\nkind = "int"\nnum_embeddings = 4\ntable = "t"\n'
    parts = [column.format("item"), column.format("items") + 'inner_separator = "|"\n']
    for order in (parts, parts[::-1]):
        schema = 'label = { column = "y" }\n' + "".join(order)
        data = opened(tmp_path, schema, "y,item,items\n1,2,0|1\n0,,3|2\n")
        assert {feature.name: feature.num_embeddings for feature in data.features} == {"item": 5, "items": 5}
        (batch,) = data.train(10)
        ids = {f.name: batch.ids[batch.feature_span(n)].tolist() for n, f in enumerate(data.features)}
        assert ids == {"item": [2, 4], "items": [0, 1, 3, 2]}


WEIGHTED = """
label = { column = "y" }
weight = { column = "w" }
dense = [{ columns = ["a", "b"] }]
categorical = [{ columns = ["user"], kind = "int", num_embeddings = 9 }]
"""
LINES = ["y,a,w,b,user", "1,0.5,2,3,1", "0,,0,4,2", "1,1,0.25,5,3"]


def test_weights_of_samples_are_no_dense_inputs(tmp_path: Path) -> None:
    data = opened(tmp_path, WEIGHTED, "\n".join(LINES) + "\n", holdout=0.33)
    assert data.num_dense == 2 and data.dense_names == ("a", "b")
    batch = next(data.train(10))
    assert batch.extras["weight"].tolist() == [2, 0] and batch.extras["weight"].dtype == np.float32
    assert batch.dense.tolist() == [[0.5, 3], [0, 4]]
    assert next(data.evaluation(10)).extras["weight"].tolist() == [0.25]


@pytest.mark.parametrize(("text", "got"), [("", "an empty field"), ("-1", "-1"), ("inf", "inf")])
def test_weights_that_are_none(tmp_path: Path, text: str, got: str) -> None:
    lines = [*LINES, f"1,1,{text},5,3"]
    data = opened(tmp_path, WEIGHTED, "\n".join(lines) + "\n")
    with pytest.raises(InputError, match=rf"data.csv:5: .*(expected a weight of at least 0, got {got}|{got})"):
        list(data.train(10))


def test_samples_to_score_need_no_weight(tmp_path: Path) -> None:
    data = opened(tmp_path, WEIGHTED, "a,b,user\n1,2,3\n", label_optional=True)
    assert data.num_dense == 2 and data.dense_names == ("a", "b")


@pytest.mark.parametrize(
    ("value", "is_float"),
    [
        ("4.873214862074861e+18", True),
        ("9007199254740992.0", True),
        ('"5e18"', True),
        ("a|4.873214862074861E+18", True),
        ("9007199254740991.0", False),
        ("1.5e300", False),
        ("4873214862074861000", False),
        ("e+18", False),
    ],
)
def test_texts_that_were_floats_are_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: str, is_float: bool
) -> None:
    """pandas writes 64-bit ids with gaps as floats, which merge, also where ids are texts."""
    schema = 'label = { column = "y" }\n[[categorical]]\ncolumns = ["u"]\nhash_rows = 9\ninner_separator = "|"'
    (tmp_path / "s.toml").write_text(schema)
    (tmp_path / "a.csv").write_text(f"y,u\n1,7\n0,{value}\n")
    open_dataset(f"csv:{tmp_path / 'a.csv'}", DataOptions(schema_path=tmp_path / "s.toml"))
    wanted = r"a\.csv:3: expected ids for u, got '.*', a float.*pandas keeps .* Int64"
    assert bool(re.search(wanted, caplog.text)) == bool(caplog.text) == is_float
