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
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adaptive.errors import printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SETTINGS = "Settings"

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.", rich_help_panel="Output")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Give any setting a value, such as tier.device_rows=10% or policy.NAME=VALUE; may be repeated.",
        rich_help_panel=SETTINGS,
    ),
]

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.", show_default=False)]
ReadingSets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Read the run with another tier.*, data.* or eval_batch_size, such as tier.host=mmap:DIR; may be "
        "repeated.",
        rich_help_panel=SETTINGS,
    ),
]


def given_sets(sets: Sequence[str] | None) -> dict[str, Any]:
    """Key -> value of `--set KEY=VALUE`.

    Raises:
        BadParameter: for one without a key or a value.
    """
    from adaptive.training.settings import parse_text

    found = {}
    for text in sets or ():
        key, equals, value = text.partition("=")
        if not (equals and key.strip()):
            raise typer.BadParameter(f"--set {text!r}: needed KEY=VALUE, for example --set tier.host=mmap:DIR")
        found[key.strip()] = parse_text(value)
    return found


def print_result(result: "Mapping[str, Any] | DataclassInstance", *, as_json: bool) -> None:
    """The result as one line of JSON, or its `table` (text made for people), or a line per key.

    Raises:
        OutputError: if stdout takes no more; a reader that has gone is none of our business.
    """
    content = dict(result) if isinstance(result, Mapping) else asdict(result)
    table = content.pop("table", None)
    if as_json:
        text = json.dumps(_plain(content), allow_nan=False)
    else:
        text = table if table is not None else "\n".join(key_lines(content))
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


def key_lines(content: Mapping[str, Any], indent: str = "", *, in_bytes: bool = False) -> list[str]:
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
