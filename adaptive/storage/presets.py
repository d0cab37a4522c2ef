"""TOML files that come with the package under a name, or lie where a path says: machines, shapes of models."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from adaptive.config import explain
from adaptive.errors import ConfigError
from adaptive.storage.untrusted import read_plain

MOST_BYTES: Final = 2**20
M = TypeVar("M", bound=BaseModel)


def names_in(folder: Path) -> list[str]:
    """Of the files that come with the package."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def load_named(model: type[M], name: str, folder: Path, what: str) -> M:
    """What a file says: one of `folder` by name, or another by path.

    Args:
        model: which checks it.
        name: of a file, or its path.
        folder: of those that come with the package.
        what: it is a file of, for messages.

    Raises:
        ConfigError: if there is none, it is no plain file, or it does not say what is needed.
    """
    path = folder / f"{name}.toml" if name in names_in(folder) else Path(name)
    try:
        exists = path.exists()
    except (OSError, ValueError):  # a name too long, or with a zero byte
        exists = False
    if not exists:
        raise ConfigError(f"{what} {name!r}: neither a file nor one of {', '.join(names_in(folder))}")
    try:
        data = read_plain(path, MOST_BYTES, error=ConfigError, follow=True)
    except (OSError, ConfigError) as error:
        raise ConfigError(
            f"{what} {path}: {error}; needed a TOML file, or one of {', '.join(names_in(folder))}"
        ) from error
    try:
        content = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, nested too deeply
        raise ConfigError(f"{what} {path} is not TOML: {error}") from error
    return checked(model, content, f"{what} {path}")


def checked(model: type[M], content: Mapping[str, Any], where: str) -> M:
    """The model of plain values.

    Raises:
        ConfigError: naming the keys that are wrong, and `where` they stand.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(model, error)}") from error
