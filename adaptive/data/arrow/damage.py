"""Damage in files and columns that others wrote: told with its place."""

from collections.abc import Iterator
from contextlib import contextmanager

from adaptive.errors import InputError


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
