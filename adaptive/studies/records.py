"""Results of studies are frozen dataclasses. JSON has them as `asdict` gives them; `from_json` reads them back."""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

Result = TypeVar("Result")


def from_json(kind: type[Result], record: Mapping[str, object]) -> Result:
    """The dataclass of a JSON object; keys that it does not have are ignored.

    Raises:
        TypeError: naming the first field that is missing or has another type.
    """
    try:
        return TypeAdapter(kind).validate_python(record)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise TypeError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
