"""Files of scores, one for each sample in order, of several labels one each; written in pieces: csv, npy, parquet."""

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.errors import ConfigError, OutputError
from adaptive.storage.durable import replace_file

Scores = Iterable[NDArray[np.float32]]
COLUMN: Final = "score"
COLUMNS: Final = (COLUMN,)
_NPY_HEADER: Final = 128  # bytes, enough for any length


def check_scores_file(path: Path) -> None:
    """Check that scores can be written to a file of this name, before anything is computed.

    Raises:
        ConfigError: if its ending is none of the three, or pyarrow is wanted and not there.
    """
    if path.suffix not in _WRITERS:
        raise ConfigError(f"--out {path}: needed a file that ends in {', '.join(_WRITERS)}, found {path.suffix!r}")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"--out {path}: Parquet needs pyarrow: pip install pyarrow, or write .csv or .npy")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--out {path}: there is no folder {path.parent}; make it, or write elsewhere")


def columns_of(labels: Sequence[str]) -> tuple[str, ...]:
    """Names of the columns of scores, of no labels the one of a model that has one."""
    return tuple(f"{COLUMN}_{label}" for label in labels) or COLUMNS


def write_scores(path: Path, scores: Scores, columns: Sequence[str] = COLUMNS) -> int:
    """Write scores; the file is there whole afterwards, or as it was before. Returns of how many samples.

    Args:
        scores: (B,) or, of several columns, (B, T) each; npy keeps these shapes.

    Raises:
        OutputError: if it cannot be written.
    """
    counts: list[int] = []
    try:
        replace_file(path, lambda file: counts.append(_WRITERS[path.suffix](file, scores, columns)))
    except OSError as error:
        raise OutputError(f"{path} could not be written: {error}") from error
    return counts[0]


def _write_csv(file: BinaryIO, scores: Scores, columns: Sequence[str]) -> int:
    """A header, then a sample a line; nine digits give each float32 back."""
    count = 0
    file.write(f"{','.join(columns)}\n".encode())
    for part in scores:
        rows = part.reshape(len(part), -1).tolist()
        file.write("".join(",".join(f"{score:.9g}" for score in row) + "\n" for row in rows).encode())
        count += len(part)
    return count


def _write_npy(file: BinaryIO, scores: Scores, columns: Sequence[str]) -> int:
    """The header is written last: it says how many there are."""
    count = 0
    file.write(bytes(_NPY_HEADER))
    for part in scores:
        file.write(np.ascontiguousarray(part, "<f4").tobytes())
        count += len(part)
    shape = f"({count}, {len(columns)})" if len(columns) > 1 else f"({count},)"
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    content = text.encode().ljust(_NPY_HEADER - 11) + b"\n"
    file.seek(0)
    file.write(b"\x93NUMPY\x01\x00" + len(content).to_bytes(2, "little") + content)
    file.seek(0, 2)
    return count


def _write_parquet(file: BinaryIO, scores: Scores, columns: Sequence[str]) -> int:
    """Columns of float32; a row group for each batch."""
    import pyarrow
    import pyarrow.parquet

    schema, count = pyarrow.schema([(name, pyarrow.float32()) for name in columns]), 0
    with pyarrow.parquet.ParquetWriter(file, schema) as writer:
        for part in scores:
            parts = part.reshape(len(part), -1).T
            found = {name: pyarrow.array(one) for name, one in zip(columns, parts, strict=True)}
            writer.write_table(pyarrow.table(found, schema=schema))
            count += len(part)
    return count


_WRITERS: Final[dict[str, Any]] = {".csv": _write_csv, ".parquet": _write_parquet, ".npy": _write_npy}
