"""Files of others, read with care: regular files only, no more bytes than such a file may have, JSON of bounded depth.

What a run stores as JSON carries a sha256 of itself, so that no byte of it changes unnoticed (`signed_json`).
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
    """The dataclass of a JSON object; keys that it does not have are ignored.

    Raises:
        TypeError: naming the first field that is missing or has another type.
    """
    try:
        return TypeAdapter(kind).validate_python(record)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise TypeError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


MOST_BYTES: Final = 2**26  # of a file that is read whole
MOST_DEPTH: Final = 64  # of nested lists and objects
DIGEST: Final = "sha256"

JsonObject = dict[str, Any]  # of JSON values


def open_plain(path: Path, *, error: type[AdaptiveError] = CheckpointError, follow: bool = False) -> BinaryIO:
    """Open a regular file for reading; folders, pipes and devices are refused without waiting for them.

    Args:
        error: what is raised.
        follow: links are followed: for files that the user has named, not for those of a run.

    Raises:
        AdaptiveError: `error`, which names the file and what was found.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    except (OSError, ValueError) as failed:
        kind = "a link" if not follow and os.path.islink(path) else getattr(failed, "strerror", None) or str(failed)
        raise error(f"{path}: expected a plain file, found: {kind}") from failed
    mode = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if mode != stat.S_IFREG:
        os.close(descriptor)
        kind = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device"}.get(mode, "none")
        raise error(f"{path}: expected a plain file, found: {kind}")
    return os.fdopen(descriptor, "rb")


def read_plain(
    path: Path, most: int = MOST_BYTES, *, error: type[AdaptiveError] = CheckpointError, follow: bool = False
) -> bytes:
    """The content of a regular file of at most `most` bytes, which is known before memory is taken.

    Raises:
        AdaptiveError: as `open_plain` does; or if the file is larger, or cannot be read.
    """
    with open_plain(path, error=error, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise error(f"{path}: expected at most {most:,} bytes, found {size:,}")
        try:
            content = file.read(size or 1)
        except OSError as failed:
            raise error(f"{path}: cannot be read: {failed.strerror or failed}") from failed
        if len(content) > size:
            raise error(f"{path}: the system says that it is empty, and gives bytes of it: it is no file on a disk")
        return content


def parse_json(raw: bytes | str, where: str, *, error: type[AdaptiveError] = CheckpointError) -> Any:
    """The value of a JSON text that is nested no deeper than `MOST_DEPTH`.

    Raises:
        AdaptiveError: `error`, which begins with `where`.
    """
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as failed:
        raise error(f"{where}: expected JSON, found {failed}; the file is damaged") from failed
    check_depth(value, where, error=error)
    return value


def check_depth(value: Any, where: str, *, error: type[AdaptiveError] = CheckpointError) -> None:
    """Check that lists and objects are nested no deeper than `MOST_DEPTH`: code that walks them calls itself.

    Raises:
        AdaptiveError: `error`, which begins with `where`.
    """
    level, depth = [value], 0
    while level := [inner for outer in level if isinstance(outer, dict | list) for inner in _inside(outer)]:
        depth += 1
        if depth > MOST_DEPTH:
            raise error(f"{where}: expected values nested at most {MOST_DEPTH} deep, found deeper ones")


def _inside(value: dict[Any, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def signed_json(content: Mapping[str, object]) -> bytes:
    """The content as JSON, with the sha256 of the text (with the digest's 64 digits left out) as its first key."""
    unsigned = json.dumps({DIGEST: "", **content}, indent=1, allow_nan=False).encode() + b"\n"
    digest = hashlib.sha256(unsigned).hexdigest()
    return unsigned.replace(b'"sha256": ""', f'"sha256": "{digest}"'.encode(), 1)


def check_signature(raw: bytes, digest: object, where: str, *, error: type[AdaptiveError] = CheckpointError) -> None:
    """Check the text of `signed_json` against the digest in it.

    Raises:
        AdaptiveError: `error`, which begins with `where`.
    """
    stored = str(digest)
    actual = hashlib.sha256(raw.replace(stored.encode(), b"", 1)).hexdigest() if len(stored) == 64 else "no digest"
    if actual != stored:
        raise error(
            f"{where}: expected sha256 {stored[:64]}, found {actual}; the file is damaged, or was changed by hand"
        )
