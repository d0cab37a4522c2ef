"""Fitted vocabularies: counting, order, storing, damage, the kernels that map keys to rows, of text and of Parquet."""

from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from adaptive.data.rows.batcher import Direct, Fitted, Hashed
from adaptive.data.rows.vocabularies import (
    KeyCounter,
    Vocabulary,
    load_vocabularies,
    save_vocabularies,
)
from adaptive.errors import ConfigError
from adaptive.serving import sample_values

keys = st.lists(st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1)), max_size=60)


@settings(deadline=None)
@given(st.lists(keys, max_size=4), st.integers(1, 3))
def test_counting_equals_a_counter(parts, min_count):
    counter, expected = KeyCounter(), Counter()
    for part in parts:
        present = np.arange(len(part)) % 5 != 4
        counter.add(np.array(part, np.int64), present)
        expected.update(key for key, is_present in zip(part, present, strict=True) if is_present)
    kept = [key for key, count in expected.items() if count >= min_count]
    kept.sort(key=lambda key: (-expected[key], key))
    assert counter.vocabulary(min_count).keys.tolist() == kept


def test_counting_grows():
    counter = KeyCounter()
    values = np.repeat(np.arange(50_000) * 2**40, 2)
    counter.add(values, np.ones(len(values), np.bool_))
    assert counter.vocabulary(2).keys.tolist() == (np.arange(50_000) * 2**40).tolist()
    assert not len(counter.vocabulary(3).keys)


@settings(deadline=None)
@given(keys, keys)
def test_rows_of_a_vocabulary(known, asked):
    known = list(dict.fromkeys(known))
    rows = Fitted(Vocabulary(np.array(known, np.int64), 1))
    present = np.arange(len(asked)) % 3 != 2
    out = np.empty(len(asked), np.int64)
    assert rows.fill(np.array(asked, np.int64), present, out) == (-1, 0)
    n = len(known)
    assert rows.num_embeddings == n + 2
    expected = [
        (known.index(key) if key in known else n) if p else n + 1 for key, p in zip(asked, present, strict=True)
    ]
    assert out.tolist() == expected


@pytest.mark.parametrize("num_rows", [1, 7, 2**32 - 1])
def test_hashed_rows_stay_inside_the_table(num_rows):
    out, many = np.empty(1000, np.int64), np.arange(-500, 500) * 2**54
    Hashed(num_rows).fill(many, np.ones(1000, np.bool_), out)
    assert out.min() >= 0
    assert out.max() < num_rows
    assert num_rows < 8 or len(set(out)) > 995
    Hashed(num_rows).fill(many, np.zeros(1000, np.bool_), out)
    assert (out == num_rows).all()


def test_direct_rows():
    out, asked = np.empty(5, np.int64), np.array([0, 4, 5, -1, 9])
    present = np.array([True, True, True, True, False])
    assert Direct(5).fill(asked, present, out) == (2, 2)
    assert Direct(5, has_unknown=True).fill(asked, present, out) == (2, 2)
    assert out.tolist() == [0, 4, 5, 5, 6]


def test_what_is_stored_is_loaded(tmp_path):
    stored = {"C1": Vocabulary(np.array([5, -(2**63), 7]), 2), "C2/x": Vocabulary(np.zeros(0, np.int64), 1)}
    save_vocabularies(tmp_path / "v", stored)
    loaded = load_vocabularies(tmp_path / "v", {"C1": 2, "C2/x": 1})
    assert {name: one.keys.tolist() for name, one in loaded.items()} == {"C1": [5, -(2**63), 7], "C2/x": []}
    assert load_vocabularies(tmp_path / "nothing", {"C1": 2}) == {}


def test_another_vocabulary_is_an_error(tmp_path):
    save_vocabularies(tmp_path, {"C1": Vocabulary(np.array([5]), 2)})
    with pytest.raises(
        ConfigError, match=r"vocabulary of C1 \(min_count 3\), got one of C1 \(min_count 2\)\. Remove the folder"
    ):
        load_vocabularies(tmp_path, {"C1": 3})


@pytest.mark.parametrize("name", ["0000.npy", "vocabulary.json"])
def test_flipped_bits_of_a_vocabulary_are_found_or_harmless(tmp_path, name):
    save_vocabularies(tmp_path, {"C1": Vocabulary(np.array([5, 6]), 2)})
    whole, num_harmless = (tmp_path / name).read_bytes(), 0
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        (tmp_path / name).write_bytes(damaged)
        with suppress(ConfigError):
            assert load_vocabularies(tmp_path, {"C1": 2})["C1"].keys.tolist() == [5, 6]
            num_harmless += 1
    assert num_harmless <= (0 if name == "0000.npy" else len(whole) // 6)  # white space, unused keys


def test_a_stored_vocabulary_is_used_again(tmp_path):
    line = "1\t" + "\t" * 12
    (tmp_path / "a").write_text(f"{line}" + "\taa" * 26 + "\n" + f"{line}" + "\tbb" * 26 + "\n")
    (tmp_path / "b").write_text(f"{line}" + "\tbb" * 26 + "\n")
    options = DataOptions(vocabulary=True, vocabulary_path=tmp_path / "v")
    first = open_dataset(f"criteo:{tmp_path / 'a'}", options)
    assert first.features[0].num_embeddings == 4
    again = open_dataset(f"criteo:{tmp_path / 'b'}", options)
    assert again.features == first.features
    assert next(iter(again.train(1))).ids[0] == 1
    assert again.fingerprint()["vocabularies"] == first.fingerprint()["vocabularies"]
    with pytest.raises(ConfigError, match="got one of C1"):
        open_dataset(f"criteo:{tmp_path / 'b'}", options.model_copy(update={"min_count": 2}))


SCHEMA = """
[label]
column = "y"
[[categorical]]
columns = ["word"]
vocabulary = true
[[categorical]]
columns = ["bag"]
inner_separator = "|"
vocabulary = true
min_count = 2
[[categorical]]
columns = ["number"]
kind = "int"
vocabulary = true
[[categorical]]
columns = ["hex"]
kind = "hex"
vocabulary = true
"""
TEXT = (
    "skip,word,y,number,bag,hex\r\n"
    '"a ""b""",Ulm,1,-5,x|y|x,00FF\r\n'
    'b,"é,""q""",0,7,"x|""z""",ff\r\n'
    '"",Ulm,0,7,,8000000000000000\r\n'
    ",,1,,y,\r\n"
)
IDS = {
    "word": ("string", ["Ulm", 'é,"q"']),
    "bag": ("string", ["x", "y"]),
    "number": ("int", ["7", "-5"]),
    "hex": ("hex", ["ff", "8000000000000000"]),
}


def written(folder: Path) -> DataOptions:
    (folder / "schema.toml").write_text(SCHEMA)
    (folder / "data.csv").write_bytes(TEXT.encode())
    return DataOptions(schema_path=folder / "schema.toml", vocabulary_path=folder / "v")


def test_ids_are_those_of_the_file(tmp_path: Path) -> None:
    options = written(tmp_path)
    data = open_dataset(f"csv:{tmp_path / 'data.csv'}", options)
    expected = {table: [sample_values.key_of(value, kind) for value in values] for table, (kind, values) in IDS.items()}
    assert {table: stored.keys.tolist() for table, stored in load_vocabularies(tmp_path / "v").items()} == expected
    batch = next(iter(data.train(4)))
    assert batch.ids[:4].tolist() == [0, 1, 0, 3]  # Ulm, é,"q", Ulm, missing


def test_parquet_gives_the_vocabulary_that_text_does(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'adaptive-train[parquet]'")
    from pyarrow import parquet

    options = written(tmp_path)
    open_dataset(f"csv:{tmp_path / 'data.csv'}", options)
    table = pa.table({
        "word": pa.array(["Ulm", 'é,"q"', "Ulm", None]).dictionary_encode(),
        "y": [1, 0, 0, 1],
        "number": [-5, 7, 7, None],
        "bag": [["x", "y", "x"], ["x", '"z"'], [], ["y"]],
        "hex": ["00FF", "ff", "8000000000000000", ""],
    })  # fmt: skip
    parquet.write_table(table, tmp_path / "data.parquet", row_group_size=2)
    other = options.model_copy(update={"vocabulary_path": tmp_path / "w"})
    open_dataset(f"parquet:{tmp_path / 'data.parquet'}", other)
    of_text, of_parquet = load_vocabularies(tmp_path / "v"), load_vocabularies(tmp_path / "w")
    for name in IDS:
        assert of_parquet[name].keys.tolist() == of_text[name].keys.tolist()
