"""Criteo's format: columns, transform, missing and unknown categories, files without labels, real lines."""

import hashlib
import json

import numpy as np
import pytest

from adaptive.batch import concatenate
from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from adaptive.errors import InputError

INTEGERS = ["3", "", "-2", "0", "1023", "1024", "99999", "1", "1", "1", "1", "1", ""]
CATEGORIES = [f"{n:08x}" for n in range(24)] + ["", "ffffffff"]


def line(label="1", integers=INTEGERS, categories=CATEGORIES):
    return "\t".join(([] if label is None else [label]) + integers + categories) + "\n"


def write(path, *lines):
    path.write_text("".join(lines))
    return path


def all_of(batches):
    return concatenate(list(batches))


def ids_of(batch):
    """(B, F)"""
    return batch.ids.reshape(batch.num_features, batch.num_samples).T


def test_a_line(tmp_path):
    path = write(tmp_path / "day_0", line(), line("0", [""] * 13, [""] * 26))
    data = open_dataset(f"criteo:{path}", DataOptions(hash_rows=1000))
    assert [feature.name for feature in data.features] == [f"C{n}" for n in range(1, 27)]
    assert {feature.num_embeddings for feature in data.features} == {1001}
    assert data.num_dense == 13
    batch = all_of(data.train(10))
    values = np.array([3, 0, 0, 0, 1023, 1024, 99999, 1, 1, 1, 1, 1, 0])  # negative and missing: 0
    np.testing.assert_allclose(batch.dense, [np.log1p(values), np.zeros(13)], rtol=1e-6)
    assert batch.labels.tolist() == [1, 0]
    ids = ids_of(batch)
    assert (ids[1] == 1000).all()
    assert ids[0, 24] == 1000
    assert (np.delete(ids[0], 24) < 1000).all()
    assert len(set(ids[0])) > 20
    assert batch.origin.where(1) == f"{path}:2"
    assert data.num_train_samples() == 2


def test_equal_categories_get_equal_rows_in_any_spelling(tmp_path):
    path = write(tmp_path / "a", line(categories=["0a"] * 26), line(categories=["A"] * 26))
    ids = ids_of(all_of(open_dataset(f"criteo:{path}", DataOptions()).train(1)))
    assert (ids == ids[0, 0]).all()


def test_files_without_labels_are_for_evaluation_only(tmp_path):
    path = write(tmp_path / "train", line())
    test = write(tmp_path / "test", line(None), line(None))
    data = open_dataset(f"criteo:{path}", DataOptions(eval_data=str(test)))
    batch = all_of(data.evaluation(10))
    assert np.isnan(batch.labels).all()
    np.testing.assert_array_equal(ids_of(batch)[0], ids_of(all_of(data.train(1)))[0])
    assert not data.rejects()
    with pytest.raises(InputError, match=r"test: expected a label column to train with, .* data\.eval_data"):
        open_dataset(f"criteo:{test}", DataOptions()).train(1)


def test_bad_lines_are_reported_with_file_and_line(tmp_path):
    bad = [line(categories=["xyz"] * 26), line(integers=["1.5"] * 13), "\t" * 38 + "\n"]
    path = write(tmp_path / "day_0", line(), *bad, line())
    data = open_dataset(f"criteo:{path}", DataOptions(max_bad_fraction=0.7), run_dir=tmp_path)
    assert all_of(data.train(10)).origin.lines.tolist() == [1, 5]
    assert data.rejects() == {"hex": 1, "number": 1, "columns": 1}
    records = [json.loads(entry) for entry in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    places = [(record["line"], record["cause"], record["column"]) for record in records]
    assert places == [(2, "hex", "C1"), (3, "number", "I1"), (4, "columns", "")]
    with pytest.raises(InputError, match=r"day_0:2: expected hex digits for C1, got 'xyz'") as caught:
        list(open_dataset(f"criteo:{path}", DataOptions()).train(10))
    assert caught.value.exit_code == 3


def test_fingerprint_follows_content_and_settings(tmp_path):
    path = write(tmp_path / "day_0", line())
    actual = open_dataset(f"criteo:{path}", DataOptions()).fingerprint()
    assert json.loads(json.dumps(actual)) == actual
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    assert actual["files"] == [{"path": str(path), "bytes": len(data), "sha256": digest, "sha256_of": "all"}]
    assert open_dataset(f"criteo:{path}", DataOptions(hash_rows=7)).fingerprint() != actual


def test_the_fingerprint_of_a_large_file_looks_at_64_blocks(tmp_path):
    path = tmp_path / "large"
    with open(path, "wb") as file:
        file.truncate(200 << 20)  # a hole
    before = open_dataset(f"criteo:{path}", DataOptions()).fingerprint()["files"][0]
    assert before["sha256_of"] == "64 blocks of 1 MiB"
    with open(path, "r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    assert open_dataset(f"criteo:{path}", DataOptions()).fingerprint()["files"][0]["sha256"] != before["sha256"]


def test_real_lines(real_data, tmp_path):
    spec = real_data / "criteo-1tb-sample" / "day_11_rows_0001_2000.tsv.gz"
    data = open_dataset(f"criteo:{spec}", DataOptions(holdout=0.2), run_dir=tmp_path)
    train, evaluation = all_of(data.train(300)), all_of(data.evaluation(300))
    assert (train.num_samples, evaluation.num_samples) == (1600, 400)
    assert train.labels.sum() + evaluation.labels.sum() == 65  # 3.25 %
    both = concatenate([train, evaluation])
    missing = (ids_of(both) == 100_000).sum(axis=0)
    assert {f"C{n + 1}": int(count) for n, count in enumerate(missing) if count} == {
        **dict.fromkeys(["C1", "C10", "C11", "C20", "C21", "C22"], 70),
        **dict.fromkeys(["C14", "C16", "C17", "C23"], 922),
    }
    distinct = [len(np.unique(column)) for column in ids_of(both).T]
    assert distinct[5] == 2
    assert distinct[8] == 17
    assert not data.rejects()
