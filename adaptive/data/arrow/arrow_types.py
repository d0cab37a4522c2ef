"""Which of Arrow's types can be read as what a schema asks for, and the message where one cannot.

pyarrow is an optional dependency, imported where it is used (`pyarrow_or_error`).

Damage in files and columns that others wrote: told with its place.

What a schema means for columns in Arrow's format.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from adaptive.data.data_options import DataOptions
from adaptive.data.kernels import text as kernels
from adaptive.data.rows.row_dataset import RowPlan
from adaptive.data.rows.row_source import Column, RowFormat
from adaptive.data.text.delimited import describe
from adaptive.data.text.schema import DelimitedSchema
from adaptive.errors import ConfigError, InputError

# The sorts of Arrow types that are told apart. A dictionary is of the sort of its values.
INT, FLOAT, BOOL, DECIMAL, TEXT, TIME, LIST, NOTHING = "int", "float", "bool", "decimal", "text", "time", "list", "null"

_NUMBERS = (INT, FLOAT, BOOL, DECIMAL, TEXT, NOTHING)
READABLE = {
    kernels.DENSE_INTEGER: _NUMBERS,
    kernels.DENSE_FLOAT: _NUMBERS,
    kernels.KEY_HEX: (INT, TEXT, NOTHING),
    kernels.KEY_INTEGER: (INT, FLOAT, BOOL, TEXT, NOTHING),
    kernels.KEY_TEXT: (INT, BOOL, TEXT, NOTHING),
    kernels.LABEL_BINARY: _NUMBERS,
    kernels.LABEL_THRESHOLD: _NUMBERS,
    kernels.LABEL_SET: (INT, BOOL, TEXT, NOTHING),
    kernels.TIME_NUMBER: (INT, FLOAT, DECIMAL, TEXT, NOTHING),
    kernels.TIME_ISO: (TIME, TEXT, NOTHING),
}
_WANTED = {
    kernels.DENSE_INTEGER: "dense inputs of kind 'int'",
    kernels.DENSE_FLOAT: "dense inputs",
    kernels.KEY_HEX: "categories of kind 'hex'",
    kernels.KEY_INTEGER: "categories of kind 'int'",
    kernels.KEY_TEXT: "categories of kind 'string'",
    kernels.LABEL_BINARY: "labels",
    kernels.LABEL_THRESHOLD: "labels with a threshold",
    kernels.LABEL_SET: "labels with a list of positives",
    kernels.TIME_NUMBER: "times of kind 'number'",
    kernels.TIME_ISO: "times of kind 'iso'",
}


def pyarrow_or_error(what: str) -> Any:
    """The package pyarrow.

    Raises:
        ConfigError: if it is not installed; `what` needs it.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError(f"{what} needs pyarrow: pip install 'adaptive-train[parquet]' ({error})") from error
    return pyarrow


def sort_of(kind: Any) -> str | None:
    """The sort of an Arrow type, None if it is none that can be read."""
    from pyarrow import types as t

    if t.is_dictionary(kind):
        kind = kind.value_type
    tests = (
        (t.is_integer, INT),
        (t.is_floating, FLOAT),
        (t.is_boolean, BOOL),
        (t.is_decimal, DECIMAL),
        (is_text, TEXT),
        (t.is_timestamp, TIME),
        (t.is_date, TIME),
        (is_list, LIST),
        (t.is_null, NOTHING),
    )
    return next((sort for test, sort in tests if test(kind)), None)


def is_list(kind: Any) -> bool:
    from pyarrow import types as t

    lists = (t.is_list, t.is_large_list, t.is_fixed_size_list, t.is_list_view, t.is_large_list_view)
    return any(test(kind) for test in lists)


def is_text(kind: Any) -> bool:
    from pyarrow import types as t

    return any(test(kind) for test in (t.is_string, t.is_large_string, t.is_string_view, is_bytes))


def is_bytes(kind: Any) -> bool:
    """Bytes, which are read as the text that they are in UTF-8."""
    from pyarrow import types as t

    return any(test(kind) for test in (t.is_binary, t.is_large_binary, t.is_binary_view, t.is_fixed_size_binary))


def problem(column: Column, kind: Any) -> str:
    """Why a column of an Arrow type cannot be read, empty if it can."""
    is_bag = column.kind == kernels.KEY_BAG
    wanted, found = (column.item if is_bag else column.kind), kind
    if is_list(kind):
        if not is_bag:
            return f"column {column.name!r} holds {kind}, lists, which only categories can be"
        found = kind.value_type
    if sort_of(found) in READABLE[wanted]:
        return ""
    return f"column {column.name!r} holds {kind}, which cannot be read as {_WANTED[wanted]}{_advice(wanted, found)}"


def _advice(wanted: int, kind: Any) -> str:
    sort = sort_of(kind)
    if sort == FLOAT and wanted == kernels.KEY_TEXT:
        return ": kind = 'int' reads whole numbers, or store the column as texts"
    if sort == TIME and wanted == kernels.TIME_NUMBER:
        return ": kind = 'iso' reads dates and timestamps"
    if sort == INT and wanted == kernels.TIME_ISO:
        return ": kind = 'number' does"
    return "; store it as one of: " + ", ".join(sort for sort in READABLE[wanted] if sort != NOTHING)


class DamagedError(ValueError):
    """A file is not what its footer says, or a column not what Arrow allows."""


@contextmanager
def damage_told(where: str) -> Iterator[None]:
    """Within it, what is wrong with a column or a file becomes an InputError with its place."""
    import pyarrow as pa

    try:
        yield
    except (OSError, DamagedError, UnicodeDecodeError, OverflowError, pa.ArrowException) as error:
        message = first_line(error)
        if "not yet implemented" in message.lower():  # pyarrow raises an OSError for it, as for damage
            raise InputError(
                f"{where}: expected encodings that pyarrow {pa.__version__} reads, got one that it does not "
                f"({message}). Write the file with another encoding, or upgrade pyarrow."
            ) from error
        raise InputError(f"{where}: damaged or cut off ({message}); write the file again") from error


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def describe_columns(
    schema: DelimitedSchema, found: Mapping[str, Any], options: DataOptions, *, what: str
) -> tuple[RowFormat, RowPlan]:
    """The columns of the schema, in the order of the data, and what becomes of them. Lists are bags, whether or not the
    schema has a separator for them; `separator`, `quote`, `header` and `columns` are about text and mean nothing here.

    Args:
        found: name -> Arrow type of all columns.
        what: the data, for messages.

    Raises:
        ConfigError: with all columns that are missing, used twice, or of a type that cannot be read.
    """
    lists = {name for name, kind in found.items() if is_list(kind)}
    form, plan = describe(schema, list(found), options, lists=lists)
    problems = [problem(column, found[column.name]) for column in form.columns]
    if any(problems):
        raise ConfigError("\n  ".join([f"{what}: the schema does not fit:", *filter(None, problems)]))
    return form, plan


def readable(form: RowFormat, found: Mapping[str, Any], what: str) -> None:
    """Check that another file can be read as the first one is.

    Raises:
        InputError: if columns are missing, of a type that cannot be read, or lists in one of the two only.
    """
    problems = []
    for column in form.columns:
        kind = found.get(column.name)
        if kind is None:
            problems.append(f"no column {column.name!r}, which the first file has")
        elif column.kind == kernels.KEY_BAG and not column.inner and not is_list(kind):
            problems.append(f"column {column.name!r} holds {kind}, in the first file lists")
        else:
            problems.append(problem(column, kind))
    if any(problems):
        raise InputError("\n  ".join([f"{what}: differs from the first file:", *filter(None, problems)]))
