"""dlrm's `.npz` and MLPerf's records: the same samples as Criteo's text, ids as rows, what is wrong told by name."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders import assert_same_batches

from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from adaptive.errors import ConfigError, InputError

ROWS = 50


def arrays(rows: int = ROWS, *, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """As dlrm's preparation leaves them: int32, labels too; ids as floats."""
    rng = np.random.default_rng(seed)
    return {
        "X_int": rng.integers(0, 100, (rows, 13)).astype(np.int32),
        "X_cat": rng.integers(0, 5, (rows, 26)).astype(np.float64),
        "y": rng.integers(0, 2, rows).astype(np.int32),
        "counts": np.arange(5, 31),
    }


def npz(path: Path, **changes: Any) -> Path:
    np.savez(path, **{key: value for key, value in (arrays() | changes).items() if value is not None})
    return path


def records(path: Path, actual: dict[str, np.ndarray[Any, Any]]) -> Path:
    table = np.concatenate([actual["y"].reshape(-1, 1), actual["X_int"], actual["X_cat"]], axis=1)
    path.write_bytes(table.astype("<i4").tobytes())
    return path


def text(path: Path, actual: dict[str, np.ndarray[Any, Any]]) -> Path:
    """The same samples as Criteo's lines: categories of hex digits."""
    columns = zip(actual["y"], actual["X_int"], actual["X_cat"].astype(int), strict=True)
    lines = ["\t".join([str(y), *map(str, dense), *(f"{key:x}" for key in keys)]) for y, dense, keys in columns]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def opened(spec: str, **options: Any) -> Any:
    return open_dataset(spec, DataOptions(**options))


def test_a_sample_written_out(tmp_path: Path) -> None:
    actual = arrays(1) | {"X_int": np.arange(13, dtype=np.int32).reshape(1, 13), "X_cat": np.full((1, 26), 4.0)}
    data = opened(f"dlrm:{npz(tmp_path / 'a.npz', **actual)}")
    (batch,) = data.train(8)
    np.testing.assert_allclose(batch.dense[0], [math.log(1 + x) for x in range(13)], rtol=1e-6)
    assert batch.ids.tolist() == [4] * 26
    assert [feature.num_embeddings for feature in data.features] == list(range(5, 31))
    assert batch.origin.where(0) == f"{tmp_path}/a.npz:1" and data.num_train_samples() == 1


def test_three_formats_have_the_same_samples(tmp_path: Path) -> None:
    actual = arrays()
    counts = npz(tmp_path / "day_fea_count.npz", X_int=None, X_cat=None, y=None)
    whole = opened(f"dlrm:{npz(tmp_path / 'a.npz')}")
    mapped = opened(f"mlperf:{records(tmp_path / 'train_data.bin', actual)}", counts_path=counts)
    assert_same_batches(whole.train(16), mapped.train(16))
    assert whole.features == mapped.features
    for way in ({"hash_rows": 1000}, {"vocabulary": True}):
        lines = opened(f"criteo:{text(tmp_path / 'day', actual)}", **way)
        assert_same_batches(lines.train(16), opened(f"mlperf:{tmp_path}/train_data.bin", **way).train(16))


@pytest.mark.parametrize("way", [{"holdout": 0.3}, {"holdout": 0.3, "eval_part": "first_half"}, {"shuffle_buffer": 20}])
def test_options_mean_what_they_mean_for_text(tmp_path: Path, way: dict[str, Any]) -> None:
    first, second = arrays(), arrays(30, seed=1)
    spec = f"{records(tmp_path / 'a', first)},{records(tmp_path / 'b', second)}"
    lines = f"{text(tmp_path / 'a.tsv', first)},{text(tmp_path / 'b.tsv', second)}"
    one, other = opened(f"mlperf:{spec}", **way), opened(f"criteo:{lines}", **way)
    for epoch in (0, 1):
        assert_same_batches(one.train(7, epoch=epoch), other.train(7, epoch=epoch))
    assert_same_batches(one.evaluation(7), other.evaluation(7))
    assert one.num_train_samples() == other.num_train_samples()


def test_ids_are_divided_by_the_range(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz")
    data = opened(f"dlrm:{path}", id_range=3)
    assert {feature.num_embeddings for feature in data.features} == {3}
    (plain,), (divided,) = opened(f"dlrm:{path}").train(64), data.train(64)
    assert np.array_equal(divided.ids, plain.ids % 3)
    assert data.fingerprint() != opened(f"dlrm:{path}").fingerprint()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "expected arrays X_int, X_cat, y, counts, got X_int, X_cat, counts"),
        ({"X_cat": np.full((ROWS, 26), 0.5)}, "array X_cat: expected whole numbers (samples, features), got fractions"),
        ({"X_int": np.zeros((3, 13))}, "array X_int: expected 50 samples, as in X_cat, got float64 (3, 13)"),
        ({"X_int": np.full((ROWS, 13), np.nan)}, "array X_int: expected finite float32 numbers"),
        ({"X_int": np.full((ROWS, 13), 1e300)}, "array X_int: expected finite float32 numbers, got other"),
        (
            {"X_int": np.zeros((ROWS, 13), complex)},
            "array X_int: expected numbers (samples, dense inputs), got complex",
        ),
        (
            {"X_cat": np.full((ROWS, 26), 2**63, np.uint64)},
            "array X_cat: expected whole numbers (samples, features) below 2^63, got 9223372036854775808",
        ),
        ({"counts": np.ones(3, int)}, "array counts: expected a number for each of 26 features, got int64 (3,)"),
        ({"counts": np.zeros(26, int)}, "array counts: expected 1 or more for each feature, got 0"),
        ({"y": np.array([{}] * ROWS)}, "array y: expected a readable .npz file of dlrm"),  # pickled
    ],
)
def test_wrong_arrays_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        opened(f"dlrm:{npz(tmp_path / 'a.npz', **changes)}")
    assert str(error.value).startswith(f"{tmp_path}/a.npz: {message}")


def test_an_id_out_of_range_is_reported_with_its_sample(tmp_path: Path) -> None:
    keys = np.zeros((ROWS, 26))
    keys[9, 2] = 7  # of 7 rows
    with pytest.raises(InputError, match=r"a\.npz:10: expected an id from 0 to 6 for C3, got 7"):
        list(opened(f"dlrm:{npz(tmp_path / 'a.npz', X_cat=keys)}").train(8))


def test_a_bad_label_is_reported_or_left_out(tmp_path: Path) -> None:
    actual = arrays()
    actual["y"][4] = 7
    spec = f"mlperf:{records(tmp_path / 'a.bin', actual)}"
    with pytest.raises(InputError, match=r"a\.bin:5: expected a valid label for label, got '7'"):
        list(opened(spec).train(8))
    data = opened(spec, max_bad_label_fraction=0.1)
    assert sum(batch.num_samples for batch in data.train(8)) == ROWS - 1 and data.rejects() == {"label": 1}


def test_records_that_are_cut_off_or_change(tmp_path: Path) -> None:
    path = records(tmp_path / "a.bin", arrays())
    data = opened(f"mlperf:{path}")
    path.write_bytes(path.read_bytes()[:160])
    with pytest.raises(InputError, match="Do not change data files during a run"):
        list(data.train(8))
    path.write_bytes(b"x" * 161)
    with pytest.raises(InputError, match=r"expected records of 160 bytes .*, got 161 bytes"):
        opened(f"mlperf:{path}")


def test_settings_that_exclude_each_other(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz")
    with pytest.raises(ConfigError, match=r"data dlrm: expected no data\.time_split, got a value: the format"):
        opened(f"dlrm:{path}", time_split=3.0)
    with pytest.raises(ConfigError, match=r"expected data.counts_path \(ids are rows\) or data.vocabulary, got both"):
        opened(f"mlperf:{records(tmp_path / 'b', arrays())}", counts_path=path, vocabulary=True)
    with pytest.raises(InputError, match=r"expected 13 dense inputs and 26 features, as in .*, got 2 and 26"):
        opened(f"dlrm:{path}", eval_data=str(npz(tmp_path / "c.npz", X_int=np.zeros((ROWS, 2)))))
