"""TBSM's prepared arrays: the layout of a batch, several files, and arrays that are not what they should be."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from adaptive.data.sequences.sequence_dataset import SequenceDataset
from adaptive.errors import ConfigError, InputError

GOOD: dict[str, Any] = {
    "X_cat": np.arange(3 * 4 * 5, dtype=np.int32).reshape(3, 4, 5),  # features, samples, steps
    "X_int": np.arange(20, dtype=np.float64).reshape(1, 4, 5) / 5,
    "y": np.array([1, 0, 0, 1], np.int32),
}


def opened(path: Path, name: str = "a.npz", options: dict[str, Any] | None = None, **arrays: Any) -> SequenceDataset:
    np.savez_compressed(path / name, **arrays)
    data = open_dataset(f"tbsm:{path / name}", DataOptions(**(options or {})))
    assert isinstance(data, SequenceDataset)
    return data


def test_a_batch_written_out(tmp_path: Path) -> None:
    data = opened(tmp_path, **GOOD)
    assert {f.name: f.num_embeddings for f in data.features[::5]} == {"user_0": 20, "item_0": 40, "category_0": 60}
    assert (data.steps, data.num_dense, data.num_train_samples()) == (5, 5, 4)
    first, second = data.train(3)
    assert first.ids.reshape(3, 5, 3)[1].tolist() == [[20 + n, 25 + n, 30 + n] for n in range(5)]
    np.testing.assert_array_equal(first.dense[2], np.arange(10, 15, dtype=np.float32) / np.float32(5))
    assert first.labels.tolist() == [1, 0, 0] and second.labels.tolist() == [1]
    assert second.origin is not None and second.origin.where(0) == f"{tmp_path / 'a.npz'}:4"
    assert list(data.evaluation(9)) == []


def test_several_files_and_files_to_evaluate_on(tmp_path: Path) -> None:
    np.savez(tmp_path / "b.npz", **{**GOOD, "X_cat": GOOD["X_cat"] + 100, "y": np.array([1.0, 1, 1, 1])})
    np.savez(tmp_path / "test.npz", **{**GOOD, "X_cat": GOOD["X_cat"] + 1000})
    np.savez(tmp_path / "a.npz", **GOOD)
    options = DataOptions(eval_data=str(tmp_path / "test.npz"))
    data = open_dataset(f"tbsm:{tmp_path}/a.npz,{tmp_path}/b.npz", options)
    assert [feature.num_embeddings for feature in data.features[::5]] == [1020, 1040, 1060]
    (train,), (evaluation,) = data.train(100), data.evaluation(100)
    assert train.labels.tolist() == [1, 0, 0, 1, 1, 1, 1, 1]
    assert train.ids[:8].tolist() == [0, 5, 10, 15, 100, 105, 110, 115]
    assert evaluation.ids.min() == 1000 and evaluation.labels.tolist() == [1, 0, 0, 1]
    assert train.origin is not None and train.origin.where(5) == f"{tmp_path / 'b.npz'}:2"


def test_holdout_and_other_numbers_of_features(tmp_path: Path) -> None:
    arrays = {**GOOD, "X_cat": GOOD["X_cat"][:2], "X_int": np.zeros((0, 4, 5))}
    data = opened(tmp_path, options={"holdout": 0.3}, **arrays)
    assert data.tables is not None and dict.fromkeys(data.tables) == {"c1": None, "c2": None}
    assert [batch.labels.tolist() for part in (data.train(9), data.evaluation(9)) for batch in part] == [[1, 0], [0, 1]]
    assert data.num_dense == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": None}, r"a.npz: expected arrays X_cat, X_int, y, got X_cat, X_int"),
        ({"X_cat": GOOD["X_cat"][0]}, r"array X_cat: expected whole numbers .*, got int32 \(4, 5\)"),
        ({"X_cat": GOOD["X_cat"].astype(float)}, r"array X_cat: expected whole numbers .*, got float64"),
        ({"X_cat": -GOOD["X_cat"]}, r"array X_cat: expected ids from 0, got -59"),
        ({"X_cat": GOOD["X_cat"][:, :, :1]}, r"array X_cat: .* at least 1, 1 and 2, got int32 \(3, 4, 1\)"),
        (
            {"X_int": GOOD["X_int"][:, :3]},
            r"array X_int: expected 4 samples of 5 steps, as in X_cat, got .*\(1, 3, 5\)",
        ),
        ({"X_int": GOOD["X_int"] * np.nan}, r"array X_int: expected finite"),
        ({"X_int": GOOD["X_int"].astype("U8")}, r"array X_int: expected numbers"),
        ({"y": np.array([0, 1, 2, 1])}, r"array y: expected labels 0 and 1"),
        ({"y": np.array([0.0, 1, np.nan, 1])}, r"array y: expected labels 0 and 1"),
        ({"y": np.array([0, 1])}, r"array y: expected 4 samples, as in X_cat, got int64 \(2,\)"),
        ({"y": np.array([None] * 4, object)}, r"array y: expected a readable .npz file of TBSM.*allow_pickle=False"),
    ],
)
def test_wrong_arrays_of_tbsm_are_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    arrays = {key: value for key, value in {**GOOD, **changed}.items() if value is not None}
    with pytest.raises(InputError, match=message):
        opened(tmp_path, **arrays)


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **GOOD)
    whole = path.read_bytes()
    for content in (b"", b"text", whole[:-50], whole[:200] + b"x" * 50 + whole[250:]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"a.npz: .*expected a readable .npz file of TBSM"):
            open_dataset(f"tbsm:{path}", DataOptions())


def test_files_of_other_shapes_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "b.npz", **{**GOOD, "X_cat": GOOD["X_cat"][:2]})
    with pytest.raises(InputError, match=r"b.npz: expected 3 features .*, as in .*a.npz, got 2 features and 1 dense"):
        opened(tmp_path, options={"eval_data": str(tmp_path / "b.npz")}, **GOOD)
    with pytest.raises(ConfigError, match=r"data tbsm: expected no data\.time_split, got a value: the format"):
        opened(tmp_path, options={"time_split": 5}, **GOOD)
