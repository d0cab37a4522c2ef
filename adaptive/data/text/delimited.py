"""Delimited files (csv, tsv, ...) with one sample per line, described by a schema; Criteo's files need none.

Criteo's click logs (Kaggle 2014 and the terabyte set): a line has a label (0 or 1), 13 integers and 26 categories of
hex digits, separated by tabs. All but the label may be empty, which means missing. Files without the label column (39
columns: the test set of the competition) get labels NaN, for predictions only. Dense inputs are log(1 + max(x, 0)) as
in facebookresearch/dlrm, and missing ones 0. Data options map categories to rows.
"""

import re
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np

from adaptive.config import KeyRules
from adaptive.data.data_options import DataOptions
from adaptive.data.findings import Finding
from adaptive.data.kernels import text as kernels
from adaptive.data.kernels.text_fields import parse_iso_time
from adaptive.data.rows.batcher import FeaturePlan, RowPlan, RowRule
from adaptive.data.rows.data_files import DataFile, find_files
from adaptive.data.rows.row_dataset import RowData
from adaptive.data.rows.row_source import Column, RowFormat, key_of
from adaptive.data.text.schema import (
    DEFAULT_LENGTH,
    NULLS,
    Categorical,
    Schema,
    required_schema,
)
from adaptive.data.text.text_reader import first_line, first_lines, open_text_files, split_fields
from adaptive.errors import ConfigError, InputError, suggestion

MOST_COLUMNS = 10_000
_FLOAT: Final = re.compile(r"-?[0-9]+(\.[0-9]*(e\+?[0-9]+)?|e\+?[0-9]+)", re.I)
NO_DATA = {"capacity", *KeyRules.model_fields}  # settings of a category that change no sample
_CATEGORY_KINDS = {"hex": kernels.KEY_HEX, "int": kernels.KEY_INTEGER, "string": kernels.KEY_TEXT}


def open_csv(paths: str, options: DataOptions, run_dir: Path | None) -> RowData:
    """Open the data set `csv:PATH[,PATH...]`."""
    schema = required_schema("csv", options.schema_path)
    files = find_files(paths)
    names = _column_names(files[0], schema, options)
    form, plan = describe(schema, names, options)

    def format_of(file: DataFile) -> RowFormat:
        header = _column_names(file, schema, options)
        if header != names:
            raise InputError(
                f"{file.path}:1: expected the header of the first file, {names}, got {header}. Use equal columns."
            )
        return form

    opened = open_text_files(paths, options, run_dir, format_of=format_of)
    return RowData(opened, plan, _find_float_text(files[0], form))


def _find_float_text(file: DataFile, form: RowFormat) -> Finding | None:
    """Find ids of kind 'string' that were floats before they became texts, by the first lines.

    A text such as 4.873214862074861e+18 stands for several ids. Public data have such columns, so it is no error.
    """
    texts = [
        (number, column) for number, column in enumerate(form.columns) if kernels.KEY_TEXT in (column.kind, column.item)
    ]
    lines = first_lines(file, form.max_line_bytes) if texts else []
    for line, content in enumerate(lines, start=1):
        fields = content.decode(errors="replace").split(form.separator)
        values = [(column, fields[number]) for number, column in texts if number < len(fields)]
        for column, value in values:
            for text in value.strip(form.quote or None).split(column.inner or None):
                if _FLOAT.fullmatch(text) and 2.0**53 <= abs(float(text)) < 2.0**64:
                    what = f"expected ids for {column.name}, got {text!r}, a float"
                    return Finding.of("float ids", what, f"{file.path}:{line}")
    return None


def describe(
    schema: Schema, names: Sequence[str], options: DataOptions, *, lists: Container[str] | None = None
) -> tuple[RowFormat, RowPlan]:
    """Return format and plan of a file with the columns `names`, as the schema describes them.

    Args:
        lists: of columnar data, the columns that hold lists. Columns that the schema does not name are then omitted,
            and only the empty text is missing unless the schema names others: such data have nulls.

    Raises:
        ConfigError: with all columns that are missing or used twice, or for an invalid time split.
    """
    if schema.null is None:
        schema = schema.model_copy(update={"null": NULLS if lists is None else ("",)})
    if options.label_optional:
        label = schema.label if schema.label is not None and schema.label.column in names else None
        weight = schema.weight if schema.weight is not None and schema.weight.column in names else None
        schema = schema.model_copy(update={"label": label, "weight": weight})
    uses = _uses(schema, names, lists or (), options)
    label = schema.label
    form = RowFormat(
        tuple(uses.get(name, Column(name, kernels.SKIP)) for name in names if lists is None or name in uses),
        separator=schema.separator,
        quote=schema.quote,
        header=schema.header,
        max_line_bytes=options.max_line_bytes,
        positives=label.positive or () if label is not None else (),
        threshold=label.threshold or 0.0 if label is not None else 0.0,
        nulls=tuple(text for text in schema.null or () if text),
    )
    features = tuple(
        FeaturePlan(
            name,
            group.table or name,
            form.slot(name),
            uses[name].sort == "bags",
            _rule(group, options, is_bag=uses[name].sort == "bags"),
            group.kind,
            (group.max_length or DEFAULT_LENGTH) if group.sequence else None,
            _padding_key(group),
        )
        for group in schema.categorical
        for name in _matching(group.columns, names)
    )
    _check_sequences(features)
    transforms = ["none"] * form.count("dense")
    for dense in schema.dense:
        for name in _matching(dense.columns, names):
            transforms[form.slot(name)] = dense.transform
    identity = {
        "format": "delimited",
        "schema": _identity(schema),
        "rows": {feature.name: f"{feature.rule.kind} {feature.rule.size}" for feature in features},
    }
    cut = parse_time_split(options, schema.time.kind if schema.time is not None else None)
    slot = None if schema.weight is None else form.slot(schema.weight.column)
    return form, RowPlan(features, tuple(transforms), cut, identity, schema.time is not None, slot)


def _identity(schema: Schema) -> dict[str, object]:
    """Return the schema as JSON values, without what is no fact about the data; as before there were sequences."""
    values = schema.model_dump(mode="json", exclude={"categorical": {"__all__": NO_DATA}})
    for group in values["categorical"]:
        if not group["sequence"]:
            del group["sequence"], group["max_length"]
        if group["padding"] is None:
            del group["padding"]
    return values


def _padding_key(group: Categorical) -> int | None:
    """Return the key of the padding of bags, as readers make keys of values."""
    if group.padding is None:
        return None
    if group.kind == "string":
        return key_of(group.padding)
    key = int(group.padding, 16 if group.kind == "hex" else 10)
    return key - 2**64 if key >= 2**63 else key


def _check_sequences(features: Sequence[FeaturePlan]) -> None:
    for feature in features:
        if feature.padding is not None and not feature.is_bag:
            raise ConfigError(
                f"column {feature.name!r}: expected a list with padding, got single values. Set inner_separator, or "
                "remove padding from the schema."
            )
    sequences = {feature.table: feature.name for feature in features if feature.max_length is not None}
    for feature in features:
        if feature.max_length is not None and not feature.is_bag:
            raise ConfigError(
                f"column {feature.name!r}: expected a list with sequence = true, got single values. Set "
                "inner_separator, or remove sequence from the schema."
            )
        if feature.is_bag and feature.max_length is None and feature.table in sequences:
            raise ConfigError(
                f"table {feature.table!r}: expected columns of one value next to the sequence "
                f"{sequences[feature.table]!r}, got the bag {feature.name!r}. Set sequence = true for it, or give it "
                "another table."
            )


def _rule(group: Categorical, options: DataOptions, *, is_bag: bool) -> RowRule:
    """Return the rule of a category; options apply where the schema has none."""
    if group.num_embeddings is not None:
        return RowRule("direct", group.num_embeddings, group.missing == "row" and not is_bag)
    if group.hash_rows is not None:
        return RowRule("hashed", group.hash_rows)
    if group.capacity is not None:
        return RowRule("keyed", group.capacity, keys=group.key_rules)
    changed = {"vocabulary": group.vocabulary, "min_count": group.min_count}
    update: dict[str, object] = {name: value for name, value in changed.items() if value is not None}
    if group.vocabulary is not None or group.keys is False:
        update["keys"] = None
    return RowRule.of(options.model_copy(update=update))


def _column_names(file: DataFile, schema: Schema, options: DataOptions) -> list[str]:
    """Return the columns of a file, without optional labels that are not in its first line."""
    if schema.columns is None:
        names = _fields(file, schema, options)
        if not names:
            raise InputError(
                f"{file.path}:1: expected a header line, got an empty file. For files without a header set header = "
                "false and columns = [...] in the schema."
            )
        return [name or f"column {number + 1}" for number, name in enumerate(names)]
    names = list(schema.columns)
    label = schema.label.column if schema.label is not None else None
    if options.label_optional and label in names and len(_fields(file, schema, options)) == len(names) - 1:
        names.remove(label)
    return names


def _fields(file: DataFile, schema: Schema, options: DataOptions) -> list[str]:
    """Return the fields of the first line; no fields for an empty file."""
    line = first_line(file, options.max_line_bytes)
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        encoding = "utf-16" if line.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin1"
        raise InputError(
            f"{file.path}:1: expected a header in UTF-8, got {error.reason} at byte {error.start}. Convert the file, "
            f"for example with iconv -f {encoding} -t utf-8."
        ) from error
    return split_fields(text, schema.separator, schema.quote) if text else []


class _Wanted(NamedTuple):
    """A key of the schema that names columns, and their `Column` without its name."""

    key: str
    patterns: Sequence[str]
    column: Column
    may_be_list: bool = False


def _wanted(schema: Schema, options: DataOptions) -> Iterator[_Wanted]:
    if schema.label is not None:
        kind = kernels.LABEL_BINARY if schema.label.positive is None else kernels.LABEL_SET
        kind = kind if schema.label.threshold is None else kernels.LABEL_THRESHOLD
        yield _Wanted("label.column", [schema.label.column], Column("", kind))
    if schema.weight is not None:
        yield _Wanted("weight.column", [schema.weight.column], Column("", kernels.DENSE_FLOAT, is_weight=True))
    if schema.time is not None:
        kind = kernels.TIME_ISO if schema.time.kind == "iso" else kernels.TIME_NUMBER
        yield _Wanted("time.column", [schema.time.column], Column("", kind))
    for number, dense in enumerate(schema.dense):
        kind = kernels.DENSE_INTEGER if dense.kind == "int" else kernels.DENSE_FLOAT
        yield _Wanted(f"dense.{number}.columns", dense.columns, Column("", kind))
    for number, group in enumerate(schema.categorical):
        is_key = _rule(group, options, is_bag=False).kind == "keyed"
        column = Column("", _CATEGORY_KINDS[group.kind], required=group.missing == "reject", is_key=is_key)
        if group.inner_separator is not None:
            column = replace(column, kind=kernels.KEY_BAG, item=column.kind, inner=group.inner_separator)
        yield _Wanted(f"categorical.{number}.columns", group.columns, column, may_be_list=True)


def _uses(schema: Schema, names: Sequence[str], lists: Container[str], options: DataOptions) -> dict[str, Column]:
    """Return name -> column for each column that the schema names."""
    if len(names) > MOST_COLUMNS:
        raise ConfigError(
            f"schema: expected a file of at most {MOST_COLUMNS:,} columns, got {len(names):,}. Check the separator."
        )
    problems = [f"expected each column once, got {name!r} twice" for name, n in sorted(Counter(names).items()) if n > 1]
    uses, keys = dict[str, Column](), dict[str, str]()
    for key, patterns, column, may_be_list in _wanted(schema, options):
        for pattern in patterns:
            matches = _matching([pattern], names)
            if not matches:
                problems.append(f"{key}: expected a column of the file, got {pattern!r}{_meant(pattern, names)}")
            for name in matches:
                if name in uses:
                    problems.append(f"{key}: expected an unused column, got {name!r}, which is {keys[name]}")
                keys.setdefault(name, key)
                uses[name] = replace(column, name=name)
                if name in lists and may_be_list:
                    if column.required:
                        problems.append(f"{key}: expected missing = 'row' for lists in {name!r}, got 'reject'")
                    if column.sort != "bags":
                        uses[name] = Column(name, kernels.KEY_BAG, item=column.kind, is_key=column.is_key)
    if problems:
        raise ConfigError(
            "The schema does not fit the file. Correct these keys:\n  " + "\n  ".join(problems) + "\n"
            f"Columns of the file: {', '.join(map(repr, names))}.{_other_separator(schema, names, options)}"
        )
    return uses


def _other_separator(schema: Schema, names: Sequence[str], options: DataOptions) -> str:
    """Return a hint if another separator splits a header of one column, or nothing."""
    patterns = [pattern for wanted in _wanted(schema, options) for pattern in wanted.patterns]
    matches = {other: len(_matching(patterns, names[0].split(other))) for other in ",\t;| "} if len(names) == 1 else {}
    best = max(matches, key=matches.__getitem__, default="")
    if not matches or not matches[best]:
        return ""
    return f"\nWith separator = {schema.separator!r} the header is one column. Set separator = {best!r} in the schema."


def _meant(pattern: str, names: Sequence[str]) -> str:
    """Return the most similar name as a hint; case and spaces are easily overlooked."""
    alike = [name for name in names if name.strip().casefold() == pattern.strip().casefold()]
    if alike:
        return f"; did you mean {alike[0]!r}? Case and spaces count"
    return suggestion(pattern, names)


def _matching(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    matches: list[str] = []
    for pattern in patterns:
        if pattern in names:
            matches.append(pattern)
        elif "*" in pattern or "?" in pattern:
            matches += [name for name in names if fnmatchcase(name, pattern)]
    return matches


def parse_time_split(options: DataOptions, kind: Literal["iso", "number"] | None) -> float | None:
    """Return the time of `data.time_split` as a number; None if it is not set.

    Raises:
        ConfigError: if it is not a time of this kind, or the data have no times.
    """
    cut = options.time_split
    if cut is None:
        return None
    if kind is None:
        raise ConfigError(
            f"data.time_split: expected a schema with a time column, got none for {cut!r}. Add [time] to the schema."
        )
    if kind == "iso":
        data = np.frombuffer(str(cut).encode() + b"\n", np.uint8)
        seconds, stop = parse_iso_time(data, 0)
        if stop != len(data) - 1:
            raise ConfigError(
                f"data.time_split: expected an ISO time, as in the data, got {cut!r}. Example: 2019-11-29 12:00:00."
            )
        return float(seconds)
    try:
        return float(cut)
    except ValueError:
        raise ConfigError(
            f"data.time_split: expected a number in the unit of the time column, got {cut!r}. 2026-11-28 is "
            "1795824000 in seconds since 1970, and 1795824000000 in milliseconds. If the column has dates, set kind = "
            "'iso' in [time]."
        ) from None


# -- Criteo's click logs ----------------------------------------------------------------------------------------------

NUM_DENSE, NUM_CATEGORIES = 13, 26

_LABEL = (Column("label", kernels.LABEL_BINARY),)
_INPUTS = tuple(Column(f"I{i + 1}", kernels.DENSE_INTEGER) for i in range(NUM_DENSE)) + tuple(
    Column(f"C{i + 1}", kernels.KEY_HEX) for i in range(NUM_CATEGORIES)
)


def open_criteo(paths: str, options: DataOptions, run_dir: Path | None) -> RowData:
    """Open the data set `criteo:PATH[,PATH...]`."""

    def format_of(file: DataFile) -> RowFormat:
        has_label = first_line(file, options.max_line_bytes).count(b"\t") + 1 != len(_INPUTS)
        columns = _LABEL + _INPUTS if has_label else _INPUTS
        return RowFormat(columns, separator="\t", max_line_bytes=options.max_line_bytes)

    opened, rule = open_text_files(paths, options, run_dir, format_of=format_of), RowRule.of(options)
    features = tuple(FeaturePlan(f"C{i + 1}", f"C{i + 1}", i, False, rule, "hex") for i in range(NUM_CATEGORIES))
    identity: dict[str, object] = {"format": "criteo", "rows": rule.kind, "rows_setting": rule.size}
    return RowData(opened, RowPlan(features, ("log",) * NUM_DENSE, None, identity))
