"""`transform = "standard"`: fitted on the first rows, stored with the run, and used wherever the run is used."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from support.served import write_csv
from support.toy import toy_config

from adaptive import DataOptions, open_dataset
from adaptive.data.prepared_writer import prepare
from adaptive.data.rows import dense_scales
from adaptive.errors import ConfigError, InputError
from adaptive.serving import export_run, predict_run, scoring
from adaptive.training.runs import evaluate_run, train_run

SCHEMA = """
label = { column = "y" }
weight = { column = "w" }
dense = [
    { columns = ["plain"] }, { columns = ["big", "constant"], transform = "standard" },
    { columns = ["views"], transform = "log" },
]
categorical = [{ columns = ["user"], kind = "int", hash_rows = 50 }]
"""
HEADER = "w,y,big,plain,views,constant,user"
Values = tuple[list[str], np.ndarray]


def write_schema(folder: Path) -> Path:
    (folder / "s.toml").write_text(SCHEMA)
    return folder / "s.toml"


def drawn(count: int, seed: int, *, size: float = 1e6) -> Values:
    """Lines, and their large inputs (count,), NaN where a field is empty."""
    random = np.random.default_rng(seed)
    big = np.where(random.random(count) < 0.1, np.nan, random.normal(2, 1, count) * size).astype(np.float32)
    fields = ["" if np.isnan(value) else f"{value:.9g}" for value in big]
    lines = [f"1,{n % 2},{field},{n % 3},{n % 5},7.5,{n % 50}" for n, field in enumerate(fields)]
    return lines, big


def dense_of(spec: str, options: DataOptions, size: int = 7) -> np.ndarray:
    return np.concatenate([batch.dense for batch in open_dataset(spec, options).train(size)])


def test_inputs_have_mean_0_and_deviation_1(tmp_path: Path) -> None:
    """Missing ones become the mean, and a constant one 0. Other columns stay as they are."""
    lines, big = drawn(600, 0)
    write_csv(tmp_path / "a.csv", lines, HEADER)
    dense = dense_of(f"csv:{tmp_path}/a.csv", DataOptions(schema_path=write_schema(tmp_path)))
    expected = (big.astype(np.float64) - np.nanmean(big, dtype=np.float64)) / np.nanstd(big, dtype=np.float64)
    np.testing.assert_allclose(dense[:, 0], np.nan_to_num(expected), atol=1e-6)
    assert np.array_equal(dense[:, 1], np.arange(600) % 3) and not dense[:, 3].any()
    assert np.array_equal(dense[:, 2], np.log1p(np.arange(600) % 5.0).astype(np.float32))


def test_only_the_first_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_scales, "FITTED_ROWS", 100)
    monkeypatch.setattr(dense_scales, "_BLOCK_ROWS", 64)
    lines, big = drawn(600, 0)
    write_csv(tmp_path / "a.csv", lines, HEADER)
    data = open_dataset(f"csv:{tmp_path}/a.csv", DataOptions(schema_path=write_schema(tmp_path)), run_dir=tmp_path)
    scale = [np.nanmean(big[:100], dtype=np.float64), np.nanstd(big[:100], dtype=np.float64)]
    np.testing.assert_allclose(data.fingerprint()["scales"]["big"], scale)  # type: ignore[index]
    assert json.loads((tmp_path / "vocabulary/scales.json").read_text())["inputs"] == data.fingerprint()["scales"]


def test_formats_agree(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.csv
    import pyarrow.parquet

    from adaptive.data.arrow.frames import from_frame

    options = DataOptions(schema_path=write_schema(tmp_path))
    table = pyarrow.csv.read_csv(write_csv(tmp_path / "a.csv", drawn(600, 0)[0], HEADER))
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    prepare(f"csv:{tmp_path}/a.csv", options, tmp_path / "stored")
    expected = dense_of(f"csv:{tmp_path}/a.csv", options)
    np.testing.assert_array_equal(dense_of(f"parquet:{tmp_path}/a.parquet", options), expected)
    np.testing.assert_array_equal(dense_of(f"prepared:{tmp_path}/stored", DataOptions()), expected)
    batches = from_frame(table, tmp_path / "s.toml").train(7)
    np.testing.assert_array_equal(np.concatenate([batch.dense for batch in batches]), expected)


def test_a_run_scores_by_the_scales_of_its_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other data do not change them: alone or among others, a sample has the same score, and the export's."""
    monkeypatch.chdir(tmp_path)
    write_csv(Path("a.csv"), drawn(400, 0)[0], HEADER)
    lines = drawn(50, 1, size=1e5)[0]
    write_csv(Path("new.csv"), lines, HEADER)
    write_csv(Path("one.csv"), lines[:1], HEADER)
    options = {"schema_path": str(write_schema(tmp_path)), "holdout": 0.25}
    train_run(toy_config(out="run", data="csv:a.csv", data_options=options))
    predict_run("run", "new.npy", data="new.csv")
    predict_run("run", "one.npy", data="one.csv")
    assert np.load("one.npy")[0] == np.load("new.npy")[0]
    assert evaluate_run("run")["eval_samples"] == 100
    export_run("run", "served")
    samples = [dict(zip(HEADER.split(","), line.split(","), strict=True)) for line in lines]
    np.testing.assert_allclose(scoring.load("served").score(samples), np.load("new.npy"), atol=1e-6)
    again = toy_config(out="again", data="csv:new.csv", data_options=options, init_from="run")
    train_run(again)  # a run that continues on other data keeps them, too
    stored = [Path(run, "vocabulary/scales.json").read_text() for run in ("run", "again")]
    assert stored[0] == stored[1]
    Path("run/vocabulary/scales.json").unlink()
    with pytest.raises(InputError, match=r"expected the scales of dense inputs in .*scales\.json, got none"):
        predict_run("run", "new.npy", data="new.csv")


def test_stored_scales_of_other_inputs_are_refused(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", drawn(60, 0)[0], HEADER)
    options = DataOptions(schema_path=write_schema(tmp_path), vocabulary_path=tmp_path / "v")
    open_dataset(f"csv:{tmp_path}/a.csv", options)
    (tmp_path / "s.toml").write_text(SCHEMA.replace('"big", ', ""))
    with pytest.raises(ConfigError, match="expected scales of constant, got those of big, constant"):
        open_dataset(f"csv:{tmp_path}/a.csv", options)


def test_large_inputs_are_warned_about_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_csv(tmp_path / "a.csv", drawn(60, 0)[0], HEADER)
    options = DataOptions(schema_path=write_schema(tmp_path))
    for changed, wanted in ((SCHEMA, 0), (SCHEMA.replace('["big", "constant"], transform = "standard"', '["big"]'), 1)):
        (tmp_path / "s.toml").write_text(changed)
        with caplog.at_level(logging.WARNING):
            data = open_dataset(f"csv:{tmp_path}/a.csv", options)
            list(data.train(7)), list(data.train(7))
        assert len(caplog.records) == wanted
    assert "got big (1.9e+06): they train badly. Set transform = 'standard' or 'log'" in caplog.text
