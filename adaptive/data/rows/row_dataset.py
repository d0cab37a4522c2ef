"""`RowDataset`: batches from text files with one line per sample, whatever the format.

What all text formats do when they are opened: fit or load vocabularies, split, put the data set together.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import NO_WIDTHS, Dataset, Feature
from adaptive.data.reading_progress import PartRead
from adaptive.data.rows.batcher import Batcher, Direct, FeatureSource, Fitted, Hashed, LabelSource, RowMap, bag_column
from adaptive.data.rows.data_files import DataFile, find_files
from adaptive.data.rows.rejects import Limits, RejectLog
from adaptive.data.rows.row_source import Block, RowFormat, RowSource
from adaptive.data.rows.split import Split, Survey, check_time_split, half, read_part, split_last, split_time, survey
from adaptive.data.rows.vocabularies import (
    KeyCounter,
    KeyKind,
    TextKeeper,
    Vocabulary,
    grown,
    load_vocabularies,
    load_vocabulary,
    save_vocabularies,
    stored_tables,
)
from adaptive.data.sampling import block_rows, in_blocks, without_negatives
from adaptive.data.text.text_reader import TextSource
from adaptive.errors import ConfigError, InputError, OutputError

_COUNTED_BYTES = 1 << 26  # on disk; files up to here are counted when somebody asks


@dataclass(frozen=True)
class Splits:
    """The rows of a data set for training and, where there are any, for evaluation; `num_train` if known."""

    train: Split
    evaluation: Split | None = None
    num_train: int | None = None


class RowDataset(Dataset):
    """Batches of text files.

    Args:
        features: in the order of a batch's features; `num_embeddings` of each contains its rows for unknown and
            missing ids. `tables` names the table of each: features with the same one share it.
        is_log: (D,) dense columns that are scaled by log(1 + max(x, 0)).
        shuffle_buffer: rows that are shuffled together in training; 0: the order of the files.
        drop_negatives: share of the training rows with label 0 that is left out.
        identity: what else identifies the data, for the fingerprint.
        labels, more_labels: names of all labels, where there are several, and where the further ones are.
        widths: as in `Dataset`.
        threads: that read files side by side.
    """

    def __init__(
        self,
        source: RowSource,
        features: Sequence[FeatureSource],
        is_log: NDArray[np.bool_],
        *,
        parts: Splits,
        shuffle: tuple[int, int] = (0, 0),
        drop_negatives: float = 0.0,
        identity: dict[str, object] | None = None,
        labels: tuple[str, ...] = (),
        more_labels: tuple[LabelSource, ...] = (),
        widths: Mapping[str, int] = NO_WIDTHS,
        threads: int = 1,
    ) -> None:
        self.features = tuple(Feature(feature.name, feature.rows.num_embeddings) for feature in features)
        self.tables = tuple(feature.table for feature in features)
        self.num_dense, self.dense_names = len(is_log) - len(more_labels), source.formats[0].dense_names
        self.labels, self.widths, self._threads = labels, dict(widths), threads
        self._source = source
        self._batcher = Batcher(source.names(), tuple(features), is_log, more_labels)
        self._parts = parts
        self._shuffle_buffer, self._seed = shuffle
        self._drop_negatives = drop_negatives
        self._identity = identity or {}
        self._num_train = parts.num_train
        self._part_read: PartRead | None = None

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        """Batches of the training part.

        Raises:
            InputError: at once if the files have no labels; while iterating if a file cannot be read, too many
                lines are bad, an id is out of range, or there is no row.
        """
        for file in self._parts.train.files:
            if not self._source.formats[file].is_labelled:
                raise InputError(
                    f"{self._source.names()[file]}: has no labels to train with: its first line that is not empty, "
                    "which decides, has no column for one. Mend or remove that line if later ones have labels; or use "
                    "the file as eval_data"
                )
        return self._train(batch_size, epoch)

    def _train(self, batch_size: int, epoch: int) -> Iterator[Batch]:
        buffer, seed = self._shuffle_buffer, self._seed
        batches = in_blocks(self._reader(), batch_size, shuffle_buffer=buffer, seed=seed, epoch=epoch)
        is_empty = True
        for batch in batches:
            is_empty = False
            yield batch
        if is_empty:
            raise InputError(
                f"no row to train with in {', '.join(self._source.names())}: "
                f"{self._source.log.causes_text() or 'no lines'}"
            )

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        """Batches of the evaluation part in file order; labels are NaN where a file has none.

        Raises:
            InputError: while iterating, as `train` does, also if there is such a part and it has no row.
        """
        return iter(()) if self._parts.evaluation is None else self._evaluation(self._parts.evaluation, batch_size)

    def _evaluation(self, part: Split, batch_size: int) -> Iterator[Batch]:
        is_empty = True
        for batch in self._in_order(part, batch_size):
            is_empty = False
            yield batch
        if is_empty:
            names = ", ".join(self._source.names()[file] for file in part.files)
            raise InputError(f"no row to evaluate on in {names}: {self._source.log.causes_text() or 'no lines'}")

    def _reader(self) -> Callable[[int], Iterator[Batch]]:
        """Gives the training part in batches of so many rows."""

        def read(rows: int) -> Iterator[Batch]:
            return self._in_order(self._parts.train, rows)

        return without_negatives(read, self._drop_negatives, self._seed) if self._drop_negatives else read

    def _in_order(self, part: Split, batch_size: int) -> Iterator[Batch]:
        rows = block_rows(self._source.READ_ROWS, batch_size)
        with closing(self._blocks(part, rows)) as blocks:
            for block in blocks:
                yield from self._batcher.batches(block, batch_size)

    def _blocks(self, part: Split, rows: int) -> Generator[Block, None, None]:
        def note(read: PartRead) -> None:
            self._part_read = read

        return read_part(self._source, part, rows, threads=self._threads, told=note)

    def part_read(self) -> PartRead | None:
        return self._part_read

    def num_train_samples(self) -> int | None:
        """Rows of the training part; files of more than 64 MiB together are not counted just for this, nor those
        of which negative samples are left out."""
        if self._drop_negatives:
            return None
        train = self._parts.train
        size = sum(self._source.size(file) for file in train.files)
        if self._num_train is None and size <= _COUNTED_BYTES:
            self._num_train = survey(self._source, train.files, window=train.window).num_rows
        return self._num_train

    def fingerprint(self) -> dict[str, object]:
        """Path, size and sha256 of every file (see `DataFile.fingerprint`) and the settings that choose rows."""
        return {"files": [file.fingerprint() for file in self._source.files], **self._identity}

    def rejects(self) -> dict[str, int]:
        """Bad lines so far, by cause; each line counts once."""
        return self._source.log.counts

    def out_of_range(self) -> dict[str, int]:
        """Look-ups so far that were sent to the row for unknown ids, by feature (`out_of_range = "oov"`)."""
        return dict(self._batcher.out_of_range)


@dataclass(frozen=True)
class RowRule:
    """How categories become rows: `size` is the number of rows, for a fitted vocabulary the lowest count kept."""

    kind: Literal["direct", "hashed", "fitted"]
    size: int
    has_missing: bool = True  # direct only: whether there is a row for missing ids


@dataclass(frozen=True)
class FeaturePlan:
    """One feature before its vocabulary is known; features of one table must have the same rule."""

    name: str
    table: str
    slot: int
    is_bag: bool
    rule: RowRule
    kind: KeyKind = "string"


@dataclass(frozen=True)
class RowPlan:
    """What a format says about its data. `is_log`: dense columns to scale, further labels among them. `time_cut`: see
    `split_time`. `labels`: names of all labels, where there are several, and where the further ones are.
    `widths`: see `Dataset`."""

    features: tuple[FeaturePlan, ...]
    is_log: NDArray[np.bool_]
    time_cut: float | None
    identity: dict[str, object]
    labels: tuple[str, ...] = ()
    more_labels: tuple[LabelSource, ...] = ()
    widths: Mapping[str, int] = field(default_factory=dict)


def open_source(
    paths: str, options: DataOptions, run_dir: Path | None, *, format_of: Callable[[DataFile], RowFormat]
) -> tuple[TextSource, tuple[int, ...], tuple[int, ...]]:
    """The files of `paths` and of `eval_data` -> (source, numbers of the former, numbers of the latter)."""
    train = find_files(paths)
    evaluation = find_files(options.eval_data) if options.eval_data is not None else ()
    files = train + evaluation
    formats = tuple(format_of(file) for file in files)
    log = RejectLog(
        tuple(str(file.path) for file in files),
        limits(options),
        run_dir / "rejects.jsonl" if run_dir is not None else None,
        header_lines=int(formats[0].header),
    )
    source = TextSource(files, formats, log, options.chunk_bytes)
    return source, tuple(range(len(train))), tuple(range(len(train), len(files)))


def limits(options: DataOptions) -> Limits:
    """Which shares of the rows may be bad."""
    return Limits(options.max_bad_fraction, options.max_bad_label_fraction)


def _save(folder: Path, vocabularies: Mapping[str, Vocabulary]) -> None:
    try:
        save_vocabularies(folder, vocabularies)
    except OSError as error:
        raise OutputError(
            f"the fitted vocabulary cannot be written to {folder}: {error}; choose another place with "
            "--set data.vocabulary_path=DIR"
        ) from error


def open_rows(
    opened: tuple[RowSource, tuple[int, ...], tuple[int, ...]],
    plan: RowPlan,
    options: DataOptions,
    *,
    run_dir: Path | None,
) -> RowDataset:
    """The data set of an opened source. Reads all training files once if a vocabulary or a fraction needs that."""
    source, train, evaluation = opened
    rules = _table_rules(plan.features)
    folder = options.vocabulary_path or (run_dir / "vocabulary" if run_dir is not None else None)
    wanted = {table: rule.size for table, rule in rules.items() if rule.kind == "fitted"}
    stored = load_vocabularies(folder, wanted) if wanted and folder is not None else None
    vocabularies, found = stored or {}, None
    if len(vocabularies) < len(wanted):
        vocabularies, found = _fit(source, train, plan.features, wanted)
        if options.vocabulary_from is not None:
            vocabularies = _grown(vocabularies, options.vocabulary_from)
        if folder is not None:
            _save(folder, vocabularies)
    elif options.holdout is not None:
        found = survey(source, train)
    maps = {table: _row_map(table, rule, vocabularies, options) for table, rule in rules.items()}
    features = [FeatureSource(one.name, one.table, one.slot, one.is_bag, maps[one.table]) for one in plan.features]
    checksums = {table: vocabulary.checksum() for table, vocabulary in vocabularies.items()}
    return RowDataset(
        source,
        features,
        plan.is_log,
        parts=_parts(source, train, evaluation, found, plan.time_cut, options),
        shuffle=(options.shuffle_buffer, options.seed),
        drop_negatives=options.drop_negatives,
        identity={**plan.identity, **settings_identity(options), "vocabularies": checksums},
        labels=plan.labels,
        more_labels=plan.more_labels,
        widths=plan.widths,
        threads=options.num_workers,
    )


def settings_identity(options: DataOptions) -> dict[str, object]:
    """The settings that choose and order rows, as JSON values."""
    names = ("holdout", "eval_part", "time_split", "drop_negatives", "shuffle_buffer", "seed")
    return {name: getattr(options, name) for name in names}


def _table_rules(features: Sequence[FeaturePlan]) -> dict[str, RowRule]:
    rules: dict[str, RowRule] = {}
    for feature in features:
        rule = rules.setdefault(feature.table, feature.rule)
        if rule != feature.rule:
            raise ConfigError(
                f"table {feature.table!r}: feature {feature.name!r} maps ids to rows as {feature.rule}, another "
                f"feature of the table as {rule}; features that share a table need the same num_embeddings, hash_rows, "
                "vocabulary, min_count and missing"
            )
    return rules


def _row_map(table: str, rule: RowRule, vocabularies: dict[str, Vocabulary], options: DataOptions) -> RowMap:
    if rule.kind == "direct":
        return Direct(rule.size, has_unknown=options.out_of_range == "oov", has_missing=rule.has_missing)
    return Hashed(rule.size) if rule.kind == "hashed" else Fitted(vocabularies[table])


def _fit(
    source: RowSource, files: tuple[int, ...], features: Sequence[FeaturePlan], wanted: dict[str, int]
) -> tuple[dict[str, Vocabulary], Survey]:
    counters = {table: KeyCounter() for table in wanted}
    kinds = {table: sorted({one.kind for one in features if one.table == table}) for table in wanted}
    kept = {table: TextKeeper() for table in wanted if "string" in kinds[table]}

    def look(block: Block) -> None:
        for feature in features:
            if feature.table not in counters:
                continue
            if feature.is_bag:
                keys, _ = bag_column(block, feature.slot)
                amounts = np.ones(len(keys), np.bool_)
            else:
                keys = block.columns.keys[feature.slot, : block.num_rows]
                amounts = block.columns.present[feature.slot, : block.num_rows]
            counters[feature.table].add(keys, amounts)

    keepers = {one.name: kept[one.table] for one in features if one.table in kept and one.kind == "string"}
    found = survey(source, files, look=look, keepers=keepers)
    vocabularies = {}
    for table, counter in counters.items():
        vocabulary = counter.vocabulary(wanted[table])
        if len(kinds[table]) == 1:  # otherwise an id has several meanings
            texts = kept[table].texts_of(vocabulary.keys) if table in kept else None
            vocabulary = replace(vocabulary, kind=kinds[table][0], texts=texts)
        vocabularies[table] = vocabulary
    return vocabularies, found


def _grown(vocabularies: dict[str, Vocabulary], folder: Path) -> dict[str, Vocabulary]:
    """Those that were fitted here, behind the stored ones. Tables that are new are as they were fitted."""
    known = stored_tables(folder)
    found = {}
    for table, vocabulary in vocabularies.items():
        try:
            found[table] = grown(load_vocabulary(folder, table), vocabulary) if table in known else vocabulary
        except ConfigError as error:
            raise ConfigError(f"{folder}: table {table}: {error}") from error
    return found


def _parts(
    source: RowSource,
    train: tuple[int, ...],
    evaluation: tuple[int, ...],
    found: Survey | None,
    time_cut: float | None,
    options: DataOptions,
) -> Splits:
    part = options.eval_part
    if options.holdout is not None:
        assert found is not None
        first, last = split_last(found, train, options.holdout)
        return Splits(first, last if part == "all" else half(found, last, part), first.limit)
    if time_cut is not None:
        check_time_split(source, train, time_cut, options.time_split)
        return Splits(*split_time(train, time_cut))
    num_train = found.num_rows if found is not None else None
    kept = Split(evaluation) if evaluation else None
    if kept is not None and part != "all":
        kept = half(survey(source, evaluation), kept, part)
    return Splits(Split(train, known=num_train), kept, num_train)
