"""Schemas: TOML files that describe delimited files and lists of user-item pairs; docs/how-to/data.md has every key."""

import difflib
import errno
import math
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails

from adaptive.config import Config
from adaptive.errors import ConfigError
from adaptive.storage.untrusted import check_depth, read_plain

INSTALLED = Path(__file__).parents[1] / "schemas"
MOST_BYTES = 2**22  # of a schema
NULLS = ("", "NA", "NaN", "\\N")  # texts of missing values, unless a schema has others
MAX_ROWS = 2**40 - 2  # of one table, with rows for missing and unknown ids; the books of more would take 16 TiB


def _one_character(text: str) -> str:
    if len(text) != 1 or not text.isascii() or text.isalnum() or text in "._-+\r\n\0":
        raise ValueError("must be one ASCII character other than letters, digits, '.', '_', '-', '+' and line ends")
    return text


Separator = Annotated[str, AfterValidator(_one_character)]
Names = Annotated[tuple[str, ...], Field(min_length=1)]


class Label(Config):
    """The column that labels come from, and the rule that makes them 0 or 1."""

    column: str = Field(description="0 or 1, unless there is a rule")
    positive: tuple[str, ...] | None = Field(default=None, min_length=1, description="texts that make a label 1")
    threshold: float | None = Field(default=None, description="numbers from here on make a label 1")

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if self.positive is not None and self.threshold is not None:
            raise ValueError("positive and threshold exclude each other")
        return self


class MoreLabel(Config):
    """A column of a further label, for models of several. It is called as the column is."""

    column: str = Field(description="0 or 1, unless there is a threshold; none may be missing")
    threshold: float | None = Field(default=None, description="numbers from here on make a label 1")


class Dense(Config):
    """Columns of numbers that go to the dense part of a model; missing ones are 0."""

    columns: Names = Field(description="names, or patterns with * and ?")
    kind: Literal["int", "float"] = "float"
    transform: Literal["none", "log"] = Field(default="none", description="log: log(1 + max(x, 0))")


class Categorical(Config):
    """Columns of categories. Without num_embeddings, hash_rows and vocabulary the data options say how they map."""

    columns: Names = Field(description="names, or patterns with * and ?")
    kind: Literal["hex", "int", "string"] = "string"
    num_embeddings: int | None = Field(
        default=None, ge=1, le=MAX_ROWS, description="ids are rows in [0, num_embeddings)"
    )
    hash_rows: int | None = Field(default=None, ge=1, lt=2**32, description="rows into which ids are hashed")
    vocabulary: bool | None = Field(default=None, description="rows by fitted vocabulary; false: hash")
    min_count: int | None = Field(default=None, ge=1, description="times an id must come to get a row")
    inner_separator: Separator | None = Field(default=None, description="between the values of a bag")
    table: str | None = Field(default=None, description="table, if shared; default: one per column")
    width: int | None = Field(
        default=None, ge=1, le=4096, description="values of a row of these tables; default: model.embedding_dim"
    )
    missing: Literal["row", "reject"] = Field(
        default="row", description="an empty field: a row of its own, or a bad line; an empty bag is never bad"
    )

    @model_validator(mode="after")
    def _one_mapping(self) -> Self:
        given = [name for name in ("num_embeddings", "hash_rows", "vocabulary") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other")
        if self.num_embeddings is not None and self.kind == "string":
            raise ValueError("num_embeddings needs ids that are numbers: kind = 'int' or 'hex'")
        if self.min_count is not None and (self.num_embeddings is not None or self.hash_rows is not None):
            raise ValueError("min_count belongs to a vocabulary")
        if self.missing == "reject" and self.inner_separator is not None:
            raise ValueError("missing = 'reject' is for single values; a bag may be empty")
        return self


class Time(Config):
    """The column that `time_split` compares; a line without a time is bad."""

    column: str
    kind: Literal["number", "iso"] = Field(default="number", description="iso: YYYY-MM-DD[ T]HH:MM:SS[.f][Z or +HH:MM]")


class DelimitedSchema(Config):
    """A file with one sample per line."""

    format: Literal["delimited"] = "delimited"
    separator: Separator = ","
    quote: Literal['"', "'", ""] = '"'
    header: bool = True
    columns: tuple[str, ...] | None = Field(default=None, min_length=1, description="names, if there is no header")
    null: tuple[str, ...] = Field(
        default=NULLS, max_length=64, description="texts of missing values; the empty one is missing in any case"
    )
    label: Label | None = None
    more_labels: tuple[MoreLabel, ...] = ()
    dense: tuple[Dense, ...] = ()
    categorical: tuple[Categorical, ...] = Field(min_length=1)
    time: Time | None = None

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.header == (self.columns is not None):
            raise ValueError("give columns = [...] if and only if header = false")
        if self.quote == self.separator:
            raise ValueError("quote and separator must differ")
        if self.more_labels and self.label is None:
            raise ValueError("more_labels need a label, which is the first of them")
        inner = [group.inner_separator for group in self.categorical if group.inner_separator]
        if self.separator in inner or self.quote in inner:
            raise ValueError("inner_separator must differ from separator and quote")
        self._check_nulls({self.separator, self.quote, *inner, "\r", "\n", "\0"} - {""})
        return self

    def _check_nulls(self, refused: set[str]) -> None:
        """Numbers are refused since columns of numbers have no texts: the same data would differ by format."""
        for text in self.null:
            if _is_number(text) or (
                any(group.kind == "hex" for group in self.categorical) and re.fullmatch("[0-9a-fA-F]{1,16}", text)
            ):
                raise ValueError(f"null: expected texts that are no numbers, got {text!r}")
            if any(character in text for character in refused):
                raise ValueError(f"null: expected texts without separators, quotes and line ends, got {text!r}")
            if self.label is not None and text in (self.label.positive or ()):
                raise ValueError(f"null: {text!r} is among label.positive; a missing label is no label")


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


class UserItemsSchema(Config):
    """A file of implicit positives: each line a user and the items it interacted with, `user item item ...`."""

    format: Literal["user_items"]
    separator: Separator = " "
    num_users: int = Field(ge=1, le=MAX_ROWS, description="users are numbers in [0, num_users)")
    num_items: int = Field(ge=1, lt=2**32, description="items are numbers in [0, num_items)")
    num_negatives: int = Field(default=4, ge=0, le=1000, description="negative samples drawn for each pair")


Schema = DelimitedSchema | UserItemsSchema


def load_schema(path: Path) -> Schema:
    """Read a schema file; a name without folder and ending, such as `kdd12-click`, may be that of an installed one.

    Raises:
        ConfigError: with all that is wrong, each with its key.
    """
    path = schema_file(path)
    try:
        if not os.path.exists(path):  # which takes names that the system refuses, too
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        text = read_plain(path, MOST_BYTES, error=ConfigError, follow=True).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        names = ", ".join(sorted(file.stem for file in INSTALLED.glob("*.toml")))
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"schema {path}: cannot be read ({reason}); installed ones are {names}") from error
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # one for syntax, and Python's limit of digits
        raise ConfigError(f"schema {path}: not valid TOML: {error}") from error
    check_depth(values, f"schema {path}", error=ConfigError)
    return schema_of(values, f"schema {path}")


def required_schema(what: str, path: Path | None) -> Schema:
    """The schema of data of a kind that needs one. Raises ConfigError: if there is none, or it is wrong."""
    if path is None:
        raise ConfigError(
            f"{what}: needs a schema that describes the columns: --schema FILE (data.schema_path); "
            "see docs/how-to/data.md"
        )
    return load_schema(path)


def delimited_only(what: str, schema: Schema) -> DelimitedSchema:
    """The schema, of data that have columns. Raises ConfigError: if it describes lists."""
    if not isinstance(schema, DelimitedSchema):
        raise ConfigError(f"{what} the schema's format is user_items, lists in text files; describe columns instead")
    return schema


def schema_of(values: Mapping[str, object], what: str = "schema") -> Schema:
    """The schema with this content.

    Raises:
        ConfigError: with all that is wrong, each with its key; begins with `what`.
    """
    model = UserItemsSchema if values.get("format") == "user_items" else DelimitedSchema
    try:
        return TypeAdapter[Schema](model).validate_python(values)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, wrong['loc'])) or 'schema'}: {_problem(wrong)}" for wrong in error.errors()]
        raise ConfigError("\n".join([f"{what}:", *lines])) from error


def schema_file(path: Path, home: Path = Path()) -> Path:
    """The file that a setting names: itself, relative to the folder `home`, or the installed schema of that name."""
    file, named = home / path, INSTALLED / f"{path}.toml"
    if not os.path.isfile(file) and path.name == str(path) and not path.suffix and named.is_file():
        return named
    return file


def _problem(wrong: ErrorDetails) -> str:
    if wrong["type"] == "missing":
        return "needed, and not there"
    if wrong["type"] == "extra_forbidden":
        return f"unknown key{_meant_key(wrong['loc'])}"
    message = wrong["msg"].removeprefix("Value error, ")
    return message if isinstance(wrong["input"], dict) else f"{message}, found {_shown(wrong['input'])}"


def _meant_key(location: tuple[int | str, ...]) -> str:
    """The key that an unknown one is most like, as the end of a message."""
    parts: dict[str, type[Config]] = {
        "label": Label,
        "more_labels": MoreLabel,
        "dense": Dense,
        "categorical": Categorical,
        "time": Time,
    }
    model = parts.get(str(location[0]), DelimitedSchema) if len(location) > 1 else DelimitedSchema
    near = difflib.get_close_matches(str(location[-1]), model.model_fields, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(model.model_fields)}"


def _shown(value: object) -> str:
    try:
        return repr(value)[:200]
    except ValueError:  # Python shows no whole number of more than 4300 digits
        return "a number of thousands of digits"
