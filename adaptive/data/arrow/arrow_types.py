"""Which of Arrow's types can be read as what a schema asks for, what a schema means for columns of such types, and the
messages where columns or files are none.

pyarrow is an optional dependency, imported where it is used (`pyarrow_or_error`).
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

Types = Mapping[str, object]  # name -> Arrow type, of columns

# The sorts of Arrow types that are told apart. A dictionary is of the sort of its values.
INT, FLOAT, BOOL, DECIMAL, TEXT, TIME, LIST, NOTHING = "int", "float", "bool", "decimal", "text", "time", "list", "null"

_NUMBERS = (INT, FLOAT, BOOL, DECIMAL, TEXT, NOTHING)
# Of each kind the sorts that can be read as such, and its name in messages.
_KINDS = {
    kernels.DENSE_INTEGER: (_NUMBERS, "dense inputs of kind 'int'"),
    kernels.DENSE_FLOAT: (_NUMBERS, "dense inputs"),
    kernels.KEY_HEX: ((INT, TEXT, NOTHING), "categories of kind 'hex'"),
    kernels.KEY_INTEGER: ((INT, FLOAT, BOOL, TEXT, NOTHING), "categories of kind 'int'"),
    kernels.KEY_TEXT: ((INT, BOOL, TEXT, NOTHING), "categories of kind 'string'"),
    kernels.LABEL_BINARY: (_NUMBERS, "labels"),
    kernels.LABEL_THRESHOLD: (_NUMBERS, "labels with a threshold"),
    kernels.LABEL_SET: ((INT, BOOL, TEXT, NOTHING), "labels with a list of positives"),
    kernels.TIME_NUMBER: ((INT, FLOAT, DECIMAL, TEXT, NOTHING), "times of kind 'number'"),
    kernels.TIME_ISO: ((TIME, TEXT, NOTHING), "times of kind 'iso'"),
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


def types_of(schema: Any, what: str) -> Types:
    """The types of the columns of an Arrow schema. Raises InputError: if a column comes twice."""
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise InputError(f"{what}: columns come twice: {', '.join(twice)}")
    return {column.name: column.type for column in schema}


def problem(column: Column, kind: Any) -> str:
    """Why a column of an Arrow type cannot be read, empty if it can."""
    is_bag, item = column.sort == "bags", kind
    if is_list(kind):
        if not is_bag:
            return f"column {column.name!r} holds {kind}, lists, which only categories can be"
        item = kind.value_type
    wanted = column.item if is_bag else column.kind
    (sorts, words), sort = _KINDS[wanted], sort_of(item)
    if sort in sorts:
        return ""
    advice = {
        (FLOAT, kernels.KEY_TEXT): ": kind = 'int' reads whole numbers, or store the column as texts",
        (TIME, kernels.TIME_NUMBER): ": kind = 'iso' reads dates and timestamps",
        (INT, kernels.TIME_ISO): ": kind = 'number' does",
    }.get((str(sort), wanted), "; store it as one of: " + ", ".join(sort for sort in sorts if sort != NOTHING))
    return f"column {column.name!r} holds {kind}, which cannot be read as {words}{advice}"


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
    schema: DelimitedSchema, types: Types, options: DataOptions, *, what: str
) -> tuple[RowFormat, RowPlan]:
    """The columns of the schema, in the order of the data, and what becomes of them. Lists are bags, whether or not the
    schema has a separator for them; `separator`, `quote`, `header` and `columns` are about text and mean nothing here.

    Args:
        types: of all columns.
        what: the data, for messages.

    Raises:
        ConfigError: with all columns that are missing, used twice, or of a type that cannot be read.
    """
    lists = {name for name, kind in types.items() if is_list(kind)}
    form, plan = describe(schema, list(types), options, lists=lists)
    problems = list(filter(None, (problem(column, types[column.name]) for column in form.columns)))
    if problems:
        raise ConfigError("\n  ".join([f"{what}: the schema does not fit:", *problems]))
    return form, plan


def check_readable(form: RowFormat, types: Types, what: str) -> None:
    """Check that another file can be read as the first one is.

    Raises:
        InputError: if columns are missing, of a type that cannot be read, or lists in one of the two only.
    """
    problems = []
    for column in form.columns:
        kind = types.get(column.name)
        if kind is None:
            problems.append(f"no column {column.name!r}, which the first file has")
        elif column.sort == "bags" and not column.inner and not is_list(kind):
            problems.append(f"column {column.name!r} holds {kind}, in the first file lists")
        else:
            problems.append(problem(column, kind))
    if any(problems):
        raise InputError("\n  ".join([f"{what}: differs from the first file:", *filter(None, problems)]))
