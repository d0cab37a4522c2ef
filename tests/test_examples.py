"""The examples run and print the expected results."""

import json
import re
import runpy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset

EXAMPLES = Path(__file__).parent.parent / "examples"


def printed(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.nightly
def test_quickstart_learns_and_placement_does_not_matter(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("quickstart.py", capsys)
    assert "tables equal" in text and "DIFFER" not in text
    assert float(re.search(r"AUC (0\.\d+)", text)[1]) > 0.7  # type: ignore[index]
    assert "device tier: 40,000 of 200,000 rows" in text
    lru, lfu = (re.findall(rf"{policy} .*loss (.*)", text) for policy in ("lru", "lfu"))
    assert len(lru) == 4 and lru == lfu


@pytest.mark.nightly
def test_the_tiered_loop_learns_as_its_lines_in_plain_torch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trained, loaded = re.findall(r"0\.\d+", printed("tiered_loop.py", capsys))
    assert trained == loaded and float(trained) > 0.7
    source = (EXAMPLES / "tiered_loop.py").read_text()
    plain, changed = re.subn(r"^( *)# plain: (.*\n).*\n", r"\1\2", source, flags=re.M)
    assert changed == 8
    (tmp_path / "plain.py").write_text(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's own, of sparse gradients
        aucs = re.findall(r"0\.\d+", printed(str(tmp_path / "plain.py"), capsys))
    assert [float(auc) for auc in aucs] == pytest.approx([float(trained)] * 2, abs=2e-4)


def test_the_logging_sink_follows_a_run_until_it_ends(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        {"kind": "run", "wall_time": 1.0},
        {"kind": "interval", "step": 20, "loss": 0.51, "tables": {"user": 3}},
        {"kind": "eval", "step": 40, "auc": 0.75, "gauc": None},
    ]
    (tmp_path / "lock").touch()
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:2]))

    def sleep(_: float) -> None:  # the run goes on and ends while the script waits
        with open(tmp_path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(lines[2]) + "\n")
        (tmp_path / "lock").unlink()

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("sys.argv", ["logging_sink.py", str(tmp_path)])
    assert printed("logging_sink.py", capsys) == "20 {'interval/loss': 0.51}\n40 {'eval/auc': 0.75}\n"


def dlrm_arrays(rows: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {
        "X_int": rng.integers(0, 100, (rows, 13)).astype(np.int32),
        "X_cat": rng.integers(0, 5, (rows, 26)).astype(np.float64),  # dlrm's preparation writes some of them as floats
        "y": rng.integers(0, 2, rows).astype(np.int32),
        "counts": np.arange(5, 31),
    }


@pytest.mark.parametrize("modulo", [None, 3])
def test_convert_writes_parquet_of_click_arrays(tmp_path: Path, modulo: int | None) -> None:
    """dlrm's arrays and MLPerf's records of the same samples give the same batches."""
    arrays = dlrm_arrays(50)
    np.savez(tmp_path / "a.npz", **arrays)
    table = np.concatenate([arrays["y"].reshape(-1, 1), arrays["X_int"], arrays["X_cat"]], axis=1)
    (tmp_path / "a.bin").write_bytes(table.astype("<i4").tobytes())
    convert = runpy.run_path(str(EXAMPLES / "convert.py"))["main"]
    more = [] if modulo is None else ["--modulo", str(modulo)]
    convert([str(tmp_path / "a.npz"), str(tmp_path / "one.parquet"), *more])
    convert([str(tmp_path / "a.bin"), str(tmp_path / "two.parquet"), "--counts", str(tmp_path / "a.npz"), *more])
    one, two = (
        open_dataset(f"parquet:{tmp_path}/{name}.parquet", DataOptions(schema_path=tmp_path / f"{name}.toml"))
        for name in ("one", "two")
    )
    (batch,), (same,) = one.train(64), two.train(64)
    for got in (batch, same):
        np.testing.assert_array_equal(got.labels, arrays["y"])
        np.testing.assert_allclose(got.dense, np.log1p(arrays["X_int"]), rtol=1e-6)
        np.testing.assert_array_equal(got.ids.reshape(26, -1).T, arrays["X_cat"] % (modulo or 5))
    rows = [feature.num_embeddings - 1 for feature in one.features]  # and one for missing ids
    assert rows == ([3] * 26 if modulo else arrays["counts"].tolist())


def test_convert_writes_parquet_of_sequences(tmp_path: Path) -> None:
    ids = np.arange(3 * 4 * 5, dtype=np.int32).reshape(3, 4, 5)  # features, samples, steps
    np.savez(tmp_path / "a.npz", X_cat=ids, X_int=np.arange(20.0).reshape(1, 4, 5), y=np.array([1, 0, 0, 1]))
    runpy.run_path(str(EXAMPLES / "convert.py"))["main"]([str(tmp_path / "a.npz"), str(tmp_path / "b.parquet")])
    data = open_dataset(f"parquet:{tmp_path}/b.parquet", DataOptions(schema_path=tmp_path / "b.toml"))
    (batch,) = data.train(64)
    names = [feature.name for feature in data.features]
    spans = {name: batch.ids[batch.feature_span(number)].tolist() for number, name in enumerate(names)}
    assert spans["user"] == [4, 9, 14, 19] and spans["item"] == [24, 29, 34, 39]
    assert spans["item_history"][:4] == [20, 21, 22, 23]
    assert data.sequences == {
        "item_history": 4,
        "category_history": 4,
    }
    np.testing.assert_array_equal(batch.dense.ravel(), [4, 9, 14, 19])
    np.testing.assert_array_equal(batch.labels, [1, 0, 0, 1])


@pytest.mark.nightly
def test_two_towers_recall_more_with_the_correction(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ADAPTIVE_DATA", str(tmp_path))  # the built-in set
    text = printed("two_tower.py", capsys)
    popular, corrected, plain = (float(number) for number in re.findall(r"0\.\d{4}", text))
    assert text.startswith("built-in") and corrected > 2 * popular and corrected > 1.5 * plain


@pytest.mark.nightly
def test_two_heads_learn_clicks_and_amounts(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("multi_task.py", capsys)
    auc, error, of_mean = (float(number) for number in re.findall(r"0\.\d{4}", text)[-3:])
    assert auc > 0.8 and error < 0.2 * of_mean


@pytest.mark.nightly
def test_slipstream_leaves_out_as_many_inputs_each_way(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["slipstream_rule.py", "--quick"])
    text = printed("papers/slipstream_rule.py", capsys)
    shares = dict(re.findall(r"^(\w+) +(\d+\.\d)% left out", text, re.M))
    assert float(shares["FAE"]) == 0 < float(shares["stale"]) == float(shares["random"])
    assert abs(float(shares["residual"]) - float(shares["stale"])) < 2
