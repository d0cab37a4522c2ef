"""Read files of unknown origin: regular files only, with limits on size and depth.

JSON files of a run hold a SHA-256 of themselves, so that no byte changes unnoticed (`signed_json`, `read_signed`).
"""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from adaptive.errors import AdaptiveError, CheckpointError

Result = TypeVar("Result")


def from_json(kind: type[Result], record: Mapping[str, object]) -> Result:
    """Return the dataclass of a JSON object; unknown keys are ignored.

    Raises:
        TypeError: names the first field that is missing or has another type.
    """
    try:
        return TypeAdapter(kind).validate_python(record)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise TypeError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


MOST_BYTES: Final = 2**26  # of a file that is read into memory
MOST_DEPTH: Final = 64  # of nested lists and objects
DIGEST: Final = "sha256"

JsonObject = dict[str, Any]  # of JSON values


def open_plain(path: Path, *, error: type[AdaptiveError] = CheckpointError, follow: bool = False) -> BinaryIO:
    """Open a regular file for reading; refuse folders, pipes and devices without a wait.

    Args:
        error: the error to raise.
        follow: follow links. Set it for files that the user has named, not for those of a run.

    Raises:
        AdaptiveError: `error`, which names the file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    except (OSError, ValueError) as failed:
        kind = "a link" if not follow and os.path.islink(path) else getattr(failed, "strerror", None) or str(failed)
        raise error(f"{path}: expected a regular file, got {kind}") from failed
    mode = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if mode != stat.S_IFREG:
        os.close(descriptor)
        kind = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe"}.get(mode, "a device or a socket")
        raise error(f"{path}: expected a regular file, got {kind}")
    return os.fdopen(descriptor, "rb")


def read_plain(
    path: Path, most: int = MOST_BYTES, *, error: type[AdaptiveError] = CheckpointError, follow: bool = False
) -> bytes:
    """Return the content of a file of at most `most` bytes; check it before allocating.

    Raises:
        AdaptiveError: as `open_plain` does; also if the file is larger, or cannot be read.
    """
    with open_plain(path, error=error, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise error(f"{path}: expected at most {most:,} bytes, got {size:,}")
        try:
            content = file.read(size or 1)
        except OSError as failed:
            raise error(f"{path}: expected a readable file, got an error: {failed.strerror or failed}") from failed
        if len(content) > size:
            raise error(f"{path}: expected a file on a disk, got one whose size the system does not know")
        return content


def parse_json(raw: bytes | str, where: str, *, error: type[AdaptiveError] = CheckpointError) -> Any:
    """Return the value of a JSON text that is nested at most `MOST_DEPTH` deep.

    Raises:
        AdaptiveError: `error`, which begins with `where`.
    """
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as failed:
        raise error(f"{where}: expected JSON, got a damaged file ({failed})") from failed
    check_depth(value, where, error=error)
    return value


def check_depth(value: Any, where: str, *, error: type[AdaptiveError] = CheckpointError) -> None:
    """Check that values are nested at most `MOST_DEPTH` deep, since recursive code walks them.

    Raises:
        AdaptiveError: `error`, which begins with `where`.
    """
    level, depth = [value], 0
    while nested := [value for value in level if isinstance(value, dict | list)]:
        level = [inner for value in nested for inner in (value.values() if isinstance(value, dict) else value)]
        depth += 1
        if depth > MOST_DEPTH:
            raise error(f"{where}: expected values nested at most {MOST_DEPTH} deep, got deeper ones")


def signed_json(content: Mapping[str, object]) -> bytes:
    """Return the content as JSON, with the digest of the remaining text as first key."""
    unsigned = json.dumps({DIGEST: "", **content}, indent=1, allow_nan=False).encode() + b"\n"
    digest = hashlib.sha256(unsigned).hexdigest()
    return unsigned.replace(b'"sha256": ""', f'"sha256": "{digest}"'.encode(), 1)


def read_signed(
    path: Path,
    expected: Mapping[str, object],
    *,
    advice: str,
    error: type[AdaptiveError] = CheckpointError,
    most: int = MOST_BYTES,
) -> JsonObject:
    """Read a file of `signed_json`, and return its content without the digest.

    Args:
        expected: keys and values that the content must have: its format or version.
        advice: sentence that says what to do about a file of another version.
        most: bytes.

    Raises:
        AdaptiveError: `error`, if the file is missing, damaged, or of another version.
    """
    raw = read_plain(path, most, error=error)
    content: Any = parse_json(raw, str(path), error=error)
    if not isinstance(content, dict):
        raise error(f"{path}: expected {_listed(expected)}, got {type(content).__name__}. {advice}")
    got = {name: content.get(name) for name in expected}
    if json.dumps(got) != json.dumps(expected):  # so that True and 1.0 are not 1
        raise error(f"{path}: expected {_listed(expected)}, got {_listed(got)}. {advice}")
    check_signature(raw, content.pop(DIGEST, ""), str(path), error=error)
    return content


def _listed(values: Mapping[str, object]) -> str:
    return " ".join(f"{name} {str(value)[:80]}" for name, value in values.items())


def check_signature(raw: bytes, digest: object, where: str, *, error: type[AdaptiveError] = CheckpointError) -> None:
    """Check the text of `signed_json` against the digest in it.

    Raises:
        AdaptiveError: `error`, which begins with `where`.
    """
    stored = str(digest)
    actual = hashlib.sha256(raw.replace(stored.encode(), b"", 1)).hexdigest() if len(stored) == 64 else "no digest"
    if actual != stored:
        raise error(f"{where}: expected sha256 {stored[:64]}, got {actual}. The file is damaged or edited: restore it")
