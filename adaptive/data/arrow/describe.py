"""What a schema means for columns in Arrow's format."""

from collections.abc import Mapping
from typing import Any

from adaptive.data.arrow import types
from adaptive.data.kernels import text as kernels
from adaptive.data.options import DataOptions
from adaptive.data.rows.assemble import TextPlan
from adaptive.data.rows.format import TextFormat
from adaptive.data.text.delimited import describe
from adaptive.data.text.schema import DelimitedSchema
from adaptive.errors import ConfigError, InputError


def describe_columns(
    schema: DelimitedSchema, found: Mapping[str, Any], options: DataOptions, *, what: str
) -> tuple[TextFormat, TextPlan]:
    """The columns of the schema, in the order of the data, and what becomes of them. Lists are bags, whether or not the
    schema has a separator for them; `separator`, `quote`, `header` and `columns` are about text and mean nothing here.

    Args:
        found: name -> Arrow type of all columns.
        what: the data, for messages.

    Raises:
        ConfigError: with all columns that are missing, used twice, or of a type that cannot be read.
    """
    lists = {name for name, kind in found.items() if types.is_list(kind)}
    form, plan = describe(schema, list(found), options, lists=lists)
    problems = [types.problem(column, found[column.name]) for column in form.columns]
    if any(problems):
        raise ConfigError("\n  ".join([f"{what}: the schema does not fit:", *filter(None, problems)]))
    return form, plan


def readable(form: TextFormat, found: Mapping[str, Any], what: str) -> None:
    """Check that another file can be read as the first one is.

    Raises:
        InputError: if columns are missing, of a type that cannot be read, or lists in one of the two only.
    """
    problems = []
    for column in form.columns:
        kind = found.get(column.name)
        if kind is None:
            problems.append(f"no column {column.name!r}, which the first file has")
        elif column.kind == kernels.KEY_BAG and not column.inner and not types.is_list(kind):
            problems.append(f"column {column.name!r} holds {kind}, in the first file lists")
        else:
            problems.append(types.problem(column, kind))
    if any(problems):
        raise InputError("\n  ".join([f"{what}: differs from the first file:", *filter(None, problems)]))
