"""Faults of data that no reader refuses: a sample of rows, and the findings that a few thousand rows are enough for.

Letters: n rows of a sample, D dense inputs, L lookups of a feature.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.batch.batch import Origin
from adaptive.config import KeyRules
from adaptive.data.dataset import Dataset, tables_of
from adaptive.data.rows.rejects import MEANINGS
from adaptive.data.rows.split import MILLISECONDS

SHORT: Final = 1 << 12  # rows whose examination takes milliseconds, which the start of a run does not show
SHOWN: Final = 5  # columns in a finding

_LARGE = 100.0  # root mean square from which an input costs AUC: 0.003 at 100, 0.01 at 1,000, all of it at 10,000
_LEAK = 0.98  # AUC of one column; the best columns of click logs have 0.7
_FEWEST = 10  # samples of each label for an AUC, which is above _LEAK by chance once in 10^13
_ONE_CLASS_ROWS = 1000  # of a longer stream; with 0.5% positives, one in 150 such blocks has none
_BLOCKS = 16  # of consecutive rows, half of them held out
_ADVICE: Final = {  # kind of finding -> why it hurts, what mends it
    "float ids": tuple(MEANINGS["float"].rstrip(".").split(". ", 1)),
    "bad lines": ("a run omits them, and more than data.max_bad_fraction stop it", "{mend}"),
    "ids beyond": ("the run stops there", "Set num_embeddings = {mend}, hash_rows instead, or data.out_of_range=oov"),
    "leak": ("it may be a consequence of the label, which a server does not know yet",
             "Remove it from the schema, or write the value from before the event"),
    "one class": ("nothing can be learned from one class",
                  "Correct [label] in the schema (positive, threshold); mix sorted rows by data.shuffle_buffer"),
    "milliseconds": ("with expire = '14d', keys would expire within minutes",
                     "Divide the column of [time] by 1,000, or write timestamps and set kind = 'iso'"),
    "unscaled": ("they train badly", "Set transform = 'standard' or 'log' for them in the schema"),
    "constant": ("such columns say nothing and take time",
                 "Check the join that made them, separator and null, or remove them from the schema"),
    "duplicates": ("they count twice, and copies of training rows flatter an evaluation",
                   "Name each file once and write distinct rows, or add a column that tells them apart to the schema"),
    "late": ("data.holdout then evaluates on the past, and keys expire at the wrong time",
             "Sort rows and files by the column of [time], or set data.time_split"),
    "hash_rows": ("more than half of the ids share a row with others, whatever they mean",
                  "Set hash_rows = {mend}, for a fifth; or vocabulary = true with min_count"),
    "capacity": ("keys lose their rows, or with when_full = 'error' the run stops",
                 "Set capacity = {mend}, or expire, or a larger admit"),
    "unseen": ("a model knows nothing of such ids: a column may number the rows, or rows be sorted by an id",
               "Remove numbers of rows from the schema; sort rows by time, or mix them by data.shuffle_buffer"),
}  # fmt: skip

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Finding:
    """A fault: its kind, what it is, where (file and line), why it hurts, and the setting that mends it."""

    kind: str
    what: str
    where: str
    why: str
    mend: str

    @classmethod
    def of(cls, kind: str, what: str, where: str, mend: str = "") -> "Finding":
        """Return a finding with the advice for its kind, into which `mend` goes."""
        why, advice = _ADVICE[kind]
        return cls(kind, what, where, why, advice.replace("{mend}", mend))

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: {self.why}. {self.mend}."


@dataclass(frozen=True)
class Categories:
    """The ids of a feature: those of row r are `keys[ends[r - 1] : ends[r]]`; a missing one is no lookup.

    Attributes:
        setting: that limits the rows of the table: `num_embeddings`, `hash_rows` or `capacity`, with its value `rows`;
            or empty.
    """

    name: str
    table: str
    keys: Ids  # (L,)
    ends: Ids  # (n,)
    setting: str = ""
    rows: int = 0
    rules: KeyRules | None = None

    @cached_property
    def sizes(self) -> Ids:
        """Lookups of each row (n,)."""
        return np.diff(self.ends, prepend=0)

    def lookups_of(self, rows: int) -> int:
        """Return the number of lookups of the first rows."""
        return int(self.ends[rows - 1]) if rows else 0


@dataclass(frozen=True)
class Sample:
    """The first rows of some data, before anything is transformed, hashed or fitted."""

    labels: NDArray[np.float32]  # (n,), NaN without labels
    dense: NDArray[np.float32]  # (n, D), NaN for missing values
    dense_names: tuple[str, ...]
    is_scaled: NDArray[np.bool_]  # (D,) True for inputs that a transform scales
    categories: tuple[Categories, ...]
    times: NDArray[np.float64] | None
    origin: Origin | None

    @classmethod
    def of_batch(cls, batch: Batch, dataset: Dataset) -> "Sample":
        """Return a batch of a data set that has no rows of its own, such as a built-in stream."""
        n, categories = batch.num_samples, []
        for number, (feature, table) in enumerate(zip(dataset.features, tables_of(dataset), strict=True)):
            span, rules = batch.feature_span(number), dataset.key_rules.get(table)
            ends = batch.offsets[number * n + 1 : number * n + n + 1] - span.start
            limit = ("capacity", feature.num_embeddings, rules) if rules is not None else ()
            categories.append(Categories(feature.name, table, batch.ids[span], ends, *limit))
        dense = batch.dense if dataset.steps == 1 else batch.dense[:, :0]  # made by the reader: the number of a step
        names = dataset.dense_names or tuple(f"dense {number}" for number in range(dense.shape[1]))
        unscaled, times = np.zeros(dense.shape[1], np.bool_), batch.extras.get("timestamp")
        return cls(batch.labels, dense, names, unscaled, tuple(categories), times, batch.origin)

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, row: int) -> str:
        return f"sample {row}" if self.origin is None else self.origin.where(row)

    def where_of(self, column: Categories, is_it: NDArray[np.bool_]) -> str:
        """Return the place of the first of some lookups (L,)."""
        return self.where(int(np.searchsorted(column.ends, is_it.argmax(), side="right")))

    @cached_property
    def tables(self) -> dict[str, tuple[Categories, ...]]:
        """Table -> its features."""
        ordered = sorted(self.categories, key=lambda column: column.table)
        return {table: tuple(columns) for table, columns in groupby(ordered, lambda column: column.table)}

    def numbered(self, table: str) -> tuple[Ids, list[tuple[Categories, Ids]]]:
        """Return the distinct keys of a table, and its features with the place of each lookup's key in them (L,)."""
        columns = self.tables[table]
        distinct, codes = np.unique(np.concatenate([column.keys for column in columns]), return_inverse=True)
        ends = np.cumsum([len(column.keys) for column in columns])
        return distinct, list(zip(columns, np.split(codes, ends[:-1]), strict=True))


def urgent_findings(sample: Sample) -> list[Finding]:
    """Return the findings that hold for any few rows of a longer stream, the worst first."""
    numbered = [sample.numbered(table) for table in sample.tables]
    aucs = {one.name: feature_auc(sample, one, len(ids), codes) for ids, parts in numbered for one, codes in parts}
    worst = [*leaks(sample, aucs), *(one_class(sample) if len(sample) >= _ONE_CLASS_ROWS else ())]
    if any(column.rules is not None and isinstance(column.rules.expire, str) for column in sample.categories):
        worst += milliseconds(sample)
    return [*worst, *unscaled(sample)]


def leaks(sample: Sample, aucs: Mapping[str, float]) -> Iterator[Finding]:
    """Find columns that predict the label alone; `aucs` of features are those of `feature_auc`."""
    dense = zip(sample.dense_names, np.nan_to_num(sample.dense).T, strict=True)
    every = {name: rank_auc(values, sample.labels) for name, values in dense} | dict(aucs)
    if large := [
        f"{name} (AUC {max(auc, 1 - auc):.3f})" for name, auc in every.items() if abs(auc - 0.5) > _LEAK - 0.5
    ]:
        yield Finding.of("leak", f"{listed(large)} alone predicts the label", sample.where(0))


def one_class(sample: Sample) -> Iterator[Finding]:
    """Find labels that are all equal."""
    if len(sample) > 1 and (sample.labels == sample.labels[0]).all():
        what = f"expected labels 0 and 1, got {sample.labels[0]:g} in all of {len(sample):,} rows"
        yield Finding.of("one class", what, sample.where(0))


def milliseconds(sample: Sample) -> Iterator[Finding]:
    """Find times that are no seconds."""
    if sample.times is not None and len(sample) and (middle := np.median(sample.times)) >= MILLISECONDS:
        what = f"expected times in seconds since 1970, got {middle:.0f}, as in milliseconds or a smaller unit"
        yield Finding.of("milliseconds", what, sample.where(0))


def unscaled(sample: Sample) -> Iterator[Finding]:
    """Find large dense inputs."""
    large, where = [], ""
    for name, values, is_scaled in zip(sample.dense_names, sample.dense.T, sample.is_scaled, strict=True):
        size = 0.0 if is_scaled or not len(values) else np.sqrt(np.square(np.nan_to_num(values), dtype=float).mean())
        if size >= _LARGE:
            large.append(f"{name} ({size:.2g})")
            where = where or sample.where(int(np.nanargmax(np.abs(values))))
    if large:
        yield Finding.of("unscaled", f"expected dense inputs of size 1 or so, got {listed(large)}", where)


def listed(names: Sequence[str]) -> str:
    """Return the first names, separated by commas."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def rank_auc(values: NDArray[np.floating], labels: NDArray[np.float32]) -> float:
    """Return the AUC of some values (n,), ties one half; 0.5 with few samples of a label, or labels NaN."""
    negatives, positives = np.sort(values[labels == 0]), np.sort(values[labels == 1])
    if min(len(negatives), len(positives)) < _FEWEST:
        return 0.5
    below = sum(np.searchsorted(negatives, positives, side).sum() for side in ("left", "right"))
    return float(below) / (2 * len(negatives) * len(positives))


def feature_auc(sample: Sample, column: Categories, distinct: int, codes: Ids) -> float:
    """Return the AUC on one half of the rows of the mean label that the ids of a feature have in the other half.

    So an id that occurs once predicts nothing. Halves are made of blocks of rows, so that neighbors, such as those of a
    session, are in one half. Rows without an id have one in common.

    Args:
        codes: (L,) of the lookups, below `distinct`.
    """
    is_known = np.arange(len(sample)) * _BLOCKS // max(len(sample), 1) % 2 == 0
    known, held_out = sample.labels[is_known], sample.labels[~is_known]
    if not len(known) or not known.min() < known.max():
        return 0.5
    sizes = np.maximum(column.sizes, 1)
    if len(codes) < sizes.sum():
        codes, distinct = np.insert(codes, column.ends[column.sizes == 0], distinct), distinct + 1
    is_lookup_known = np.repeat(is_known, sizes)
    counts = np.bincount(codes[is_lookup_known], minlength=distinct)
    sums = np.bincount(codes[is_lookup_known], np.repeat(known, sizes[is_known]), minlength=distinct)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), known.mean())[codes[~is_lookup_known]]
    others = sizes[~is_known]
    return rank_auc(np.add.reduceat(means, np.cumsum(others) - others) / others, held_out)
