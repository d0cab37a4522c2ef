"""Schemas: TOML files that describe text files; docs/how-to/data.md lists all keys."""

import math
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from adaptive.config import MOST_KEYS, Config, Expiry, KeyRules, explain
from adaptive.errors import ConfigError
from adaptive.storage.files import read_file

INSTALLED = Path(__file__).parents[1] / "schemas"
NULLS = ("", "NA", "NaN", "\\N")  # default for text; formats with nulls of their own have other texts as values
DEFAULT_LENGTH, MOST_STEPS = 50, 4096  # ids of a sequence; 4096 is the longest of published models
MAX_ROWS = 2**40 - 2  # of a table, without rows for missing and unknown ids: the books of more would take 16 TiB


def _one_character(text: str) -> str:
    if len(text) != 1 or not text.isascii() or text.isalnum() or text in "._-+\r\n\0":
        raise ValueError("expected one ASCII character other than letters, digits, '.', '_', '-', '+' and line ends")
    return text


_VALUES = {"int": "-?[0-9]{1,19}", "hex": "[0-9a-fA-F]{1,16}", "string": "(?s).+"}
Separator = Annotated[str, AfterValidator(_one_character)]
Names = Annotated[tuple[str, ...], Field(min_length=1)]


class Label(Config):
    """The column of the labels, and the rule that makes them 0 or 1."""

    column: str = Field(description="0 or 1, unless there is a rule")
    positive: tuple[str, ...] | None = Field(default=None, min_length=1, description="texts that make a label 1")
    threshold: float | None = Field(default=None, description="numbers from here on make a label 1")

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if self.positive is not None and self.threshold is not None:
            raise ValueError("expected either positive or threshold, got both")
        return self


class Weight(Config):
    """The column of the weights of samples, by which losses and evaluations count them."""

    column: str = Field(description="numbers of at least 0; none may be missing")


class Dense(Config):
    """Columns of numbers for the dense part of a model; missing values are 0."""

    columns: Names = Field(description="names, or patterns with * and ?")
    kind: Literal["int", "float"] = "float"
    transform: Literal["none", "log", "standard"] = Field(
        default="none", description="log: log(1 + max(x, 0)); standard: (x - mean) / deviation of the first rows"
    )


class Categorical(Config):
    """Columns of categories; data options map those without a mapping."""

    columns: Names = Field(description="names, or patterns with * and ?")
    kind: Literal["hex", "int", "string"] = "string"
    num_embeddings: int | None = Field(
        default=None, ge=1, le=MAX_ROWS, description="ids are rows in [0, num_embeddings)"
    )
    hash_rows: int | None = Field(default=None, ge=1, lt=2**32, description="rows into which ids are hashed")
    vocabulary: bool | None = Field(default=None, description="rows by fitted vocabulary; false: hash")
    keys: bool | None = Field(default=None, description="ids are 64-bit keys, which get rows as they appear")
    capacity: int | None = Field(default=None, ge=1, le=MOST_KEYS, description="rows for keys")
    admit: int | None = Field(default=None, ge=1, le=255, description="lookups after which a key gets a row")
    expire: Expiry = Field(default=None, description="batches, or time (14d) by [time], after which a key expires")
    when_full: Literal["evict", "error"] | None = Field(default=None, description="if all rows are taken")
    min_count: int | None = Field(default=None, ge=1, description="number of occurrences an id needs to get a row")
    inner_separator: Separator | None = Field(default=None, description="between the values of a bag")
    table: str | None = Field(default=None, description="table, if shared; default: one per column")
    sequence: bool = Field(
        default=False, description="the values of a bag are steps, oldest first, for models of sequences"
    )
    max_length: int | None = Field(
        default=None, ge=1, le=MOST_STEPS, description=f"latest steps of a sequence to keep; default: {DEFAULT_LENGTH}"
    )
    padding: str | None = Field(
        default=None, min_length=1, coerce_numbers_to_str=True, description="value in a bag that is no id; left out"
    )
    missing: Literal["row", "reject"] = Field(
        default="row", description="an empty field: use an extra row, or reject the line; an empty bag is never bad"
    )

    @model_validator(mode="after")
    def _one_mapping(self) -> Self:
        mappings = [name for name in ("num_embeddings", "hash_rows", "vocabulary", "keys") if getattr(self, name)]
        if len(mappings) > 1:
            raise ValueError(
                f"expected one of num_embeddings, hash_rows, vocabulary and keys, got {' and '.join(mappings)}"
            )
        of_keys = [name for name in ("capacity", *KeyRules.model_fields) if getattr(self, name) is not None]
        if of_keys and not self.keys:
            raise ValueError(f"expected keys = true with {' and '.join(of_keys)}, got none")
        if self.keys and self.capacity is None:
            raise ValueError(
                "expected capacity = ROWS with keys = true, the maximum number of keys with a row, got none"
            )
        if self.num_embeddings is not None and self.kind == "string":
            raise ValueError("expected kind = 'int' or 'hex' with num_embeddings, got 'string'")
        if self.min_count is not None and mappings not in ([], ["vocabulary"]):
            raise ValueError(f"expected min_count only with vocabulary = true, got it with {mappings[0]}")
        if self.max_length is not None and not self.sequence:
            raise ValueError(f"expected sequence = true with max_length, got max_length = {self.max_length} alone")
        if self.padding is not None and not re.fullmatch(_VALUES[self.kind], self.padding):
            raise ValueError(f"expected padding to be a value of kind = {self.kind!r}, got {self.padding!r}")
        if self.missing == "reject" and (self.inner_separator is not None or self.sequence):
            raise ValueError("expected missing = 'row' for a bag, which may be empty, got 'reject'")
        return self

    @property
    def key_rules(self) -> KeyRules | None:
        """The rules of keys; None if ids are not keys."""
        values = {name: getattr(self, name) for name in KeyRules.model_fields}
        return KeyRules(**{name: value for name, value in values.items() if value is not None}) if self.keys else None


class Time(Config):
    """The column that `data.time_split` compares and `expire` counts by; a line without a time is bad."""

    column: str
    kind: Literal["number", "iso"] = Field(
        default="number", description="iso: YYYY-MM-DD[ T]HH:MM[:SS[.f]][zone]: Z, UTC, +HH, +HHMM"
    )


class Schema(Config):
    """Data with one sample per line or row."""

    separator: Separator = ","
    quote: Literal['"', "'", ""] = '"'
    header: bool = True
    columns: tuple[str, ...] | None = Field(default=None, min_length=1, description="names, if there is no header")
    null: tuple[str, ...] | None = Field(
        default=None, max_length=64, description="texts of missing values; the empty one is missing in any case"
    )
    label: Label | None = None
    weight: Weight | None = None
    dense: tuple[Dense, ...] = ()
    categorical: tuple[Categorical, ...] = Field(min_length=1)
    time: Time | None = None

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.header == (self.columns is not None):
            got = "both" if self.header else "neither"
            raise ValueError(f"expected either header = true or columns = [...], got {got}")
        if self.quote == self.separator:
            raise ValueError(f"expected quote and separator to differ, got {self.quote!r} for both")
        inner = [group.inner_separator for group in self.categorical if group.inner_separator]
        if self.separator in inner or self.quote in inner:
            raise ValueError(f"expected inner_separator to differ from separator and quote, got {inner}")
        self._check_nulls({self.separator, self.quote, *inner, "\r", "\n", "\0"} - {""})
        return self

    def _check_nulls(self, refused: set[str]) -> None:
        """Refuse numbers among others: typed columns have no texts, so formats would differ."""
        for text in NULLS if self.null is None else self.null:
            if _is_number(text) or (
                any(group.kind == "hex" for group in self.categorical) and re.fullmatch("[0-9a-fA-F]{1,16}", text)
            ):
                raise ValueError(f"expected texts that are not numbers in null, got {text!r}")
            if any(character in text for character in refused):
                raise ValueError(f"expected texts without separators, quotes and line ends in null, got {text!r}")
            if self.label is not None and text in (self.label.positive or ()):
                raise ValueError(f"expected texts in null that are not in label.positive, got {text!r}")


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def load_schema(path: Path) -> Schema:
    """Read a schema file, by path or by the name of an installed one such as `kdd12-click`.

    Raises:
        ConfigError: with all mistakes, each with its key.
    """
    path = schema_file(path)
    names = sorted(file.stem for file in INSTALLED.glob("*.toml"))
    advice = f"Give the path of a TOML file, or one of these names: {', '.join(names)}."
    if not os.path.exists(path):  # False also for names that the system does not allow
        raise ConfigError(f"schema {str(path)!r}: expected a file or a known name, got neither. {advice}")
    try:
        data = read_file(path, error=ConfigError)
    except ConfigError as error:
        raise ConfigError(f"schema {error}. {advice}") from error
    try:
        content = tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, nested too deeply, too many digits
        raise ConfigError(f"schema {path}: expected TOML in UTF-8, got {error}. Correct the file.") from error
    return schema_of(content, f"schema {path}")


def required_schema(kind: str, path: Path | None) -> Schema:
    """Return the schema of data that need one; raise ConfigError if it is missing or wrong."""
    if path is None:
        raise ConfigError(
            f"data {kind}: expected a schema that describes the columns, got none. Write one (docs/how-to/data.md) and "
            "add --schema FILE (data.schema_path)."
        )
    return load_schema(path)


def schema_of(values: Mapping[str, object], what: str = "schema") -> Schema:
    """Return the schema with this content.

    Raises:
        ConfigError: with all mistakes, each with its key; begins with `what`.
    """
    try:
        return Schema.model_validate(values)
    except ValidationError as error:
        mistakes = explain(Schema, error, separator="\n  ")
        raise ConfigError(f"{what}:\n  {mistakes}") from error


def schema_file(path: Path, home: Path = Path()) -> Path:
    """Return the file of a setting: one in the folder `home`, or an installed schema."""
    file, installed = home / path, INSTALLED / f"{path}.toml"
    if not os.path.isfile(file) and path.name == str(path) and not path.suffix and installed.is_file():
        return installed
    return file
