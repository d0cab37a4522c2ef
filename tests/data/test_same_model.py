"""However the same rows are stored, the same model is trained, bit for bit."""

from pathlib import Path

import numpy as np
import pytest

from adaptive.config import TrainConfig
from adaptive.data.data_options import DataOptions
from adaptive.data.prepared.prepared_writer import prepare
from adaptive.training.runs import train_run

SCHEMA = """
[label]
column = "y"
[[dense]]
columns = ["price"]
[[categorical]]
columns = ["user"]
kind = "int"
hash_rows = 50
[[categorical]]
columns = ["words"]
inner_separator = "|"
vocabulary = true
"""


@pytest.fixture(name="text")
def text_fixture(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    words = ["|".join(f"w{word}" for word in rng.integers(0, 20, rng.integers(0, 4))) for _ in range(300)]
    rows = zip(rng.integers(0, 2, 300), rng.integers(0, 99, 300) / 8, rng.integers(0, 200, 300), words, strict=True)
    path = tmp_path / "data.csv"
    path.write_text("y,price,user,words\n" + "".join(f"{','.join(map(str, row))}\n" for row in rows))
    return path


def trained(spec: str, folder: Path, name: str, **options: object) -> dict[str, bytes]:
    """The files of weights and optimizer state of a run."""
    config = TrainConfig(
        data=spec,
        data_options={"schema_path": folder / "schema.toml", "holdout": 0.2, "shuffle_buffer": 64, **options},
        batch_size=32,
        epochs=2,
        out=str(folder / name),
        tensorboard=False,
        tier={"device_rows": "100%", "device": "cpu"},
    )
    summary = train_run(config)
    assert summary["auc_of"] == "evaluation"
    return {path.name: path.read_bytes() for path in sorted((folder / name / "weights").glob("*.npy"))}


def test_parquet_trains_the_model_that_text_does(text: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'adaptive-train[parquet]'")
    from pyarrow import csv, parquet

    parquet.write_table(csv.read_csv(text), tmp_path / "data.parquet", row_group_size=70)
    wanted = trained(f"csv:{text}", tmp_path, "of-text")
    assert len(wanted) > 3
    assert trained(f"parquet:{tmp_path / 'data.parquet'}", tmp_path, "of-parquet") == wanted


@pytest.mark.parametrize("shuffle", [0, 64])
def test_prepared_data_train_the_model_that_text_does(text: Path, tmp_path: Path, shuffle: int) -> None:
    wanted = trained(f"csv:{text}", tmp_path, "of-text", shuffle_buffer=shuffle, seed=3)
    options = DataOptions(schema_path=tmp_path / "schema.toml", holdout=0.2)
    prepare(f"csv:{text}", options, tmp_path / "prepared")
    unset = {"schema_path": None, "holdout": None}
    found = trained(f"prepared:{tmp_path / 'prepared'}", tmp_path, "run", shuffle_buffer=shuffle, seed=3, **unset)
    assert found == wanted
