"""What all text formats do when they are opened: fit or load vocabularies, split, put the data set together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from adaptive.data.options import DataOptions
from adaptive.data.rows.dataset import Splits, TextDataset
from adaptive.data.rows.format import Block, TextFormat
from adaptive.data.rows.rejects import Limits, RejectLog
from adaptive.data.rows.row_source import RowSource
from adaptive.data.rows.rows import Direct, FeatureSource, Fitted, Hashed, LabelSource, RowMap, bag_column
from adaptive.data.rows.split import Split, Survey, check_time_split, half, split_last, split_time, survey
from adaptive.data.rows.texts import TextKeeper
from adaptive.data.rows.vocabulary import (
    KeyCounter,
    KeyKind,
    Vocabulary,
    grown,
    load_vocabularies,
    load_vocabulary,
    save_vocabularies,
    stored_tables,
)
from adaptive.data.text.reader import TextSource
from adaptive.data.text.source import TextFile, find_files
from adaptive.errors import ConfigError, OutputError


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
class TextPlan:
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
    paths: str, options: DataOptions, run_dir: Path | None, *, format_of: Callable[[TextFile], TextFormat]
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


def open_text(
    opened: tuple[RowSource, tuple[int, ...], tuple[int, ...]],
    plan: TextPlan,
    options: DataOptions,
    *,
    run_dir: Path | None,
) -> TextDataset:
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
    return TextDataset(
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
        threads=options.readers,
    )


def settings_identity(options: DataOptions) -> dict[str, object]:
    """The settings that choose and order rows, as JSON values."""
    names = ("holdout", "time_split", "shuffle_buffer", "seed")
    found = {name: getattr(options, name) for name in names}
    others = {"eval_part": "all", "drop_negatives": 0.0}  # named where they say something
    return found | {name: getattr(options, name) for name, usual in others.items() if getattr(options, name) != usual}


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
