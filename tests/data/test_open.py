"""`open_dataset`: specs, paths and patterns."""

import subprocess
import sys

import pytest

from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from adaptive.data.rows.row_dataset import RowDataset
from adaptive.data.synthetic import Synthetic
from adaptive.errors import ConfigError, InputError

LINE = "1" + "\t" * 39 + "\n"


def test_synthetic():
    data = open_dataset("synthetic", DataOptions(synthetic={"num_train": 10, "rows": 100_000}))
    assert isinstance(data, Synthetic)
    assert data.num_train_samples() == 10


@pytest.mark.parametrize("spec", ["", "synthetic:x", "criteo", "criteo:", "parquet:", "csv", "taobao:", "tbsm"])
def test_other_specs(spec):
    with pytest.raises(ConfigError, match="data: expected one of synthetic, sequences, criteo:PATH"):
        open_dataset(spec, DataOptions())


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ("small.csv", "csv:small.csv"),
        ("a/b.tsv.gz", "csv:a/b.tsv.gz"),
        ("x.parquet", "parquet:x.parquet"),
        ("cvs:small.csv", "csv:small.csv"),
        ("syntetic", "synthetic"),
        ("csv", "csv:PATH"),
    ],
)
def test_suggestions(spec, meant):
    with pytest.raises(ConfigError) as caught:
        open_dataset(spec, DataOptions())
    assert str(caught.value).endswith(f"; did you mean {meant}?")


def test_paths_and_patterns(tmp_path):
    for name in ("day_10", "day_1", "day_2", "other"):
        (tmp_path / name).write_text(LINE)
    data = open_dataset(f"criteo:{tmp_path}/other,{tmp_path}/day_*", DataOptions())
    assert isinstance(data, RowDataset)
    files = next(iter(data.train(10))).origin.files
    assert [file.rsplit("/")[-1] for file in files] == ["other", "day_1", "day_10", "day_2"]


def test_a_name_that_looks_like_a_pattern(tmp_path):
    (tmp_path / "day[1]").write_text(LINE)
    assert len(list(open_dataset(f"criteo:{tmp_path}/day[1]", DataOptions()).train(1))) == 1


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ("{}/none", r"none: expected a file, got an error \(No such file or directory\)\. Check the path"),
        ("{}/day_*", r"expected a pattern that matches files, got '.*day_\*'\. Check the folder"),
        ("{}", r"expected a file, got a folder\. Name its files"),
        ("{}/x,,{}/x", "Name a path"),
    ],
)
def test_wrong_paths_are_refused(tmp_path, paths, message):
    (tmp_path / "x").write_text(LINE)
    with pytest.raises(InputError, match=message):
        open_dataset("criteo:" + paths.format(tmp_path, tmp_path), DataOptions())
    with pytest.raises(InputError, match=message):
        open_dataset(f"criteo:{tmp_path}/x", DataOptions(eval_data=paths.format(tmp_path, tmp_path)))


def test_options_are_closed():
    with pytest.raises(ConfigError, match="hash_row"):
        DataOptions(hash_row=5)
    with pytest.raises(ConfigError, match="holdout"):
        DataOptions(holdout=1.0)


def test_options_load_without_the_compiler():
    code = "import sys, adaptive.data.open; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
