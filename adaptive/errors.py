"""The errors a user can cause, each with the exit code the command line gives it.

All are `ValueError`s, so library users need no import to catch them. A message says what was needed, what
was found, where, and what to do. Mistakes of our own are `assert`s and end with exit code 1.
"""

import difflib
from collections.abc import Iterable
from typing import ClassVar


def printable(text: str) -> str:
    """The text with control characters, and what no terminal can show, escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "replace").decode() for char in text)


def error_text(error: BaseException, most: int = 500) -> str:
    """Kind and text of an error of code that is not ours: it may fail to make its text, or send codes to a terminal."""
    try:
        text = str(error)
    except BaseException as failed:  # it is whoever's code
        text = f"(its text cannot be had: {type(failed).__name__})"
    text = text if len(text) <= most else f"{text[:most]} ..."
    return f"{type(error).__name__}: " + "\n".join(map(printable, text.split("\n")))


def suggestion(word: str, names: Iterable[str]) -> str:
    """`; did you mean X?` for the nearest known word, or nothing; for a last part that several have, all of them."""
    words = list(names)
    close = difflib.get_close_matches(word, words, n=1)
    if not close:
        leaves: dict[str, list[str]] = {}
        for name in words:
            leaves.setdefault(name.rpartition(".")[2], []).append(name)
        for leaf in difflib.get_close_matches(word.rpartition(".")[2], leaves, n=1):
            close = leaves[leaf]
    return f"; did you mean {' or '.join(close)}?" if close else ""


class AdaptiveError(ValueError):
    """Base of the errors below; `exit_code` is what `adaptive-train` exits with."""

    exit_code: ClassVar[int] = 2


class ConfigError(AdaptiveError):
    """A key, value or combination of settings that cannot work (exit code 2)."""


class InputError(AdaptiveError):
    """Input data that cannot be read or holds too many bad lines or ids (exit code 3)."""

    exit_code = 3


class CheckpointError(AdaptiveError):
    """Saved weights that are missing, damaged or of another model (exit code 4)."""

    exit_code = 4


class StorageError(AdaptiveError):
    """A host tier on disk that cannot be written or read (exit code 5)."""

    exit_code = 5


class OutputError(AdaptiveError):
    """An output directory that is busy or not empty (exit code 6)."""

    exit_code = 6


class DeviceMemoryError(AdaptiveError):
    """A device tier too small for what the look-ahead must hold (exit code 7)."""

    exit_code = 7


class NonFiniteError(AdaptiveError):
    """A loss or gradient that is not finite (exit code 8); the message says whether anything was updated."""

    exit_code = 8


class PolicyError(AdaptiveError):
    """A policy that could not be loaded, raised, or returned something unusable (exit code 9)."""

    exit_code = 9


class RanksError(AdaptiveError):
    """Another rank failed, is gone, or disagrees (exit code 10)."""

    exit_code = 10
