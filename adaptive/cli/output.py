"""What commands print: a result on stdout, once, for people or as one JSON object; everything else goes to stderr."""

import io
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive.errors import printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def print_result(
    result: "Mapping[str, object] | DataclassInstance", *, as_json: bool, table: str | None = None
) -> None:
    """The result as one line of JSON, or the `table` (text made for people), or a line per key.

    Raises:
        OutputError: if stdout takes no more; a reader that has gone is none of our business.
    """
    content: dict[str, object] = dict(result) if isinstance(result, Mapping) else asdict(result)
    shown = content.pop("table", table)
    if as_json:
        text: object = json.dumps(_plain(content), allow_nan=False)
    else:
        text = shown if shown is not None else "\n".join(key_lines(content))
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _silence_stdout()
    except OSError as error:
        _silence_stdout()
        from adaptive.errors import OutputError

        raise OutputError(f"the result could not be written to stdout: {error.strerror}") from error


def _silence_stdout() -> None:
    """What is left in its buffer would fail once more when Python ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


@contextmanager
def own_stdout() -> Iterator[None]:
    """Inside, what others print (a policy, say) goes to stderr: stdout is for the result alone."""
    with redirect_stdout(sys.stderr):
        yield


def key_lines(content: Mapping[str, object], indent: str = "", *, in_bytes: bool = False) -> list[str]:
    """`key: value` lines, nested objects indented; what a key with `bytes` in its name holds is shown in units."""
    lines = []
    for key, value in content.items():
        bytes_here = in_bytes or "bytes" in key
        if isinstance(value, Mapping) and value:
            lines += [f"{indent}{key}:", *key_lines(value, indent + "  ", in_bytes=bytes_here)]
        elif key == "accuracy" and isinstance(value, float):
            lines.append(f"{indent}{key}: {100 * value:.2f} %")
        else:
            lines.append(f"{indent}{key}: {_text(value, in_bytes=bytes_here)}")
    return lines


def _text(value: Any, *, in_bytes: bool) -> str:
    if value is None:
        return "not known"
    if isinstance(value, Mapping | list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return size_text(value) if in_bytes else f"{value:,}"
    return str(value)


def size_text(num_bytes: int) -> str:
    """`1.5 GiB`, in the largest unit of which there is at least one."""
    size, units = float(num_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.1f} {units[0]}" if units[0] != "B" else f"{num_bytes} B"


def check_folders(*paths: Path | None) -> None:
    """Files that are to be written at the end have a folder now, which takes them.

    Raises:
        OutputError: if one has not.
    """
    from adaptive.errors import OutputError

    for path in filter(None, paths):
        parent = path.absolute().parent
        if not parent.is_dir():
            raise OutputError(f"{path} cannot be written: there is no folder {path.parent}")
        if path.is_dir():
            raise OutputError(f"{path} cannot be written: it is a folder; name a file")
        if not os.access(parent, os.W_OK):
            raise OutputError(f"{path} cannot be written: folder {path.parent} takes no new files")


def write_text(path: Path, text: str) -> None:
    """Write a file whole, or raise `OutputError`."""
    from adaptive.errors import OutputError
    from adaptive.storage.durable import write_atomic

    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise OutputError(f"{path} could not be written: {error}") from error


def make_folders(*folders: Path) -> None:
    """Make folders that are missing, or raise `OutputError`."""
    from adaptive.errors import OutputError

    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"folder {folder} could not be made: {error.strerror}; name another one") from error


def note(text: str) -> None:
    """Tell on stderr, control characters shown as such: part of the text may be a stranger's."""
    print("\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n")), file=sys.stderr)


def show_anything() -> None:
    """What the encoding of a terminal or pipe has not, such as bytes in a file's name, is shown escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _plain(value: Any) -> Any:
    """JSON has no NaN: what is not a finite number becomes null. Numpy's numbers become Python's."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
