"""`examine_data`: one pass over the first rows of some data, and all findings of `doctor --data`.

Letters: n rows, L lookups of a feature.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import concatenate
from adaptive.data import findings
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset
from adaptive.data.findings import Categories, Finding, Ids, Sample, listed
from adaptive.data.open import open_source
from adaptive.data.rows.rejects import MEANINGS
from adaptive.data.rows.row_dataset import RowData, sample_of
from adaptive.data.rows.row_source import Block
from adaptive.errors import InputError
from adaptive.kernels.planning.keys import hash_keys
from adaptive.system import usable_cores

MOST_ROWS: Final = 1_000_000
_MOST_VALUES = 1 << 26  # of all rows; a value takes 20 bytes
_LOOK_ROWS, _BATCH = 1 << 12, 1 << 14
_DUPLICATES = 0.1  # share of the rows; lines of invoices without their times have 0.07 by nature
_LATE, _LATE_ROWS = 0.01, 1e-3  # share of the time between first and last row, less is jitter of writers; of the rows
_SHARED = 0.5  # share of the ids that are not alone in their row
_UNSEEN, _JUMP = 0.9, 0.3  # share of the lookups of a tenth of the rows, and its growth from the tenth before
_FEWEST_ROWS = 1000  # for shares of a tenth


def examine_data(spec: str, options: DataOptions) -> tuple[int, list[Finding]]:
    """Read the training rows of some data, up to a million; return their number and all findings, the worst first.

    Raises:
        ConfigError: if spec, schema or options are wrong.
        InputError: if a file cannot be read, or there are no rows.
    """
    no_limits = {"max_bad_fraction": 1.0}  # bad lines are findings
    opened = open_source(spec, options.model_copy(update=no_limits))
    faults = list[Finding]()
    if isinstance(opened, Dataset):
        batches = islice(opened.train(_BATCH), MOST_ROWS // _BATCH)
        sample = Sample.of_batch(concatenate(list(batches)), opened)
    else:
        sample, log = _read(opened), opened.opened.source.log
        faults += [opened.finding] if opened.finding is not None else []
        for cause in sorted(log.counts.keys() - {"empty"}, key=lambda cause: (cause != "float", cause)):
            kind, (where, what) = "float ids" if cause == "float" else "bad lines", log.first_of(cause)
            what, mend = f"bad lines ({log.counts[cause]:,}): {what}", MEANINGS[cause].rstrip(".")
            faults.append(Finding.of(kind, what, where, mend))
        if not len(sample) and not faults:
            raise InputError(f"{spec}: expected rows, got none. Check the files.")
    faults += examine(sample, may_exceed=options.out_of_range == "oov") if len(sample) else []
    return len(sample), faults


def _read(data: RowData) -> Sample:
    """Return the first rows, as many as fit."""
    source, pieces, _ = data.opened
    form = source.formats[pieces[0]]
    look = Block.empty(form, _LOOK_ROWS)
    with source.reader(pieces) as reader:
        rows = max(reader.read(look), 1)
    lookups = form.count("keys") + int(look.columns.bag_ends[rows * form.count("bags")]) // rows
    values = lookups + form.count("dense") + 1
    block = Block.empty(form, min(MOST_ROWS, max(_MOST_VALUES // values, _LOOK_ROWS)))
    with source.reader(pieces) as reader:
        reader.read(block)
    return sample_of(block, source, data.plan)


def examine(sample: Sample, *, may_exceed: bool) -> list[Finding]:
    """Return the findings of a sample, the worst first; ids beyond their table are none if they `may_exceed` it."""
    with ThreadPoolExecutor(usable_cores()) as pool:
        tables = list(pool.map(lambda table: _table_facts(sample, table), sample.tables))
    return [
        *(() if may_exceed else _beyond(sample)),
        *findings.leaks(sample, {name: auc for table in tables for name, auc in table.aucs.items()}),
        *findings.one_class(sample),
        *findings.milliseconds(sample),
        *findings.unscaled(sample),
        *_constant(sample),
        *_duplicates(sample),
        *_late(sample),
        *_crowded(tables),
        *_unseen(sample, tables),
    ]


class _TableFacts(NamedTuple):
    """Facts about the ids of a table; by feature: AUC, and share of the lookups of a tenth of the rows with new ids."""

    name: str
    first: Categories  # of its features
    distinct: Ids
    num_admitted: int  # ids with so many lookups that keys get a row
    aucs: dict[str, float]
    new_before: dict[str, float]  # in the last tenth but one
    new_last: dict[str, float]


def _table_facts(sample: Sample, table: str) -> _TableFacts:
    (distinct, parts), n = sample.numbered(table), len(sample)

    def new_shares(begin: int, end: int) -> dict[str, float]:
        is_seen = np.zeros(len(distinct), np.bool_)
        for column, codes in parts:
            is_seen[codes[: column.lookups_of(begin)]] = True
        tenths = {column.name: codes[column.lookups_of(begin) : column.lookups_of(end)] for column, codes in parts}
        return {name: float((~is_seen[tenth]).mean()) for name, tenth in tenths.items() if len(tenth)}

    first = sample.tables[table][0]
    counts = sum(np.bincount(codes, minlength=len(distinct)) for _, codes in parts)
    num_admitted = int(np.sum(counts >= (1 if first.rules is None else first.rules.admit)))
    aucs = {column.name: findings.feature_auc(sample, column, len(distinct), codes) for column, codes in parts}
    before, last = new_shares(n * 8 // 10, n * 9 // 10), new_shares(n * 9 // 10, n)
    return _TableFacts(table, first, distinct, num_admitted, aucs, before, last)


def _beyond(sample: Sample) -> Iterator[Finding]:
    for column in sample.categories:
        is_it = (column.keys < 0) | (column.keys >= column.rows)
        if column.setting == "num_embeddings" and is_it.any():
            got = f"{column.keys[is_it.argmax()]} ({is_it.sum():,} such lookups)"
            what = f"expected ids from 0 to {column.rows - 1} for {column.name}, got {got}"
            size = max(int(column.keys.max()) + 1, 1)
            yield Finding.of("ids beyond", what, sample.where_of(column, is_it), str(size))


def _constant(sample: Sample) -> Iterator[Finding]:
    """Find columns without values, or with one value."""
    values = [
        (name, column[~np.isnan(column)]) for name, column in zip(sample.dense_names, sample.dense.T, strict=True)
    ]
    values += [(column.name, column.keys) for column in sample.categories]
    empty = [name for name, present in values if not len(present)]
    full = [(name, present) for name, present in values if len(present) >= len(sample) > 1]
    constant = [name for name, present in full if present.min() == present.max()]
    if empty or constant:
        texts = [f"{kind} {listed(names)}" for kind, names in (("empty", empty), ("constant", constant)) if names]
        what = f"expected columns whose values differ, got {' and '.join(texts)}"
        yield Finding.of("constant", what, sample.where(0))


def _duplicates(sample: Sample) -> Iterator[Finding]:
    """Find rows that are equal in all columns of the schema."""
    hashes, is_copy = _row_hashes(sample), np.ones(len(sample), np.bool_)
    is_copy[np.unique(hashes, return_index=True)[1]] = False
    if (share := is_copy.mean()) > _DUPLICATES:
        copy = int(is_copy.argmax())
        original = sample.where(int((hashes == hashes[copy]).argmax()))
        what = f"{share:.0%} of the rows are copies of earlier ones, such as of {original}"
        yield Finding.of("duplicates", what, sample.where(copy))


def _row_hashes(sample: Sample) -> NDArray[np.uint64]:
    """Return a hash of all values of each row (n,)."""
    hashes = np.zeros(len(sample), np.uint64)
    columns = [sample.labels, *sample.dense.T, *(() if sample.times is None else (sample.times,))]
    for values in columns:
        hashes = _mixed(hashes * np.uint64(3) + np.nan_to_num(values, nan=-1e-30).astype(np.float64).view(np.uint64))
    for column in sample.categories:
        sums = np.cumsum(np.append(np.uint64(0), _mixed(column.keys.view(np.uint64) + np.uint64(1))))
        # They wrap around, so that differences are exact.
        hashes = _mixed(hashes * np.uint64(3) + sums[column.ends] - sums[column.ends - column.sizes])
    return hashes


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    hashes = np.empty(len(values), np.uint64)
    hash_keys(values.view(np.int64), np.uint64(0), hashes)
    return hashes


def _late(sample: Sample) -> Iterator[Finding]:
    """Find rows that are earlier than rows before them."""
    if (times := sample.times) is None:
        return
    is_late = np.maximum.accumulate(times) - times > _LATE * (times.max() - times.min())
    if is_late.mean() > _LATE_ROWS:
        what = f"{int(is_late.sum()):,} rows are earlier than rows before them"
        yield Finding.of("late", what, sample.where(int(is_late.argmax())))


def _crowded(tables: list[_TableFacts]) -> Iterator[Finding]:
    """Find tables that have too few rows for their ids."""
    # Of n ids, one is alone in its row with the probability exp(-n / rows).
    hashed = [table for table in tables if table.first.setting == "hash_rows"]
    hashed = [table for table in hashed if len(table.distinct) > -math.log(1 - _SHARED) * table.first.rows]
    keyed = [table for table in tables if table.first.rules is not None and table.first.rules.expire is None]
    keyed = [table for table in keyed if table.num_admitted > table.first.rows]
    for kind, small, factor in (("hash_rows", hashed, 4), ("capacity", keyed, 1.25)):
        sizes = [(table, len(table.distinct) if small is hashed else table.num_admitted) for table in small]
        if sizes:
            texts = [f"{table.name} ({size:,} ids in {table.first.rows:,} rows)" for table, size in sizes]
            mend = listed([f"{_rounded(factor * size):_} ({table.name})" for table, size in sizes])
            yield Finding.of(kind, f"{kind} is small for {listed(texts)}", "all rows", mend)


def _rounded(number: float) -> int:
    """Return the next larger number of two digits and zeros."""
    unit: int = 10 ** max(math.floor(math.log10(number)) - 1, 0)
    return math.ceil(number / unit) * unit


def _unseen(sample: Sample, tables: list[_TableFacts]) -> Iterator[Finding]:
    """Find columns whose ids in the last tenth of the rows are new."""
    new = [
        f"{name} ({share:.0%})"
        for table in tables
        for name, share in table.new_last.items()
        if share > _UNSEEN or share > table.new_before.get(name, 1.0) + _JUMP
    ]
    if new and len(sample) >= _FEWEST_ROWS:
        what = f"no row before has the ids of most lookups of the last tenth of the rows: {listed(new)}"
        yield Finding.of("unseen", what, sample.where(len(sample) * 9 // 10))
