"""Read Arrow arrays as the keys and numbers that a schema asks for, if types allow it.

The meaning of a value does not depend on its type: the integer 12, the text "12" and the dictionary entry "12" are the
same category, which is that of `12` in a text file. Empty texts, the texts that the schema names as `null`, and NaN are
missing, like null. "NA" is a text, since a missing value would be null.

pyarrow is an optional dependency, imported where it is used (`pyarrow_or_error`).
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive.data.data_options import DataOptions
from adaptive.data.kernels import arrow as kernels
from adaptive.data.kernels import text
from adaptive.data.rows.batcher import RowPlan
from adaptive.data.rows.row_source import Column, RowFormat
from adaptive.data.text.delimited import describe
from adaptive.data.text.schema import Schema
from adaptive.errors import ConfigError, InputError

Types = Mapping[str, object]  # name -> Arrow type, of columns

# The sorts of Arrow types. A dictionary is of the sort of its values.
INT, FLOAT, BOOL, DECIMAL, TEXT, TIME, LIST, NOTHING = "int", "float", "bool", "decimal", "text", "time", "list", "null"

_BYTES = ("binary", "large_binary", "binary_view", "fixed_size_binary")  # read as UTF-8 text
_SORTS = {
    INT: ("integer",),
    FLOAT: ("floating",),
    BOOL: ("boolean",),
    DECIMAL: ("decimal",),
    TEXT: ("string", "large_string", "string_view", *_BYTES),
    TIME: ("timestamp", "date"),
    LIST: ("list", "large_list", "fixed_size_list", "list_view", "large_list_view"),
    NOTHING: ("null",),
}  # sort -> tests of `pyarrow.types`

_NUMBERS = (INT, FLOAT, BOOL, DECIMAL, TEXT, NOTHING)
# For each kind: the sorts that can be read as it, and its name in messages.
_KINDS = {
    text.DENSE_INTEGER: (_NUMBERS, "dense inputs of kind 'int'"),
    text.DENSE_FLOAT: (_NUMBERS, "dense inputs"),
    text.KEY_HEX: ((INT, TEXT, NOTHING), "categories of kind 'hex'"),
    text.KEY_INTEGER: ((INT, FLOAT, BOOL, DECIMAL, TEXT, NOTHING), "categories of kind 'int'"),
    text.KEY_TEXT: ((INT, BOOL, DECIMAL, TEXT, NOTHING), "categories of kind 'string'"),
    text.LABEL_BINARY: (_NUMBERS, "labels"),
    text.LABEL_THRESHOLD: (_NUMBERS, "labels with a threshold"),
    text.LABEL_SET: ((INT, BOOL, TEXT, NOTHING), "labels with a list of positives"),
    text.TIME_NUMBER: ((INT, FLOAT, DECIMAL, TEXT, NOTHING), "times of kind 'number'"),
    text.TIME_ISO: ((TIME, TEXT, NOTHING), "times of kind 'iso'"),
}


def pyarrow_or_error(what: str) -> Any:
    """Return the package pyarrow; raise ConfigError, for `what`, if it is not installed."""
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError(
            f"{what}: expected pyarrow, got an error ({error}). Run pip install 'adaptive-train[parquet]'."
        ) from error
    return pyarrow


def sort_of(kind: Any) -> str | None:
    """Return the sort of an Arrow type; None if it cannot be read."""
    kind = kind.value_type if _is(kind, ("dictionary",)) else kind
    return next((sort for sort, names in _SORTS.items() if _is(kind, names)), None)


def is_list(kind: Any) -> bool:
    """Return True for Arrow types of lists."""
    return _is(kind, _SORTS[LIST])


def is_text(kind: Any) -> bool:
    """Return True for Arrow types of texts or bytes."""
    return _is(kind, _SORTS[TEXT])


def _is(kind: Any, names: Iterable[str]) -> bool:
    """Return True if the type passes one of the tests `pyarrow.types.is_NAME`."""
    from pyarrow import types

    return any(getattr(types, f"is_{name}")(kind) for name in names)


def types_of(schema: Any, what: str) -> Types:
    """Return the types of the columns of an Arrow schema; raise InputError for equal names."""
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise InputError(f"{what}: expected each column once, got {', '.join(twice)} twice. Rename one.")
    return {column.name: column.type for column in schema}


def find_type_problem(column: Column, kind: Any) -> str:
    """Return the reason why a column of an Arrow type cannot be read; empty if it can."""
    is_bag, item = column.sort == "bags", kind
    if is_list(kind):
        if not is_bag:
            return f"column {column.name!r}: expected single values, got lists ({kind}). Only categories can be lists."
        item = kind.value_type
    wanted = column.item if is_bag else column.kind
    (sorts, words), sort = _KINDS[wanted], sort_of(item)
    if sort == FLOAT and column.is_key and wanted == text.KEY_INTEGER:
        advice = "Store it as integers or texts: floats merge ids from 2^53 on. With gaps: nullable integers."
        return f"column {column.name!r}: expected integers for keys, got {kind}. {advice}"
    if sort in sorts and (sort != DECIMAL or wanted not in _KEYS or item.scale == 0):
        return ""
    advice = {
        (FLOAT, text.KEY_TEXT): "Set kind = 'int' to read whole numbers, or store the column as texts.",
        (TIME, text.TIME_NUMBER): "Set kind = 'iso' to read dates and timestamps.",
        (INT, text.TIME_ISO): "Set kind = 'number' to read it.",
    }.get((str(sort), wanted), f"Store it as one of: {', '.join(sort for sort in sorts if sort != NOTHING)}.")
    return f"column {column.name!r}: expected {words}, got {kind}. {advice}"


class DamagedError(ValueError):
    """The data contradict the footer of their file, or the rules of Arrow."""


@contextmanager
def report_damage(where: str) -> Iterator[None]:
    """Turn errors of damaged columns and files into an InputError that begins with `where`."""
    import pyarrow as pa

    try:
        yield
    except (OSError, DamagedError, UnicodeDecodeError, OverflowError, pa.ArrowException) as error:
        message = first_line(error)
        if "not yet implemented" in message.lower():  # pyarrow raises an OSError for this, as for damage
            raise InputError(
                f"{where}: expected encodings that pyarrow {pa.__version__} reads, got one that it does not "
                f"({message}). Write the file with another encoding, or upgrade pyarrow."
            ) from error
        raise InputError(
            f"{where}: expected a whole file, got a damaged or truncated one ({message}). Write the file again."
        ) from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def describe_columns(schema: Schema, types: Types, options: DataOptions, *, what: str) -> tuple[RowFormat, RowPlan]:
    """Return format and plan of the schema's columns, in the order of the data.

    Lists are bags, with or without a separator in the schema. The keys `separator`, `quote`, `header` and `columns`
    apply to text only and are ignored.

    Args:
        types: of all columns.
        what: name of the data, for messages.

    Raises:
        ConfigError: with all columns that are missing, used twice, or of a type that cannot be read.
    """
    lists = {name for name, kind in types.items() if is_list(kind)}
    form, plan = describe(schema, list(types), options, lists=lists)
    problems = list(filter(None, (find_type_problem(column, types[column.name]) for column in form.columns)))
    if problems:
        raise ConfigError("\n  ".join([f"{what}: the schema does not fit:", *problems]))
    return form, plan


def check_readable(form: RowFormat, types: Types, what: str) -> None:
    """Check that another file can be read with the format of the first one.

    Raises:
        InputError: if columns are missing, of a type that cannot be read, or lists in only one of the files.
    """
    problems = []
    for column in form.columns:
        kind = types.get(column.name)
        if kind is None:
            problems.append(f"column {column.name!r}: expected it, as in the first file, got none.")
        elif column.sort == "bags" and not column.inner and sort_of(kind) not in (LIST, NOTHING):
            problems.append(f"column {column.name!r}: expected lists, as in the first file, got {kind}.")
        else:
            problems.append(find_type_problem(column, kind))
    if any(problems):
        heading = f"{what}: expected the columns of the first file. Write it again, or remove it:"
        raise InputError("\n  ".join([heading, *filter(None, problems)]))


Ids = NDArray[np.int64]
Numbers = NDArray[np.float64]
States = NDArray[np.int8]

_SCRATCH = 512  # bytes; no number has as many digits
_KEYS = (text.KEY_HEX, text.KEY_INTEGER, text.KEY_TEXT, text.LABEL_SET)
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_WHOLE = 2.0**63
_LARGEST = np.int64(2**63 - 1)  # of a number in text, with either sign


class Values(NamedTuple):
    """V values: `keys` for categories and labels with positives, `numbers` for all others."""

    keys: Ids
    numbers: Numbers
    states: States


_NO_KEYS, _NO_NUMBERS, _NO_STATES = np.empty(0, np.int64), np.empty(0, np.float64), np.empty(0, np.int8)


class ValueReader:
    """Reads arrays as one kind of `data.kernels.text`; caches the latest dictionary of texts.

    pyarrow casts types to each other. Texts become numbers by the parsers of text files, so that both formats accept
    the same ones, and a bad text has a state instead of an error for the whole array.

    Args:
        longest: maximum bytes of a text.
        nulls: keys of texts that mean missing, in addition to the empty text.
    """

    def __init__(self, kind: int, longest: int, nulls: Ids) -> None:
        self._kind, self._longest, self._nulls = kind, longest, nulls
        self._dictionary: Any = None
        self._entries = Values(_NO_KEYS, _NO_NUMBERS, _NO_STATES)  # of the dictionary, then a missing one

    def read(self, array: Any) -> Values:
        """Return the values of an array, whose type must be readable (`find_type_problem`)."""
        import pyarrow as pa

        sort = sort_of(array.type)
        if pa.types.is_dictionary(array.type):
            if sort == TEXT:
                return self._codes(array)
            array = array.dictionary_decode()
        if sort == NOTHING:
            array = array.cast(pa.int64())
        if sort == TIME:
            return _times(array)
        if sort == TEXT:
            return self._texts(array)
        if (sort == BOOL and self._kind in (text.KEY_TEXT, text.LABEL_SET)) or (
            sort == DECIMAL and self._kind in _KEYS
        ):
            return self._texts(array.cast(pa.large_string()))
        casts = {DECIMAL: pa.float64(), BOOL: pa.uint8()}
        return self._numbers(array.cast(casts[sort]) if sort in casts else array)

    def _codes(self, array: Any) -> Values:
        """Read an array with a dictionary of texts, each of which is parsed once."""
        import pyarrow as pa

        if self._dictionary is None or not array.dictionary.equals(self._dictionary):
            keys, numbers, states = self._texts(array.dictionary)
            numbers = _NO_NUMBERS if self._kind in _KEYS else np.append(numbers, 0.0)
            states = np.append(states, np.int8(kernels.MISSING_VALUE)) if states.any() else _NO_STATES
            self._entries = Values(np.append(keys, 0), numbers, states)
            self._dictionary = array.dictionary
        entries, codes, states = self._entries, _view(array.indices.cast(pa.int32())), missing(array)
        last = len(entries.keys) - 1
        if array.null_count:
            codes = np.where(states == text.OK, codes, last)
        if len(codes) and not (0 <= codes.min() <= codes.max() <= last and (codes == last).sum() == array.null_count):
            raise DamagedError("a value is outside its dictionary")
        numbers = entries.numbers.take(codes) if len(entries.numbers) else _NO_NUMBERS
        return Values(entries.keys.take(codes), numbers, entries.states.take(codes) if len(entries.states) else states)

    def _texts(self, array: Any) -> Values:
        data, ends = text_buffers(array)
        count = len(ends) - 1
        keys, numbers, states = np.empty(count, np.int64), np.empty(count, np.float64), np.empty(count, np.int8)
        kind = text.KEY_TEXT if self._kind == text.LABEL_SET else self._kind
        scratch = np.empty(_SCRATCH, np.uint8)
        kernels.parse_texts(data, ends[:-1], ends[1:], kind, self._longest, self._nulls, scratch, keys, numbers, states)
        states[missing(array) != text.OK] = kernels.MISSING_VALUE
        return Values(keys, numbers, states)

    def _numbers(self, array: Any) -> Values:
        """Read integers and floats."""
        states, values = missing(array), _view(array)
        is_whole = self._kind in (text.KEY_INTEGER, text.DENSE_INTEGER)
        if values.dtype.kind == "f":
            numbers = values.astype(np.float64, copy=False)
            _mark(states, np.isnan(numbers), kernels.MISSING_VALUE)
            if not is_whole:
                return Values(_NO_KEYS, numbers, states)
            with np.errstate(invalid="ignore"):
                keys = np.where(np.abs(numbers) < _WHOLE, numbers, 0).astype(np.int64)
            _mark(states, keys != numbers, text.NUMBER)
            if self._kind == text.KEY_INTEGER:
                exact = 2.0 ** (np.finfo(values.dtype).nmant + 1)
                _mark(states, np.abs(numbers) >= exact, text.FLOAT)
            return Values(keys, numbers, states)
        if self._kind == text.KEY_HEX:
            return Values(values.view(f"u{values.itemsize}").astype(np.uint64).view(np.int64), _NO_NUMBERS, states)
        if self._kind == text.KEY_INTEGER:
            return Values(values.astype(np.int64, copy=False), _NO_NUMBERS, states)  # unsigned: by their bits
        if self._kind in _KEYS:
            digits = np.empty(len(values), np.int64)  # as texts they take ten times as long
            kernels.digit_keys(values if values.dtype == np.uint64 else values.astype(np.int64, copy=False), digits)
            return Values(digits, _NO_NUMBERS, states)
        if values.itemsize == 8:
            outside = values > _LARGEST if values.dtype.kind == "u" else values < -_LARGEST
            _mark(states, outside, text.NUMBER)
        return Values(_NO_KEYS, values.astype(np.float64), states)


def text_buffers(array: Any) -> tuple[NDArray[np.uint8], Ids]:
    """Return the bytes of an array of texts, and their offsets (V + 1,)."""
    import pyarrow as pa

    array = array.cast(pa.large_binary())
    _, ends, data = array.buffers()
    if ends is None or not len(array):
        return np.empty(0, np.uint8), np.zeros(len(array) + 1, np.int64)
    offsets = np.frombuffer(ends, np.int64)[array.offset : array.offset + len(array) + 1]
    return np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8), offsets


def missing(array: Any) -> States:
    """Return the states (V,) of an array: MISSING_VALUE for nulls, else OK."""
    if not array.null_count:
        return np.zeros(len(array), np.int8)
    bits, size = array.buffers()[0], array.offset + len(array)
    if bits is None:  # an array of type null
        return np.full(len(array), kernels.MISSING_VALUE, np.int8)
    # An eighth of the time of is_null().to_numpy(): Arrow has a bit for each value, the lowest first.
    is_valid = np.unpackbits(np.frombuffer(bits, np.uint8), count=size, bitorder="little")[array.offset :]
    return is_valid.view(np.int8) + np.int8(kernels.MISSING_VALUE)


def _view(array: Any) -> NDArray[Any]:
    """Return a view of the values of an array of numbers; values at nulls are undefined.

    `fill_null(0).to_numpy()` takes a hundred times as long.
    """
    dtype, buffer = np.dtype(array.type.to_pandas_dtype()), array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, count=len(array), offset=array.offset * dtype.itemsize)


def _times(array: Any) -> Values:
    """Return seconds since 1970; earlier times are bad, as in text."""
    import pyarrow as pa

    if not pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("s" if pa.types.is_date32(array.type) else "ms"))
    numbers = _view(array.cast(pa.int64())) / float(_PER_SECOND[array.type.unit])
    states = missing(array)
    _mark(states, numbers < 0, text.TIME)
    return Values(_NO_KEYS, numbers, states)


def _mark(states: States, where: NDArray[np.bool_], state: int) -> None:
    """Set the state of good values in `where` (V,)."""
    states[where & (states == text.OK)] = state
