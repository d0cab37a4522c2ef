"""One data set, written by other people's tools in every encoding and compression that they offer: equal batches, and
for a sample of the files equal trained weights."""

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.attacks import SECONDS, Campaign, attack

from adaptive.config import TrainConfig
from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from adaptive.errors import ConfigError
from adaptive.training.runs import train_run

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'adaptive-train[parquet]'")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = attack

SCHEMA = """
label = { column = "click" }
dense = [{ columns = ["price"] }, { columns = ["views"], kind = "int", transform = "log" }]
[[categorical]]
columns = ["user"]
kind = "int"
hash_rows = 200
[[categorical]]
columns = ["site", "city"]
vocabulary = true
min_count = 2
[[categorical]]
columns = ["device"]
kind = "hex"
hash_rows = 100
"""
ROWS = 300
COMPRESSIONS = ("none", "snappy", "gzip", "zstd", "lz4", "brotli")
TEXTS, NUMBERS = ("site", "city", "device"), ("user", "views", "click")
Write = Callable[[Any, Path, np.random.Generator], str]


def rows_of(rng: np.random.Generator) -> Any:
    """A table with nulls, repeated and rare texts, and negative numbers; prices are exact in decimal and in float64."""

    def gaps(values: list[Any], share: float = 0.1) -> list[Any]:
        return [None if gone else value for value, gone in zip(values, rng.random(ROWS) < share, strict=True)]

    numbers = rng.integers(-(2**40), 2**40, ROWS)
    return pa.table(
        {
            "click": pa.array(rng.integers(0, 2, ROWS), pa.int64()),
            "price": pa.array(gaps((rng.integers(-500, 500, ROWS) / 4).tolist()), pa.float64()),
            "views": pa.array(gaps(rng.integers(0, 9, ROWS).tolist()), pa.int64()),
            "user": pa.array(gaps(numbers.tolist()), pa.int64()),
            "site": pa.array(gaps([f"site {n}, “{'x' * (n % 5)}”" for n in rng.integers(0, 40, ROWS)])),
            "city": pa.array(gaps([["Ulm", "Köln", "a|b", "東京"][n] for n in rng.integers(0, 4, ROWS)])),
            "device": pa.array(gaps([f"{n:x}" for n in rng.integers(0, 2**60, ROWS)])),
        }
    )


def by_pyarrow(table: Any, path: Path, rng: np.random.Generator) -> str:
    encodings = {name: ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"][rng.integers(3)] for name in TEXTS}
    encodings |= {name: ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"][rng.integers(3)] for name in NUMBERS}
    encodings |= {"price": ["PLAIN", "BYTE_STREAM_SPLIT"][rng.integers(2)]}
    is_encoded = bool(rng.integers(2))
    written = {
        "compression": str(rng.choice(COMPRESSIONS)), "data_page_version": str(rng.choice(["1.0", "2.0"])),
        "data_page_size": int(rng.choice([64, 1 << 20])), "row_group_size": int(rng.choice([7, 100, 1000])),
        "use_dictionary": not is_encoded, "column_encoding": encodings if is_encoded else None,
        "write_page_checksum": bool(rng.integers(2)), "store_schema": bool(rng.integers(2)),
    }  # fmt: skip
    kind = str(rng.choice(["string", "large_string", "binary", "string_view", "dictionary"]))
    if kind == "dictionary" and is_encoded and written["store_schema"]:
        kind = "string"  # pyarrow writes such a file, and cannot read it
    for name in TEXTS:
        texts = table[name].combine_chunks()
        if kind == "dictionary":
            texts = texts.dictionary_encode()
        elif kind != "string":
            texts = pa.array([None if one is None else one.as_py() for one in texts], pa.string()).cast(kind)
        table = table.set_column(table.schema.get_field_index(name), name, texts)
    pq.write_table(table, path, **written)
    return f"pyarrow, texts as {kind}, {written}"


def by_pandas(table: Any, path: Path, rng: np.random.Generator) -> str:
    pytest.importorskip("pandas", reason="pandas is not installed")
    compression = [None, "snappy", "gzip", "zstd", "lz4", "brotli"][int(rng.integers(6))]
    frame = table.to_pandas()  # whole numbers with gaps become floats
    if rng.integers(2):
        frame["city"] = frame["city"].astype("category")
    frame.to_parquet(path, compression=compression, index=bool(rng.integers(2)))
    return f"pandas, {compression}"


def by_polars(table: Any, path: Path, rng: np.random.Generator) -> str:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    compression = str(rng.choice(["uncompressed", "snappy", "gzip", "zstd", "lz4", "brotli"]))
    frame = polars.from_arrow(table)
    if rng.integers(2):
        frame = frame.with_columns(polars.col("city").cast(polars.Categorical))
    frame.write_parquet(path, compression=compression, row_group_size=int(rng.choice([50, 1000])))
    return f"polars, {compression}"


def by_duckdb(table: Any, path: Path, rng: np.random.Generator) -> str:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    codec, version = str(rng.choice(["uncompressed", "snappy", "gzip", "zstd", "lz4"])), str(rng.choice(["V1", "V2"]))
    with duckdb.connect() as connection:
        connection.register("rows", table)
        connection.execute(f"COPY rows TO '{path}' (FORMAT parquet, COMPRESSION {codec}, PARQUET_VERSION {version})")
    return f"duckdb, {codec}, {version}"


def as_csv(table: Any, path: Path, rng: np.random.Generator) -> str:
    null = str(rng.choice(["", "NA", "NaN", "\\N"]))
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = table.to_pandas(types_mapper={pa.int64(): pandas.Int64Dtype()}.get)
    quoting, end = int(rng.integers(3)), str(rng.choice(["\n", "\r\n"]))  # minimal, all, what is no number
    content = frame.to_csv(index=False, na_rep=null, quoting=quoting, lineterminator=end).encode()
    mark, is_packed = bool(rng.integers(2)), bool(rng.integers(2))
    content = b"\xef\xbb\xbf" * mark + content
    path.write_bytes(gzip.compress(content) if is_packed else content)
    return f"csv, null {null!r}, quoting {quoting}, {end!r}, mark {mark}, gzip {is_packed}"


WRITERS: dict[str, Write] = {
    "pyarrow": by_pyarrow, "pandas": by_pandas, "polars": by_polars, "duckdb": by_duckdb, "csv": as_csv,
}  # fmt: skip


def batches(folder: Path, kind: str) -> Iterator[bytes]:
    (folder / "schema.toml").write_text(SCHEMA)
    data = open_dataset(f"{kind}:{folder / 'data'}", DataOptions(schema_path=folder / "schema.toml", holdout=0.2))
    for batch in (*data.train(64), *data.evaluation(64)):
        yield b"".join(array.tobytes() for array in (batch.dense, batch.ids, batch.offsets, batch.labels))
    assert not data.rejects()


@pytest.mark.parametrize("writer", WRITERS)
def test_one_data_set_in_every_format_gives_equal_batches(tmp_path: Path, writer: str) -> None:
    if writer not in ("csv", "pyarrow"):
        pytest.importorskip(writer, reason=f"{writer} is not installed")
    campaign = Campaign(f"formats, {writer}", 3)
    for seed, rng in campaign.tries():
        table = rows_of(np.random.default_rng(seed))
        pq.write_table(table, tmp_path / "data")
        expected = list(batches(tmp_path, "parquet"))
        (tmp_path / "data").unlink()
        written = WRITERS[writer](table, tmp_path / "data", rng)
        assert list(batches(tmp_path, "csv" if writer == "csv" else "parquet")) == expected, written
        campaign.came("equal")
        (tmp_path / "data").unlink()


@pytest.mark.skipif(not SECONDS, reason="a training for each format: scripts/attack")
def test_one_data_set_in_every_format_trains_equal_weights(tmp_path: Path) -> None:
    weights = dict[str, dict[str, bytes]]()
    table, rng = rows_of(np.random.default_rng(0)), np.random.default_rng(1)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    for writer, write in WRITERS.items():
        try:
            write(table, tmp_path / "data", rng)
        except pytest.skip.Exception:
            continue
        config = TrainConfig(
            data=f"{'csv' if writer == 'csv' else 'parquet'}:{tmp_path / 'data'}",
            data_options={"schema_path": tmp_path / "schema.toml", "holdout": 0.2, "shuffle_buffer": 64},
            batch_size=64,
            out=str(tmp_path / writer),
            tensorboard=False,
            tier={"device_rows": "100%", "device": "cpu"},
        )
        train_run(config)
        files = sorted((tmp_path / writer / "weights").glob("*.npy"))
        weights[writer] = {path.name: path.read_bytes() for path in files}
        (tmp_path / "data").unlink()
    assert len(weights) > 2 and all(len(one) > 3 for one in weights.values())
    assert all(one == weights["pyarrow"] for one in weights.values())


def test_types_without_a_meaning_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text(SCHEMA)
    options = DataOptions(schema_path=tmp_path / "schema.toml")
    table = rows_of(np.random.default_rng(0))
    for name, values in {"city": pa.array([{"a": 1}] * ROWS), "user": pa.array([1] * ROWS).cast(pa.date64())}.items():
        pq.write_table(table.set_column(table.schema.get_field_index(name), name, values), tmp_path / "data")
        with pytest.raises(ConfigError, match=f"column '{name}': expected categories"):
            open_dataset(f"parquet:{tmp_path / 'data'}", options)
