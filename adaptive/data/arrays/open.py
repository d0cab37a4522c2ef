"""Files of arrays as data sets: `dlrm:PATH[,PATH...]` and `mlperf:PATH[,PATH...]`.

Dense inputs are log(1 + max(x, 0)), as dlrm scales them when it reads these files, whose negative ones are 0.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive.data.arrays.processed import checked_counts, read_processed
from adaptive.data.arrays.records import NUM_DENSE, NUM_FEATURES, open_records
from adaptive.data.arrays.source import ArraySource, Samples, array_format
from adaptive.data.npz import load_arrays
from adaptive.data.options import DataOptions
from adaptive.data.rows.assemble import FeaturePlan, RowRule, TextPlan, limits, open_text
from adaptive.data.rows.dataset import TextDataset
from adaptive.data.rows.rejects import RejectLog
from adaptive.data.text.source import TextFile, find_files
from adaptive.errors import ConfigError, InputError


def open_processed(paths: str, options: DataOptions, *, run_dir: Path | None = None) -> TextDataset:
    """The data set of `dlrm:PATH[,PATH...]`; see `adaptive.data.open.open_dataset`. Ids are rows."""
    _check_options("dlrm:", options)
    train, files = _files(paths, options)
    found = [read_processed(file) for file in files]
    shapes = [(one.columns.dense.shape[1], one.columns.keys.shape[1]) for one in found]
    for one, shape in zip(found, shapes, strict=True):
        if shape != shapes[0]:
            raise InputError(
                f"{one.name}: {shape[0]} dense inputs and {shape[1]} features, but {found[0].name}: {shapes[0][0]} and "
                f"{shapes[0][1]}"
            )
    rules = _direct(np.max([one.counts for one in found], axis=0), options.id_range)
    return _open("dlrm", (files, train), found, shapes[0], rules, options, run_dir)


def open_mlperf(paths: str, options: DataOptions, *, run_dir: Path | None = None) -> TextDataset:
    """The data set of `mlperf:PATH[,PATH...]`; see `adaptive.data.open.open_dataset`.

    With `counts_path` ids are rows; otherwise they are hashed or get rows by a vocabulary, as Criteo's categories are.
    """
    _check_options("mlperf:", options)
    train, files = _files(paths, options)
    found = [open_records(file) for file in files]
    if options.counts_path is not None:
        if options.vocabulary:
            raise ConfigError(
                "mlperf: counts_path says that ids are rows, so there is no vocabulary; give one of the two"
            )
        (counts,) = load_arrays(options.counts_path, ("counts",), "dlrm's")
        rules = _direct(checked_counts(counts, NUM_FEATURES, options.counts_path), options.id_range)
    else:
        rule = RowRule("fitted", options.min_count) if options.vocabulary else RowRule("hashed", options.hash_rows)
        rules = [rule] * NUM_FEATURES
    return _open("mlperf", (files, train), found, (NUM_DENSE, NUM_FEATURES), rules, options, run_dir)


def _check_options(what: str, options: DataOptions) -> None:
    if options.schema_path is not None or options.time_split is not None:
        raise ConfigError(f"{what} has no schema and no times; remove schema_path and time_split")


def _files(paths: str, options: DataOptions) -> tuple[int, tuple[TextFile, ...]]:
    """How many files are for training, and all of them, those first."""
    train = find_files(paths)
    return len(train), train + (find_files(options.eval_data) if options.eval_data is not None else ())


def _direct(counts: NDArray[np.int64], id_range: int | None) -> list[RowRule]:
    """Ids are rows, of a table of that many, or of `id_range` if that is less."""
    sizes = counts if id_range is None else np.minimum(counts, id_range)
    return [RowRule("direct", int(size), has_missing=False) for size in sizes]


def _open(
    what: str,
    files: tuple[tuple[TextFile, ...], int],
    found: Sequence[Samples],
    shape: tuple[int, int],
    rules: Sequence[RowRule],
    options: DataOptions,
    run_dir: Path | None,
) -> TextDataset:
    names, (everything, num_train) = tuple(one.name for one in found), files
    log = RejectLog(names, limits(options), run_dir and run_dir / "rejects.jsonl", unit="samples")
    source = ArraySource(everything, tuple(found), (array_format(*shape),) * len(found), log, options.id_range)
    features = tuple(FeaturePlan(f"C{i + 1}", f"C{i + 1}", i, False, rule, "int") for i, rule in enumerate(rules))
    identity: dict[str, object] = {"format": what, "rows": rules[0].kind, "rows_setting": [rule.size for rule in rules]}
    identity["id_range"] = options.id_range
    parts = tuple(range(num_train)), tuple(range(num_train, len(found)))
    plan = TextPlan(features, np.ones(shape[0], np.bool_), None, identity)
    return open_text((source, *parts), plan, options, run_dir=run_dir)
