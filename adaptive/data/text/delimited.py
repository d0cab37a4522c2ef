"""Delimited files (csv, tsv, ...) with one sample per line, described by a schema; see `adaptive.data.text.schema`."""

import csv
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset
from adaptive.data.kernels import text as kernels
from adaptive.data.kernels.text_fields import iso_time
from adaptive.data.rows.batcher import LabelSource
from adaptive.data.rows.data_files import DataFile, find_files
from adaptive.data.rows.row_dataset import FeaturePlan, RowPlan, RowRule, open_rows, open_source
from adaptive.data.rows.row_source import Column, RowFormat
from adaptive.data.text.schema import Categorical, DelimitedSchema, Time, UserItemsSchema, load_schema
from adaptive.data.text.text_reader import first_line
from adaptive.data.text.user_items import open_pairs
from adaptive.errors import ConfigError, InputError

MOST_COLUMNS = 10_000
_MORE_LABEL = -1  # no kind of a column: read as a dense one
_CATEGORY_KINDS = {"hex": kernels.KEY_HEX, "int": kernels.KEY_INTEGER, "string": kernels.KEY_TEXT}


def open_csv(paths: str, options: DataOptions, *, run_dir: Path | None = None) -> Dataset:
    """The data set of `csv:PATH[,PATH...]`; see `adaptive.data.open.open_dataset`."""
    if options.schema_path is None:
        raise ConfigError(
            "csv: needs a schema that describes the columns: --schema FILE (data.schema_path); see docs/data.md"
        )
    schema = load_schema(options.schema_path)
    if isinstance(schema, UserItemsSchema):
        return open_pairs(paths, schema, options, run_dir=run_dir)
    names = _column_names(find_files(paths)[0], schema, options)
    form, plan = describe(schema, names, options)

    def format_of(file: DataFile) -> RowFormat:
        found = _column_names(file, schema, options)
        if found != names:
            raise InputError(f"{file.path}: header {found} differs from that of the first file, {names}")
        return form

    return open_rows(open_source(paths, options, run_dir, format_of=format_of), plan, options, run_dir=run_dir)


def describe(
    schema: DelimitedSchema, names: Sequence[str], options: DataOptions, *, lists: Container[str] | None = None
) -> tuple[RowFormat, RowPlan]:
    """What a schema means for a file with the columns `names`.

    Args:
        lists: of data that have columns in the place of lines, those that hold lists; columns that the schema does not
            name are then left out.

    Raises:
        ConfigError: with all columns that are missing or used twice, and time splits that cannot work.
    """
    schema = _as_labelled(schema, names, options)
    uses = _uses(schema, names, lists or ())
    columns = tuple(uses.get(name, Column(name, kernels.SKIP)) for name in names if lists is None or name in uses)
    label = schema.label
    form = RowFormat(
        columns,
        separator=schema.separator,
        quote=schema.quote,
        header=schema.header,
        max_line_bytes=options.max_line_bytes,
        positives=label.positive or () if label is not None else (),
        threshold=label.threshold or 0.0 if label is not None else 0.0,
        nulls=tuple(text for text in schema.null if text),
    )
    features = tuple(
        _feature(name, group, form.slot(name), uses[name].kind == kernels.KEY_BAG, options)
        for group in schema.categorical
        for name in _matching(group.columns, names)
    )
    is_log = np.zeros(form.count(kernels.DENSE_FLOAT), np.bool_)
    for dense in schema.dense:
        is_log[[form.slot(name) for name in _matching(dense.columns, names)]] = dense.transform == "log"
    content = schema.model_dump(mode="json", exclude={"categorical": {"__all__": {"width"}}})  # widths are no data
    identity: dict[str, object] = {"format": "delimited", "schema": content}
    identity["rows"] = {feature.name: f"{feature.rule.kind} {feature.rule.size}" for feature in features}
    labels = () if label is None or not schema.more_labels else (label.column, *(m.column for m in schema.more_labels))
    more = tuple(LabelSource(one.column, form.slot(one.column), one.threshold) for one in schema.more_labels)
    widths, cut = _widths(schema, names, options), _time_cut(schema.time, options)
    return form, RowPlan(features, is_log, cut, identity, labels, more, widths)


def _widths(schema: DelimitedSchema, names: Sequence[str], options: DataOptions) -> dict[str, int]:
    """Table -> width of its rows, where the schema gives one."""
    found: dict[str, tuple[str, int]] = {}
    for group in schema.categorical:
        for name in _matching(group.columns, names) if group.width is not None else ():
            assert group.width is not None
            other, width = found.setdefault(group.table or name, (name, group.width))
            if width != group.width:
                where = "" if options.schema_path is None else f" {options.schema_path}"
                raise ConfigError(
                    f"schema{where}: table {group.table or name!r}: column {name!r} has width {group.width}, column "
                    f"{other!r} width {width}; "
                    "columns that share a table have one width: give it once"
                )
    return {table: width for table, (_, width) in found.items()}


def _feature(name: str, group: Categorical, slot: int, is_bag: bool, options: DataOptions) -> FeaturePlan:
    return FeaturePlan(name, group.table or name, slot, is_bag, _rule(group, options, is_bag=is_bag), group.kind)


def _as_labelled(schema: DelimitedSchema, names: Sequence[str], options: DataOptions) -> DelimitedSchema:
    """The schema; without its labels, if files may lack them and these do."""
    if not options.label_optional:
        return schema
    label = schema.label if schema.label is not None and schema.label.column in names else None
    more = tuple(one for one in schema.more_labels if one.column in names)
    return schema.model_copy(update={"label": label, "more_labels": more})


def _column_names(file: DataFile, schema: DelimitedSchema, options: DataOptions) -> list[str]:
    if schema.columns is not None:
        return _columns_there(file, schema, options)
    names = _fields(file, schema, options)
    if not names:
        raise InputError(
            f"{file.path}: has no header line; if the file is right, give columns = [...] and header = false"
        )
    return [name or f"column {number + 1}" for number, name in enumerate(names)]


def _columns_there(file: DataFile, schema: DelimitedSchema, options: DataOptions) -> list[str]:
    """The schema's columns, without the label's where files may lack it and lines have one field less."""
    assert schema.columns is not None
    names = list(schema.columns)
    if options.label_optional and schema.label is not None and schema.label.column in names:
        fields = _fields(file, schema, options)
        labels = {schema.label.column, *(one.column for one in schema.more_labels)}
        if len(fields) == len(names) - len(labels):
            names = [name for name in names if name not in labels]
    return names


def _fields(file: DataFile, schema: DelimitedSchema, options: DataOptions) -> list[str]:
    """The fields of the first line; none of an empty file."""
    line = first_line(file, options.max_line_bytes)
    if not line:
        return []
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file.path}:1: the header is not UTF-8 ({error.reason} at byte {error.start})") from error
    if schema.quote:
        reader = csv.reader([text], delimiter=schema.separator, quotechar=schema.quote)
    else:
        reader = csv.reader([text], delimiter=schema.separator, quoting=csv.QUOTE_NONE)
    return next(reader)


def _uses(schema: DelimitedSchema, names: Sequence[str], lists: Container[str]) -> dict[str, Column]:
    """The column that each name of the schema stands for."""
    if len(names) > MOST_COLUMNS:
        raise ConfigError(f"the file has {len(names):,} columns; at most {MOST_COLUMNS:,} are read")
    problems = [f"column {name!r} comes twice" for name, count in sorted(Counter(names).items()) if count > 1]
    uses: dict[str, Column] = {}
    keys: dict[str, str] = {}
    for key, patterns, kind, group in _wanted(schema):
        for pattern in patterns:
            found = _matching([pattern], names)
            if not found:
                problems.append(f"{key}: no column {pattern!r}{_meant(pattern, names)}")
            for name in found:
                if keys.setdefault(name, key) != key or name in uses:
                    problems.append(f"{key}: column {name!r} is used already, as {keys[name]}")
                if name in lists and group is not None and group.missing == "reject":
                    problems.append(f"{key}: column {name!r} holds lists; missing = 'reject' is for single values")
                uses[name] = _column(name, kind, group, is_list=name in lists)
    if problems:
        raise ConfigError(
            "schema does not fit the file:\n  " + "\n  ".join(problems) + f"\n"
            f"columns of the file: {', '.join(map(repr, names))}{_other_separator(schema, names)}"
        )
    return uses


def _other_separator(schema: DelimitedSchema, names: Sequence[str]) -> str:
    """The separator that splits a header of one column into columns of the schema, as the end of a message."""
    wanted = [pattern for _, patterns, _, _ in _wanted(schema) for pattern in patterns]
    found = {other: len(_matching(wanted, names[0].split(other))) for other in ",\t;| "} if len(names) == 1 else {}
    best = max(found, key=found.__getitem__, default="")
    if not found or not found[best]:
        return ""
    return f"\nThe header is one column with separator = {schema.separator!r}; separator = {best!r} splits it."


def _meant(pattern: str, names: Sequence[str]) -> str:
    """A name that differs only in spaces around it or in its case: easily not seen."""
    alike = [name for name in names if name.strip().casefold() == pattern.strip().casefold()]
    return f"; names must be equal to the letter, the file has {alike[0]!r}" if alike else ""


def _wanted(schema: DelimitedSchema) -> Iterable[tuple[str, Sequence[str], int, Categorical | None]]:
    """Key in the schema, column names, kind, and the settings of categories."""
    if schema.label is not None:
        rule = kernels.LABEL_BINARY
        if schema.label.positive is not None:
            rule = kernels.LABEL_SET
        if schema.label.threshold is not None:
            rule = kernels.LABEL_THRESHOLD
        yield "label.column", [schema.label.column], rule, None
    for number, more in enumerate(schema.more_labels):
        yield f"more_labels.{number}.column", [more.column], _MORE_LABEL, None
    if schema.time is not None:
        kind = kernels.TIME_ISO if schema.time.kind == "iso" else kernels.TIME_NUMBER
        yield "time.column", [schema.time.column], kind, None
    for number, dense in enumerate(schema.dense):
        kind = kernels.DENSE_INTEGER if dense.kind == "int" else kernels.DENSE_FLOAT
        yield f"dense.{number}.columns", dense.columns, kind, None
    for number, group in enumerate(schema.categorical):
        yield f"categorical.{number}.columns", group.columns, _CATEGORY_KINDS[group.kind], group


def _column(name: str, kind: int, group: Categorical | None, *, is_list: bool) -> Column:
    if kind == _MORE_LABEL:
        return Column(name, kernels.DENSE_FLOAT, is_label=True)
    if group is None:
        return Column(name, kind)
    if group.inner_separator is not None or is_list:
        return Column(name, kernels.KEY_BAG, item=kind, inner=group.inner_separator or "")
    return Column(name, kind, required=group.missing == "reject")


def _matching(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for pattern in patterns:
        if pattern in names:
            found.append(pattern)
        elif "*" in pattern or "?" in pattern:
            found += [name for name in names if fnmatchcase(name, pattern)]
    return found


def _rule(group: Categorical, options: DataOptions, *, is_bag: bool) -> RowRule:
    if group.num_embeddings is not None:
        has_missing = group.missing == "row" and not is_bag
        return RowRule("direct", group.num_embeddings, has_missing)
    if group.hash_rows is not None:
        return RowRule("hashed", group.hash_rows)
    if options.vocabulary if group.vocabulary is None else group.vocabulary:
        return RowRule("fitted", group.min_count or options.min_count)
    return RowRule("hashed", options.hash_rows)


def _time_cut(time: Time | None, options: DataOptions) -> float | None:
    cut = options.time_split
    if cut is None:
        return None
    if time is None:
        raise ConfigError("time_split needs a [time] column in the schema")
    if time.kind == "iso":
        data = np.frombuffer(str(cut).encode() + b"\n", np.uint8)
        seconds, stop = iso_time(data, 0)
        if stop != len(data) - 1:
            raise ConfigError(
                f"time_split {cut!r}: the schema's time is iso; give for example 2019-11-29 or with a time"
            )
        return float(seconds)
    try:
        return float(cut)
    except ValueError:
        raise ConfigError(f"time_split {cut!r}: the schema's time is a number; give a number") from None
