"""Score all samples of some data; write the scores to csv, npy or parquet."""

import codecs
import csv
import importlib.util
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.errors import ConfigError, InputError, OutputError
from adaptive.storage.durable import replace_file
from adaptive.training.components import torch_settings
from adaptive.training.runs.loading import NO_SETTINGS, LoadedRun, Settings, data_of, load_with
from adaptive.training.telemetry.report import SCHEMA

Scores = Iterable[NDArray[np.float32]]
Rows = Sequence[Sequence[Any]]  # values of columns, sample by sample
COLUMN: Final = "score"


def predict_run(
    run_directory: Path | str,
    out: Path | str,
    *,
    data: str | None = None,
    columns: Sequence[str] = (),
    settings: Settings = NO_SETTINGS,
) -> dict[str, Any]:
    """Write the probability of label 1 for each sample, in the order of the data.

    Rows stay in the host tier of the run: those in files are never all in memory.

    Args:
        out: a file that ends in .csv (column `score`), .parquet (the same; requires pyarrow) or .npy (float32). It is
            replaced atomically.
        data: None: the evaluation part of the run's data; or others, see `adaptive.training.runs.loading.data_of`.
            They need no label column. No line may be bad unless `settings` allow it.
        columns: of the data, csv or parquet, to write as they are there before the scores, to .csv or .parquet.
        settings: as in `evaluate_run`.

    Returns:
        `run_dir`, `data`, `out`, `samples` and `mean_score`.

    Raises:
        CheckpointError: if the run or its weights are missing or damaged.
        ConfigError: for an invalid `out` or settings, or a data format with sampled negatives.
        InputError: if the data do not fit the run, or have no sample.
        OutputError: if `out` cannot be written.
    """
    path = Path(out)
    check_scores_file(path)
    if columns and path.suffix == ".npy":
        raise ConfigError(f"expected a .csv or .parquet file for columns next to scores, got {str(path)!r} (--out)")
    strict = {"data.max_bad_fraction": 0.0} if data is not None else {}
    with load_with(Path(run_directory), {**strict, **settings}) as run:
        _refuse_drawn(run, data)
        dataset = data_of(run, data, may_lack_labels=True)
        mean, batches, passed = _Mean(), dataset.evaluation(run.config.eval_batch_size), None
        if columns:
            passed = Passed(columns, dataset.raw_values(columns))
            batches = passed.noting(batches)
        with torch_settings(run.config):
            samples = write_scores(path, _at_least_one(mean.of(run.predict(batches)), run, data), passed)
        return {
            "schema": SCHEMA,
            "run_dir": str(run.path),
            "data": data or run.config.data,
            "out": str(path),
            "samples": samples,
            "mean_score": mean.total / samples,
        }


class Passed:
    """Columns of the data that are written before the scores."""

    def __init__(self, names: Sequence[str], values_of: Callable[[Batch], Rows]) -> None:
        self.names, self._values_of, self._noted = tuple(names), values_of, deque[Rows]()

    def noting(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches and keep their values until `take`."""
        for batch in batches:
            self._noted.append(self._values_of(batch))
            yield batch

    def take(self) -> Rows:
        """Return the values of the samples of the next batch."""
        return self._noted.popleft()


class _Mean:
    """Sums scores as they pass."""

    def __init__(self) -> None:
        self.total = 0.0

    def of(self, parts: Iterator[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
        for part in parts:
            self.total += float(part.sum(dtype=np.float64))
            yield part


def _at_least_one(
    parts: Iterator[NDArray[np.float32]], run: LoadedRun, data: str | None
) -> Iterator[NDArray[np.float32]]:
    """Yield the parts; raise InputError if there are none."""
    first = next(parts, None)
    if first is None:
        raise InputError(
            f"expected at least one sample, got none ({data or f'the evaluation part of the data of {run.path}'}). "
            "Pass other data with --data SPEC"
        )
    yield first
    yield from parts


def _refuse_drawn(run: LoadedRun, data: str | None) -> None:
    description = run.record.get("data")
    kind = description.get("format") if isinstance(description, dict) else None
    if data is not None and kind == "taobao":  # a sample is no line of the data
        raise ConfigError(
            f"expected a data format with one sample per line, got taobao with sampled negatives ({run.path}). Omit "
            "--data to score the evaluation part, or score batches in Python: adaptive.load_run(RUN).predict(batches)"
        )


# -- files of scores, written batch by batch -------------------------------------------------------------------------


def check_scores_file(path: Path) -> None:
    """Raise ConfigError unless scores can be written to a file of this name."""
    if path.suffix not in _WRITERS:
        raise ConfigError(f"expected a file that ends in {', '.join(_WRITERS)}, got {str(path)!r} (--out)")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"--out {path}: Parquet requires pyarrow. Run pip install pyarrow, or write .csv or .npy")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"expected an existing folder, got {path.parent} (--out). Create it, or choose another file")


def write_scores(path: Path, scores: Scores, passed: Passed | None = None) -> int:
    """Write scores, (B,) each, replacing the file atomically; return the number of samples.

    Args:
        passed: columns to write before them, not to npy.

    Raises:
        OutputError: if the file cannot be written.
    """
    counts: list[int] = []
    try:
        replace_file(path, lambda file: counts.append(_WRITERS[path.suffix](file, scores, passed)))
    except OSError as error:
        raise OutputError(f"{path} could not be written: {error}") from error
    return counts[0]


def _write_csv(file: BinaryIO, scores: Scores, passed: Passed | None) -> int:
    """Write a header and a line per sample; nine digits restore each float32 exactly."""
    count = 0
    lines = csv.writer(codecs.getwriter("utf-8")(file), lineterminator="\n")
    lines.writerow([*(passed.names if passed else ()), COLUMN])
    for part in scores:
        rows = passed.take() if passed else [()] * len(part)
        lines.writerows([*row, f"{score:.9g}"] for row, score in zip(rows, part.tolist(), strict=True))
        count += len(part)
    return count


def _write_npy(file: BinaryIO, scores: Scores, passed: Passed | None) -> int:
    """Write the values, then the header in front of them: it holds the number of samples."""

    def write_header(count: int) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(file, header)  # padded, so its length does not depend on `count`

    count = 0
    write_header(count)
    for part in scores:
        file.write(np.ascontiguousarray(part, "<f4").tobytes())
        count += len(part)
    file.seek(0)
    write_header(count)
    file.seek(0, 2)
    return count


def _write_parquet(file: BinaryIO, scores: Scores, passed: Passed | None) -> int:
    """Write a column of float32, a row group per batch; passed columns are in memory, so that their types are known."""
    import pyarrow
    import pyarrow.parquet

    if passed is not None:
        parts, rows = list[NDArray[np.float32]](), list[Sequence[Any]]()
        for part in scores:
            parts.append(part)
            rows += passed.take()
        columns = [*zip(*rows, strict=True), np.concatenate(parts)]
        table = pyarrow.table(list(map(pyarrow.array, columns)), names=[*passed.names, COLUMN])
        pyarrow.parquet.write_table(table, file)
        return len(rows)
    schema, count = pyarrow.schema([(COLUMN, pyarrow.float32())]), 0
    with pyarrow.parquet.ParquetWriter(file, schema) as writer:
        for part in scores:
            writer.write_table(pyarrow.table({COLUMN: pyarrow.array(part)}, schema=schema))
            count += len(part)
    return count


_Writer = Callable[[BinaryIO, Scores, Passed | None], int]
_WRITERS: Final[dict[str, _Writer]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".npy": _write_npy,
}
