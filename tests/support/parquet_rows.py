"""Parquet files of drawn rows, and the rows that are read from one."""

from pathlib import Path

import numpy as np
import pytest

from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from adaptive.data.rows.split import read_part

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'adaptive-train[parquet]'")
pq = pytest.importorskip("pyarrow.parquet")

SCHEMA = """
label = { column = "label" }
dense = [{ columns = ["count"], kind = "int" }, { columns = ["price"] }]

[[categorical]]
columns = ["user"]
kind = "int"
hash_rows = 100

[[categorical]]
columns = ["hex"]
kind = "hex"
hash_rows = 100

[[categorical]]
columns = ["word", "category"]
hash_rows = 100
missing = "row"
"""


def table(rows: int, seed: int, nulls: float, distinct: int) -> object:
    rng = np.random.default_rng(seed)
    words = np.array([f"w{'x' * (i % 7)}{i}" for i in range(distinct)])

    def column(values: np.ndarray, kind: object = None, can_miss: bool = True) -> object:
        gone = (rng.random(rows) < nulls) & can_miss
        return pa.array([None if g else v for g, v in zip(gone, values.tolist(), strict=True)], kind)

    return pa.table(
        {
            "label": column(rng.integers(0, 2, rows), pa.int8(), can_miss=False),
            "count": column(rng.integers(-5, distinct, rows), pa.int32()),
            "price": column(rng.random(rows).round(2), pa.float64()),
            "user": column(rng.integers(0, distinct, rows), pa.uint32()),
            "hex": column(np.array([f"{i:x}" for i in rng.integers(0, distinct, rows)])),
            "word": column(words[rng.integers(0, distinct, rows)]),
            "category": column(words[rng.integers(0, distinct, rows)], pa.string()).dictionary_encode(),
        }
    )


def opened(folder: Path, schema: str = SCHEMA):
    (folder / "schema.toml").write_text(schema.replace('missing = "row"\n', ""))
    options = DataOptions(schema_path=folder / "schema.toml", max_bad_fraction=1.0)
    return open_dataset(f"parquet:{folder / 'data.parquet'}", options)


def rows_of(data, size: int = 100) -> list[tuple[object, ...]]:
    """What all rows are, so that rows cut into blocks in any way compare."""
    found = []
    for block in read_part(data._source, data._train, size):
        columns, n = block.columns, block.num_rows
        keys = np.where(columns.present[:, :n], columns.keys[:, :n], -7).T.tolist()
        dense = [[None if one != one else one for one in row] for row in columns.dense[:n].tolist()]
        found += list(zip(columns.lines[:n].tolist(), columns.labels[:n].tolist(), dense, keys, strict=True))
    return found
