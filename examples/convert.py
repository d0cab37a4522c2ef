"""Convert arrays of click data to Parquet and a schema, which `adaptive-train` trains on.

Run: python examples/convert.py kaggleAdDisplayChallenge_processed.npz clicks.parquet

It reads three kinds of files:

* dlrm's `.npz`: `X_int` (samples, dense inputs), `X_cat` (samples, features), `y` (samples,), and `counts` (features,),
  the rows of each table.
* MLPerf's binary records of 40 int32, little-endian: label, 13 dense inputs, 26 ids. `--counts day_fea_count.npz` has
  the rows of each table. Without it, the ids are hashed.
* TBSM's `.npz`: `X_cat` (features, samples, steps), `X_int` (dense inputs, samples, steps), `y` (samples,). The last
  step is the candidate, the earlier ones are its history, for `--model din`.

`--modulo N` takes the ids modulo N, as dlrm's `--max-ind-range` does. Next to `clicks.parquet` it writes `clicks.toml`:

    adaptive-train run --data parquet:clicks.parquet --schema clicks.toml --set data.holdout=0.1
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RECORD = ("<i4", (40,))  # label, 13 dense inputs, 26 ids
GROUP = 1 << 17  # rows of a row group


def main(arguments: list[str] | None = None) -> None:
    """Convert one file."""
    parser = argparse.ArgumentParser(description="Convert arrays of click data to Parquet and a schema.")
    parser.add_argument("source", type=Path, help=".npz file of dlrm or TBSM, or MLPerf's records")
    parser.add_argument("target", type=Path, help="Parquet file to write; the schema goes to the same name with .toml")
    parser.add_argument("--counts", type=Path, help=".npz file whose array counts has the rows of each table")
    parser.add_argument("--modulo", type=int, help="take ids modulo this number")
    given = parser.parse_args(arguments)
    if given.target.suffix != ".parquet":
        parser.error(f"expected a target that ends with .parquet, got {given.target}")
    try:
        tables, schema = read(given.source, given.counts, given.modulo)
    except (OSError, KeyError, ValueError) as error:
        parser.error(f"{given.source}: {error}")
    first = next(tables)
    with pq.ParquetWriter(given.target, first.schema) as writer:
        for table in (first, *tables):
            writer.write_table(table)
    given.target.with_suffix(".toml").write_text(schema)
    print(f"{given.target}, {given.target.with_suffix('.toml')}")


def read(source: Path, counts_path: Path | None, modulo: int | None) -> tuple[Iterator[pa.Table], str]:
    """Return the tables of a file and their schema."""
    counts = None
    if counts_path is not None:
        with np.load(counts_path) as file:
            counts = file["counts"]
    if source.suffix != ".npz":
        records = np.memmap(source, np.dtype(RECORD), "r")
        return clicks(records[:, 0], records[:, 1:14], records[:, 14:], counts, modulo)
    with np.load(source) as file:  # no pickled objects
        dense, ids, labels = file["X_int"], file["X_cat"], file["y"]
        counts = file.get("counts", counts)
    if not (ids == np.floor(ids)).all() or ids.min() < 0:
        raise ValueError("expected whole numbers from 0 in X_cat, got others")
    if ids.ndim == 3:
        return sequences(labels, dense, ids.astype(np.int64))
    return clicks(labels, dense, ids.astype(np.int64), counts, modulo)


def clicks(
    labels: np.ndarray[Any, Any],
    dense: np.ndarray[Any, Any],
    ids: np.ndarray[Any, Any],
    counts: np.ndarray[Any, Any] | None,
    modulo: int | None,
) -> tuple[Iterator[pa.Table], str]:
    """Return tables and schema of labels (N,), dense inputs (N, D) and ids (N, F)."""
    names = [f"I{i + 1}" for i in range(dense.shape[1])], [f"C{i + 1}" for i in range(ids.shape[1])]

    def groups() -> Iterator[pa.Table]:
        for first in range(0, len(labels), GROUP):
            rows = slice(first, first + GROUP)
            part = ids[rows] if modulo is None else ids[rows] % modulo
            columns = {"label": labels[rows].astype(np.int8)}
            columns |= dict(zip(names[0], dense[rows].T, strict=True)) | dict(zip(names[1], part.T, strict=True))
            yield pa.table({name: np.ascontiguousarray(column) for name, column in columns.items()})

    features = []
    for name, count in zip(names[1], [None] * ids.shape[1] if counts is None else counts, strict=True):
        size = min(int(count), modulo or int(count)) if count is not None else None
        features.append(feature([name], f"num_embeddings = {size}" if size else "hash_rows = 1_000_000"))
    return groups(), schema_of(names[0], features, transform="log")


def sequences(
    labels: np.ndarray[Any, Any], dense: np.ndarray[Any, Any], ids: np.ndarray[Any, Any]
) -> tuple[Iterator[pa.Table], str]:
    """Return table and schema of labels (N,), dense inputs (D, N, S) and ids (F, N, S)."""
    names = ["user", "item", "category"] if len(ids) == 3 else [f"c{f + 1}" for f in range(len(ids))]
    columns = {"label": pa.array(labels.astype(np.int8))}
    columns |= {f"I{i + 1}": pa.array(np.ascontiguousarray(column[:, -1])) for i, column in enumerate(dense)}
    features = []
    for name, steps in zip(names, ids, strict=True):
        columns[name] = pa.array(np.ascontiguousarray(steps[:, -1]))
        mapping = f"num_embeddings = {steps.max() + 1}"
        features.append(feature([name], mapping, f'table = "{name}"'))
        if name != "user":  # one user has all steps of a sample
            history = np.ascontiguousarray(steps[:, :-1]).ravel()
            columns[f"{name}_history"] = pa.FixedSizeListArray.from_arrays(pa.array(history), steps.shape[1] - 1)
            length = f"max_length = {steps.shape[1] - 1}"
            features.append(feature([f"{name}_history"], mapping, f'table = "{name}"', "sequence = true", length))
    return iter([pa.table(columns)]), schema_of([f"I{i + 1}" for i in range(len(dense))], features)


def feature(columns: list[str], *lines: str) -> str:
    """Return the TOML of a category."""
    return "\n".join(["[[categorical]]", f"columns = {json.dumps(columns)}", 'kind = "int"', *lines, ""])


def schema_of(dense: list[str], features: list[str], transform: str = "none") -> str:
    """Return the text of a schema."""
    lines = ["[label]", 'column = "label"', ""]
    if dense:
        lines += ["[[dense]]", f"columns = {json.dumps(dense)}", f'transform = "{transform}"', ""]
    return "\n".join([*lines, *features])


if __name__ == "__main__":
    main()
