"""`RowDataset`: batches of rows of any file format, and `open_rows`, which opens it."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adaptive.batch import Batch, Origin
from adaptive.data import PartRead
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset, Feature, require_batches
from adaptive.data.findings import SHORT, Categories, Finding, Sample, urgent_findings
from adaptive.data.rows.batcher import (
    Batcher,
    Direct,
    FeaturePlan,
    Fitted,
    Hashed,
    Keyed,
    RowMap,
    RowPlan,
    RowRule,
    bag_column,
)
from adaptive.data.rows.dense_scales import scales_of
from adaptive.data.rows.row_source import Block, RawValues, RowSource
from adaptive.data.rows.split import (
    Split,
    Survey,
    check_time_split,
    read_part,
    split_last,
    split_time,
    survey,
)
from adaptive.data.rows.vocabularies import (
    KeyCounter,
    Vocabulary,
    extend_vocabulary,
    load_vocabularies,
    save_vocabularies,
)
from adaptive.data.sampling import block_rows, in_blocks, without_negatives
from adaptive.errors import ConfigError, InputError
from adaptive.storage.durable import write_failed

logger = logging.getLogger("adaptive.data")

_COUNTED_BYTES = 1 << 26  # on disk; rows of files up to this size are counted on request
_WARNINGS = 2  # of the first rows; `doctor` has all findings
_SETTINGS = {"direct": "num_embeddings", "hashed": "hash_rows", "fitted": "", "keyed": "capacity"}


def sample_of(block: Block, source: RowSource, plan: RowPlan, most: int = sys.maxsize) -> Sample:
    """Return the first rows of a block that was just read, at most `most`; arrays may be views."""
    n, columns, dense = min(block.num_rows, most), block.columns, block.columns.dense
    is_input = np.arange(dense.shape[1]) != (-1 if plan.weight is None else plan.weight)
    categories = []
    for item in plan.features:
        if item.is_bag:
            keys, ends = bag_column(block, item.slot, item.padding)
        else:
            present = columns.present[item.slot, :n]
            keys, ends = columns.keys[item.slot, :n][present], np.cumsum(present)
        ends = ends[:n]
        rule = _SETTINGS[item.rule.kind], item.rule.size, item.rule.keys
        keys = keys[: ends[-1]] if n else keys
        categories.append(Categories(item.name, item.table, keys, ends, *rule))
    return Sample(
        columns.labels[:n],
        dense[:n, is_input],
        source.formats[0].dense_names,
        np.array([transform != "none" for transform in plan.transforms], np.bool_)[is_input],
        tuple(categories),
        columns.times[:n] if plan.has_times else None,
        Origin(source.names(), block.file_index[:n], columns.lines[:n]),
    )


class Opened(NamedTuple):
    """A source, and the numbers of its pieces for training and for evaluation."""

    source: RowSource
    train: tuple[int, ...]
    evaluation: tuple[int, ...]

    @classmethod
    def of(cls, source: RowSource, num_train: int) -> "Opened":
        return cls(source, tuple(range(num_train)), tuple(range(num_train, len(source.pieces))))


class RowData(NamedTuple):
    """Rows before anything but the beginning of their files is read, and what was found there."""

    opened: Opened
    plan: RowPlan
    finding: Finding | None = None

    def dataset(self, options: DataOptions, run_dir: Path | None) -> "RowDataset":
        """Return the data set; see `open_rows`. Logs the finding."""
        if self.finding is not None:
            logger.warning("%s", self.finding)
        return open_rows(self.opened, self.plan, options, run_dir=run_dir)


class RowDataset(Dataset):
    """Batches of files of rows.

    Args:
        maps: table -> its mapping of keys to rows.
        parts: rows for training, and for evaluation.
        scales: dense input -> mean and deviation, by which it is standardized.
    """

    def __init__(
        self,
        source: RowSource,
        plan: RowPlan,
        maps: Mapping[str, RowMap],
        *,
        parts: tuple[Split, Split | None],
        options: DataOptions,
        identity: dict[str, object],
        scales: Mapping[str, tuple[float, float]],
    ) -> None:
        self.features = tuple(Feature(feature.name, maps[feature.table].num_embeddings) for feature in plan.features)
        self.tables = tuple(feature.table for feature in plan.features)
        self.dense_names = source.formats[0].dense_names
        self.num_dense = len(plan.transforms) - (plan.weight is not None)
        self.key_rules = {feature.table: feature.rule.keys for feature in plan.features if feature.rule.keys}
        self.sequences = {item.name: item.max_length for item in plan.features if item.max_length is not None}
        self.bags = tuple(feature.name for feature in plan.features if feature.is_bag)
        self.keep_negatives = 1 - options.drop_negatives
        self._source, self._options, self._identity = source, options, identity
        self._train, self._evaluation = parts
        self.hash_rows = {item.table: item.rule.size for item in plan.features if item.rule.kind == "hashed"}
        by_time = any(isinstance(rules.expire, str) for rules in self.key_rules.values())
        ordered = [scales.get(name, (0.0, 1.0)) for name in _dense_columns(source)]
        self._batcher = Batcher(source.names(), plan, maps, np.array(ordered).reshape(-1, 2), has_times=by_time)
        self._plan, self._is_examined = plan, False
        self._num_train = self._train.num_rows if self._train.limit is None else self._train.limit
        self._may_be_empty = False
        self._part_read: PartRead | None = None

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        """Return batches of the training part.

        Raises:
            InputError: at once if the files have no labels; while iterating if a file cannot be read, too many lines
                are bad, an id is out of range, or there is no row.
        """
        part = self._train
        for file in part.files:
            if not self._source.formats[file].is_labelled:
                raise InputError(
                    f"{self._source.names()[file]}: expected a label column to train with, got a first line without "
                    "one. Correct that line if later ones have labels, or evaluate on the file: data.eval_data."
                )
        options = self._options
        read: Callable[[int], Iterator[Batch]] = partial(self._in_order, part, look=self._warn)
        if options.drop_negatives:
            read = without_negatives(read, options.drop_negatives, options.seed)
        batches = in_blocks(read, batch_size, shuffle_buffer=options.shuffle_buffer, seed=options.seed, epoch=epoch)
        return self._required(batches, "to train on", range(len(self._source.pieces)))

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        """Return batches of the evaluation part in file order; labels are NaN if a file has none."""
        part = self._evaluation
        if part is None:
            return iter(())
        return self._required(self._in_order(part, batch_size), "to evaluate on", part.files)

    def follow(self, *, is_first: bool) -> None:
        """Evaluate on the training rows, of which there may be none: for a file of a followed folder.

        Args:
            is_first: False leaves out warnings that the first file of the folder has given.
        """
        self._evaluation = self._train
        self._may_be_empty = True
        self._is_examined = not is_first

    def _warn(self, block: Block) -> None:
        """Log the worst findings of the first rows, once."""
        if not self._is_examined:
            self._is_examined = True
            for finding in urgent_findings(sample_of(block, self._source, self._plan, SHORT))[:_WARNINGS]:
                logger.warning("%s", finding)

    def _required(self, batches: Iterator[Batch], purpose: str, pieces: Sequence[int]) -> Iterator[Batch]:
        if self._may_be_empty:
            return batches
        names = ", ".join(self._source.names()[piece] for piece in pieces)
        return require_batches(
            batches,
            lambda: (
                f"{names}: expected rows {purpose}, got none ({self._source.log.causes_text() or 'no lines'}). Check "
                "the files."
            ),
        )

    def _in_order(
        self, part: Split, batch_size: int, *, look: Callable[[Block], None] = lambda block: None
    ) -> Iterator[Batch]:
        def note(read: PartRead) -> None:
            self._part_read = read

        rows = block_rows(self._source.READ_ROWS, batch_size)
        threads = min(self._options.threads(), self._source.MOST_THREADS)
        with closing(read_part(self._source, part, rows, threads=threads, report=note)) as blocks:
            for block in blocks:
                look(block)
                yield from self._batcher.batches(block, batch_size)

    def part_read(self) -> PartRead | None:
        return self._part_read

    def num_train_samples(self) -> int | None:
        """Return the training rows; None if files exceed 64 MiB, or negatives are dropped."""
        if self._options.drop_negatives:
            return None
        files = self._train.files
        if self._num_train is None and self._source.size(files) <= _COUNTED_BYTES:
            self._num_train = survey(self._source, files, window=self._train.window).num_rows
        return self._num_train

    def raw_values(self, columns: Sequence[str]) -> Callable[[Batch], list[Sequence[Any]]]:
        return RawValues(self._source, columns).of

    def fingerprint(self) -> dict[str, object]:
        """Return path, size and SHA-256 of every file, and the settings that choose rows."""
        return {"files": [file.fingerprint() for file in self._source.files], **self._identity}

    def rejects(self) -> dict[str, int]:
        """Return the number of bad lines so far, by cause; each line counts once."""
        return self._source.log.counts

    def out_of_range(self) -> dict[str, int]:
        """Return the number of lookups so far that went to the row for unknown ids, by feature."""
        return dict(self._batcher.out_of_range)

    def truncated(self) -> dict[str, int]:
        """Return the number of sequences so far that had more ids than the schema's max_length, by feature."""
        return dict(self._batcher.truncated)


def open_rows(opened: Opened, plan: RowPlan, options: DataOptions, *, run_dir: Path | None) -> RowDataset:
    """Return the data set of an opened source.

    Reads all training files once if a vocabulary must be fitted, or rows counted for `data.holdout`, and their first
    rows to scale dense inputs.
    """
    source, train, _ = opened
    rules = _table_rules(plan.features)
    for table, rule in rules.items():
        if rule.keys is not None and isinstance(rule.keys.expire, str) and not plan.has_times:
            raise ConfigError(
                f"table {table!r}: expected data with times for expire = {rule.keys.expire!r}, got none. Add [time] to "
                "the schema, or let keys expire after a number of batches."
            )
    folder = options.vocabulary_path or (run_dir / "vocabulary" if run_dir is not None else None)
    wanted = {table: rule.size for table, rule in rules.items() if rule.kind == "fitted"}
    vocabularies = load_vocabularies(folder, wanted) if wanted and folder is not None else {}
    counted = None
    if len(vocabularies) < len(wanted):
        vocabularies, counted = _fit(source, train, plan.features, wanted)
        if options.vocabulary_from is not None:
            vocabularies = _extend_stored(vocabularies, options.vocabulary_from)
        if folder is not None:
            with _reporting_writes(folder):
                save_vocabularies(folder, vocabularies)
    elif options.holdout is not None:
        counted = survey(source, train)
    slots = {
        name: slot
        for slot, (name, transform) in enumerate(zip(_dense_columns(source), plan.transforms, strict=True))
        if transform == "standard"
    }
    with _reporting_writes(folder):
        scales = scales_of(source, train, slots, folder=folder, earlier=options.vocabulary_from)
    maps = {table: _row_map(table, rule, vocabularies, options) for table, rule in rules.items()}
    checksums = {table: vocabulary.checksum() for table, vocabulary in vocabularies.items()}
    return RowDataset(
        source,
        plan,
        maps,
        parts=_parts(opened, counted, plan.time_cut, options),
        options=options,
        identity={**plan.identity, **options.identity(), "vocabularies": checksums}
        | ({"scales": {name: list(scale) for name, scale in scales.items()}} if scales else {}),
        scales=scales,
    )


def _dense_columns(source: RowSource) -> list[str]:
    """Return the names of the dense columns of blocks, including the weight of samples."""
    return [column.name for column in source.formats[0].columns if column.sort == "dense"]


@contextmanager
def _reporting_writes(folder: Path | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        assert folder is not None
        raise write_failed(folder, error) from error


def _table_rules(features: Sequence[FeaturePlan]) -> dict[str, RowRule]:
    """Return the rule of each table; it has a row for missing ids if one of its features needs it."""
    rules: dict[str, RowRule] = {}
    for feature in features:
        rule = rules.get(feature.table, feature.rule)
        has_missing = rule.has_missing or feature.rule.has_missing
        if replace(rule, has_missing=True) != replace(feature.rule, has_missing=True):
            raise ConfigError(
                f"table {feature.table!r}: expected one mapping of ids for all its features, got {rule} and, for "
                f"feature {feature.name!r}, {feature.rule}. Give features that share a table the same num_embeddings, "
                "hash_rows, vocabulary, min_count, and settings of keys."
            )
        rules[feature.table] = replace(rule, has_missing=has_missing)
    return rules


def _row_map(table: str, rule: RowRule, vocabularies: dict[str, Vocabulary], options: DataOptions) -> RowMap:
    if rule.kind == "direct":
        return Direct(rule.size, has_unknown=options.out_of_range == "oov", has_missing=rule.has_missing)
    if rule.kind == "keyed":
        return Keyed(rule.size)
    return Hashed(rule.size) if rule.kind == "hashed" else Fitted(vocabularies[table])


def _fit(
    source: RowSource, files: tuple[int, ...], features: Sequence[FeaturePlan], wanted: dict[str, int]
) -> tuple[dict[str, Vocabulary], Survey]:
    features = [feature for feature in features if feature.table in wanted]
    counters = {table: KeyCounter() for table in wanted}
    kinds = {table: sorted({feature.kind for feature in features if feature.table == table}) for table in wanted}

    def look(block: Block) -> None:
        for feature in features:
            if feature.is_bag:
                keys, _ = bag_column(block, feature.slot, feature.padding)
                amounts = np.ones(len(keys), np.bool_)
            else:
                keys = block.columns.keys[feature.slot, : block.num_rows]
                amounts = block.columns.present[feature.slot, : block.num_rows]
            counters[feature.table].add(keys, amounts)

    counted = survey(source, files, look=look)
    vocabularies = {}
    for table, counter in counters.items():
        kind = kinds[table][0] if len(kinds[table]) == 1 else None
        vocabularies[table] = replace(counter.vocabulary(wanted[table]), kind=kind)
    return vocabularies, counted


def _extend_stored(vocabularies: dict[str, Vocabulary], folder: Path) -> dict[str, Vocabulary]:
    """Append the fitted vocabularies to those in `folder`; new tables stay as they are."""
    stored, result = load_vocabularies(folder), dict(vocabularies)
    if not stored:
        raise ConfigError(f"{folder}: expected a vocabulary, got none. Correct data.vocabulary_from, or remove it.")
    for table in stored.keys() & vocabularies.keys():
        try:
            result[table] = extend_vocabulary(stored[table], vocabularies[table])
        except ConfigError as error:
            raise ConfigError(f"{folder}: table {table!r}: {error}") from error
    return result


def _parts(
    opened: Opened, counted: Survey | None, time_cut: float | None, options: DataOptions
) -> tuple[Split, Split | None]:
    """Return the rows for training, and for evaluation."""
    source, train, evaluation = opened
    if options.holdout is not None:
        assert counted is not None
        return split_last(counted, train, options.holdout)
    if time_cut is not None:
        check_time_split(source, train, time_cut, options.time_split)
        return split_time(train, time_cut)
    num_train = counted.num_rows if counted is not None else None
    return Split(train, num_rows=num_train), Split(evaluation) if evaluation else None
