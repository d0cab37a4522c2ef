"""Read and write small files: bytes and JSON, with errors that name the file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from adaptive.config import explain
from adaptive.errors import AdaptiveError, CheckpointError, ConfigError

JsonObject = dict[str, Any]  # of JSON values


def read_file(path: Path, *, error: type[AdaptiveError] = CheckpointError) -> bytes:
    """Return the content of a file.

    Raises:
        AdaptiveError: `error`, if it is no regular file or cannot be read; names the file.
    """
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait
            raise error(f"{path}: expected a regular file, got {'a folder' if path.is_dir() else 'a pipe or a device'}")
        return path.read_bytes()
    except (OSError, ValueError) as failed:
        raise error(f"{path}: expected a regular file, got {getattr(failed, 'strerror', None) or failed}") from failed


def parse_json(raw: bytes | str, where: str, *, error: type[AdaptiveError] = CheckpointError) -> Any:
    """Return the value of a JSON text.

    Raises:
        AdaptiveError: `error`, which begins with `where`.
    """
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as failed:
        raise error(f"{where}: expected JSON, got a damaged file ({failed})") from failed


def json_text(content: Mapping[str, object]) -> bytes:
    """Return the content as indented JSON."""
    return json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"


def read_json(
    path: Path, expected: Mapping[str, object], *, advice: str, error: type[AdaptiveError] = CheckpointError
) -> JsonObject:
    """Read a JSON object.

    Args:
        expected: keys and values that it must have: its format or version.
        advice: sentence that says what to do about a file of another version.

    Raises:
        AdaptiveError: `error`, if the file is missing, damaged, or of another version.
    """
    content: JsonObject = parse_json(read_file(path, error=error), str(path), error=error)
    got = {name: content.get(name) for name in expected} if isinstance(content, dict) else type(content).__name__
    if got != expected:
        raise error(f"{path}: expected {dict(expected)}, got {str(got)[:200]}. {advice}")
    return content


M = TypeVar("M", bound=BaseModel)


def checked(model: type[M], content: Mapping[str, Any], where: str, *, error: type[AdaptiveError] = ConfigError) -> M:
    """Return the model of plain values.

    Raises:
        AdaptiveError: `error`, which begins with `where` and names all wrong keys.
    """
    try:
        return model.model_validate(content)
    except ValidationError as failed:
        raise error(f"{where}: {explain(model, failed)}") from failed
