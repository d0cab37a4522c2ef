"""Fitted vocabularies: counting, order, storing, damage; the kernels that map keys to rows."""

from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive.data.data_options import DataOptions
from adaptive.data.kernels import text_rows as kernels
from adaptive.data.open import open_dataset
from adaptive.data.rows.batcher import Direct, Fitted, Hashed
from adaptive.data.rows.vocabularies import KeyCounter, Vocabulary, load_vocabularies, save_vocabularies
from adaptive.errors import ConfigError

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


def test_kernels_as_plain_python(monkeypatch):
    asked, present, out = np.array([5, -7, 2**62, 5]), np.array([True, True, True, False]), np.empty(4, np.int64)
    table_keys, table_counts = np.zeros(8, np.int64), np.zeros(8, np.int64)
    with np.errstate(over="ignore"):
        monkeypatch.setattr(kernels, "mixed", kernels.mixed.py_func)
        monkeypatch.setattr(kernels, "scaled_to", kernels.scaled_to.py_func)
        kernels.hashed_rows.py_func(asked, present, 1000, 1000, out)
        compiled = np.empty_like(out)
        kernels.hashed_rows(asked, present, 1000, 1000, compiled)
        assert out.tolist() == compiled.tolist()
        assert kernels.direct_rows.py_func(asked, present, 6, 9, 8, out) == (1, 2)
        assert out.tolist() == [5, 8, 8, 9]
        assert kernels.count_keys.py_func(asked, np.ones(4, np.int64), table_keys, table_counts, 2) == (2, 2)
        table_rows = np.full(8, -1)
        kernels.insert_keys.py_func(asked[:2], np.arange(2), table_keys, table_rows)
        kernels.fitted_rows.py_func(asked, present, table_keys, table_rows, 3, 2, out)
        assert out.tolist() == [0, 1, 2, 3]
        dense = np.array([[np.nan, -1.0], [3.0, 5000.5]], np.float32)
        kernels.finish_dense.py_func(dense, np.array([False, True]))
        np.testing.assert_allclose(dense, [[0, 0], [3, np.log(5001.5)]], rtol=1e-6)
        ends, found = np.zeros(2, np.int64), np.zeros(4, np.int64)
        bag_keys, bag_ends = np.array([1, 2, 3, 4, 5]), np.array([0, 1, 3, 3, 5])  # two rows of two bags
        assert kernels.gather_bags.py_func(bag_keys, bag_ends, 2, 1, found, ends) == 4
        assert (found.tolist(), ends.tolist()) == ([2, 3, 4, 5], [2, 4])


def test_what_is_stored_is_loaded(tmp_path):
    stored = {"C1": Vocabulary(np.array([5, -(2**63), 7]), 2), "C2/x": Vocabulary(np.zeros(0, np.int64), 1)}
    save_vocabularies(tmp_path / "v", stored)
    loaded = load_vocabularies(tmp_path / "v", {"C1": 2, "C2/x": 1})
    assert {name: one.keys.tolist() for name, one in loaded.items()} == {"C1": [5, -(2**63), 7], "C2/x": []}
    assert load_vocabularies(tmp_path / "nothing", {"C1": 2}) is None


def test_another_vocabulary_is_an_error(tmp_path):
    save_vocabularies(tmp_path, {"C1": Vocabulary(np.array([5]), 2)})
    with pytest.raises(
        ConfigError, match=r"vocabulary of C1 \(min_count 2\), wanted C1 \(min_count 3\); remove the folder"
    ):
        load_vocabularies(tmp_path, {"C1": 3})


@pytest.mark.parametrize("name", ["0000.npy", "vocabulary.json"])
def test_every_flipped_bit_of_a_stored_vocabulary_is_noticed_or_harmless(tmp_path, name):
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
    with pytest.raises(ConfigError, match="wanted C1"):
        open_dataset(f"criteo:{tmp_path / 'b'}", options.model_copy(update={"min_count": 2}))
