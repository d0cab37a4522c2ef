"""Output of commands: one result on stdout, as text or JSON; everything else on stderr."""

import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive.errors import printable
from adaptive.training.telemetry.formatting import bytes_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from adaptive.training.telemetry.formatting import Document


def print_result(
    result: "Mapping[str, object] | DataclassInstance",
    *,
    as_json: bool,
    table: str | None = None,
    verbose: bool = False,
) -> None:
    """Print the result as one line of JSON, as the text `table`, or as a line per key; `verbose`: with `details`.

    Raises:
        OutputError: if stdout cannot be written; a closed pipe is ignored.
    """
    content: dict[str, object] = dict(result) if isinstance(result, Mapping) else asdict(result)
    shown = content.pop("table", table)
    details = content.pop("details", None)
    if verbose and details is not None:
        shown = f"{shown}\n\n{details}"
    if as_json:
        from adaptive.training.telemetry.jsonl import plain

        text: object = json.dumps(plain(content), allow_nan=False)
    else:
        text = shown if shown is not None else "\n".join(key_lines(content))
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _silence_stdout()
    except OSError as error:
        _silence_stdout()
        from adaptive.errors import OutputError

        raise OutputError(f"the result cannot be written to stdout: {error.strerror}") from error


def print_document(
    result: "DataclassInstance",
    document: "Document",
    *,
    as_json: bool,
    markdown: Path | None = None,
    footer: str = "",
) -> None:
    """Print a study as JSON or as its document, and write the document as Markdown."""
    print_result(result, table=f"{document.to_text()}{footer}", as_json=as_json)
    if markdown is not None:
        write_text(markdown, document.to_markdown())


def _silence_stdout() -> None:
    """Redirect stdout, so that flushing its buffer at exit does not fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


@contextmanager
def own_stdout() -> Iterator[None]:
    """Send prints of other code to stderr: stdout is for the result alone."""
    with redirect_stdout(sys.stderr):
        yield


def key_lines(content: Mapping[str, object], indent: str = "", *, in_bytes: bool = False) -> list[str]:
    """Return `key: value` lines; nested objects are indented, bytes shown in units."""
    lines = []
    for key, value in content.items():
        bytes_here = in_bytes or "bytes" in key
        if isinstance(value, Mapping) and value:
            lines += [f"{indent}{key}:", *key_lines(value, indent + "  ", in_bytes=bytes_here)]
        elif key == "accuracy" and isinstance(value, float):
            lines.append(f"{indent}{key}: {100 * value:.2f}%")
        else:
            lines.append(f"{indent}{key}: {_text(value, in_bytes=bytes_here)}")
    return lines


def _text(value: Any, *, in_bytes: bool) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, Mapping | list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return bytes_text(value) if in_bytes else f"{value:,}"
    return str(value)


def check_folders(*paths: Path | None) -> None:
    """Check before long work that these files can be written at the end.

    Raises:
        OutputError: if one cannot.
    """
    from adaptive.errors import OutputError

    for path in filter(None, paths):
        parent = path.absolute().parent
        if not parent.is_dir():
            raise OutputError(f"{path} cannot be written: folder {path.parent} does not exist")
        if path.is_dir():
            raise OutputError(f"{path} cannot be written: expected a file, got a folder")
        if not os.access(parent, os.W_OK):
            raise OutputError(f"{path} cannot be written: folder {path.parent} is not writable")


def write_text(path: Path, text: str) -> None:
    """Write a file atomically, or raise `OutputError`."""
    from adaptive.errors import OutputError
    from adaptive.storage.durable import write_atomic

    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error}") from error


def note(text: str) -> None:
    """Print on stderr with control characters escaped, as text may be untrusted."""
    print("\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n")), file=sys.stderr)


def show_anything() -> None:
    """Escape characters that the encoding of the terminal or pipe does not have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
