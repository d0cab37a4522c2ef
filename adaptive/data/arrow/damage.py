"""Damage in files and columns that others wrote: told with its place."""

from collections.abc import Iterator
from contextlib import contextmanager

from adaptive.errors import InputError


class DamagedError(ValueError):
    """A page is not what its header says, or a column not what Arrow allows."""


@contextmanager
def damage_told(where: str) -> Iterator[None]:
    """Within it, what is wrong with a page, a column or a file becomes an InputError with its place."""
    import pyarrow as pa

    try:
        yield
    except (OSError, DamagedError, UnicodeDecodeError, OverflowError, pa.ArrowException) as error:
        raise InputError(f"{where}: damaged or cut off ({first_line(error)}); write the file again") from error


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
