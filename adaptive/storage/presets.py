"""TOML files of the package, by name, or of the user, by path."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from adaptive.config import explain
from adaptive.errors import AdaptiveError, ConfigError
from adaptive.storage.files import read_file

MOST_BYTES: Final = 256 << 10  # tomllib takes a minute for 400 KB of dotted keys
M = TypeVar("M", bound=BaseModel)


def names_in(folder: Path) -> list[str]:
    """Return the names of the TOML files in a folder of the package."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def load_toml(path: Path, folder: Path, what: str) -> dict[str, Any]:
    """Read a TOML file that a user has named; `folder` has the files of the package.

    Raises:
        ConfigError: if it is not a regular file of at most 256 KiB, or not TOML.
    """
    advice = f"Give the path of a TOML file, or one of these names: {', '.join(names_in(folder))}."
    if not os.path.exists(path):  # False also for names that the system does not allow
        raise ConfigError(f"{what} {str(path)!r}: expected a file or a known name, got neither. {advice}")
    try:
        data = read_file(path, most=MOST_BYTES, error=ConfigError)
    except ConfigError as error:
        raise ConfigError(f"{what} {error}. {advice}") from error
    try:
        content = tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, nested too deeply, too many digits
        raise ConfigError(f"{what} {path}: expected TOML in UTF-8, got {error}. Correct the file.") from error
    return content


def checked(model: type[M], content: Mapping[str, Any], where: str, *, error: type[AdaptiveError] = ConfigError) -> M:
    """Return the model of plain values.

    Raises:
        AdaptiveError: `error`, which begins with `where` and names all wrong keys.
    """
    try:
        return model.model_validate(content)
    except ValidationError as failed:
        raise error(f"{where}: {explain(model, failed)}") from failed
