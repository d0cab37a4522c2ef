"""Criteo's click logs in their original format (Kaggle 2014 and the terabyte set).

A line has a label (0 or 1), 13 integers and 26 categories of hex digits, separated by tabs. All but the label may be
empty, which means missing. Files without the label column (39 columns: the test set of the competition) get labels NaN,
for predictions only. Dense inputs are log(1 + max(x, 0)) as in facebookresearch/dlrm, and missing ones 0.

A category is hashed into `hash_rows` rows of its feature's table, followed by a row for missing ones. With
`vocabulary = true`, each category that occurs `min_count` times has a row, followed by a row for all others and a row
for missing ones.
"""

from pathlib import Path

import numpy as np

from adaptive.data.data_options import DataOptions
from adaptive.data.kernels import text as kernels
from adaptive.data.rows.data_files import DataFile
from adaptive.data.rows.row_dataset import FeaturePlan, RowDataset, RowPlan, RowRule, open_rows
from adaptive.data.rows.row_source import Column, RowFormat
from adaptive.data.text.text_reader import first_line, open_text_files

NUM_DENSE, NUM_CATEGORIES = 13, 26

_LABEL = (Column("label", kernels.LABEL_BINARY),)
_INPUTS = tuple(Column(f"I{i + 1}", kernels.DENSE_INTEGER) for i in range(NUM_DENSE)) + tuple(
    Column(f"C{i + 1}", kernels.KEY_HEX) for i in range(NUM_CATEGORIES)
)


def open_criteo(paths: str, options: DataOptions, run_dir: Path | None) -> RowDataset:
    """Open the data set `criteo:PATH[,PATH...]`."""

    def format_of(file: DataFile) -> RowFormat:
        has_label = first_line(file, options.max_line_bytes).count(b"\t") + 1 != len(_INPUTS)
        columns = _LABEL + _INPUTS if has_label else _INPUTS
        return RowFormat(columns, separator="\t", max_line_bytes=options.max_line_bytes)

    opened, rule = open_text_files(paths, options, run_dir, format_of=format_of), RowRule.of(options)
    features = tuple(FeaturePlan(f"C{i + 1}", f"C{i + 1}", i, False, rule, "hex") for i in range(NUM_CATEGORIES))
    identity: dict[str, object] = {"format": "criteo", "rows": rule.kind, "rows_setting": rule.size}
    return open_rows(opened, RowPlan(features, np.ones(NUM_DENSE, np.bool_), None, identity), options, run_dir=run_dir)
