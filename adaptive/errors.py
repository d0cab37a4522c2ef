"""Errors that a user can cause, each with the exit code of the command line.

All are `ValueError`s, so library users need no import to catch them. A message reads `expected X, got Y (where). How
to fix it.` Our own mistakes are `assert`s and end with exit code 1.
"""

import difflib
import traceback
from collections.abc import Iterable
from typing import ClassVar, Final


def printable(text: str) -> str:
    """Escape control characters and characters that no terminal can show."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "replace").decode() for char in text)


def error_text(error: BaseException, most: int = 500) -> str:
    """Type, text and place of an error that custom code raised, made safe to print.

    Its `__str__` may raise, and its text may contain terminal codes.
    """
    try:
        text = str(error)
    except BaseException as failed:  # custom code may raise anything
        text = f"(its __str__ raised {type(failed).__name__})"
    text = text if len(text) <= most else f"{text[:most]} ..."
    place = custom_place(error)
    text = f"{type(error).__name__}: " + "\n".join(map(printable, text.split("\n")))
    return f"{text} (your {place})" if place else text


NO_TORCH = (
    "expected torch, which is not installed. Run pip install torch; for the smaller CPU build: pip install torch "
    "--index-url https://download.pytorch.org/whl/cpu"
)


CUSTOM_CODE: Final[dict[str, str]] = {}  # file of custom code that was loaded -> policy, skip rule or model


def custom_place(error: BaseException) -> str | None:
    """Return `model FILE:LINE` if custom code raised an error, or called what raised it."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    inside = [f"{CUSTOM_CODE[file]} {file}:{line}" for file, line in places if file in CUSTOM_CODE]
    return inside[-1] if inside else None


def suggestion(word: str, names: Iterable[str]) -> str:
    """Return `; did you mean X?` for the nearest name, or an empty text.

    A word near the last part of dotted names, such as `rows` in `tier.rows`, suggests all of these names.
    """
    words = list(names)
    close = difflib.get_close_matches(word, words, n=1)
    if not close:
        leaves: dict[str, list[str]] = {}
        for name in words:
            leaves.setdefault(name.rpartition(".")[2], []).append(name)
        for leaf in difflib.get_close_matches(word.rpartition(".")[2], leaves, n=1):
            close = leaves[leaf]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def shown_id(number: int) -> str:
    """Return an id for a message; a negative one also as the unsigned number with the same 64 bits."""
    return f"{number}" if number >= 0 else f"{number} (unsigned: {number % 2**64})"


class AdaptiveError(ValueError):
    """Base of the errors below; `exit_code` is what `adaptive-train` exits with."""

    exit_code: ClassVar[int] = 2


class ConfigError(AdaptiveError):
    """Settings that cannot work: an unknown key, a bad value or combination (exit code 2)."""


class InputError(AdaptiveError):
    """Input data that cannot be read, or with too many bad lines or ids (exit code 3)."""

    exit_code = 3


class CheckpointError(AdaptiveError):
    """A checkpoint that is missing, damaged or from another model (exit code 4)."""

    exit_code = 4


class StorageError(AdaptiveError):
    """A host tier on disk that cannot be read or written (exit code 5)."""

    exit_code = 5


class OutputError(AdaptiveError):
    """An output directory that is busy or not empty (exit code 6)."""

    exit_code = 6


class DeviceMemoryError(AdaptiveError):
    """A device tier too small for the batches in flight (exit code 7)."""

    exit_code = 7


class NonFiniteError(AdaptiveError):
    """A loss or gradient that is not finite (exit code 8).

    The message says whether anything was updated.
    """

    exit_code = 8


class PolicyError(AdaptiveError):
    """A policy that does not load, raises, hangs or returns a bad answer (exit code 9)."""

    exit_code = 9


class RanksError(AdaptiveError):
    """Another rank that failed, is gone, or disagrees (exit code 10)."""

    exit_code = 10
