"""`reproduce`: run a paper's commands, check its claims, write records and pictures."""

import json
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from adaptive.errors import AdaptiveError, ConfigError
from adaptive.storage.durable import write_atomic
from adaptive.studies.plots import write_plot
from adaptive.studies.reproduce.paper import Claim, Command, Curves, DerivedTable, Paper, Records
from adaptive.studies.reproduce.reproduction_page import KIND, reproduction_document

SCHEMA: Final = 1
SEEDED: Final = ("compare",)  # commands that take --seeds

Line = tuple[Command, list[str]]  # a command and the words of its command line
Run = Callable[[Sequence[str]], dict[str, Any]]  # runs a command line and returns its record


class StoppedError(Exception):
    """A signal stopped a command; `code` is its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def command_lines(
    paper: Paper, out: Path, *, quick: bool = False, seeds: int | None = None, more: Sequence[str] = ()
) -> list[Line]:
    """Return the command lines in order; if a flag is repeated, the last one counts.

    Args:
        out: folder of all records.
        seeds: training runs per policy, for comparisons.
        more: words for every command, such as `--data ...`.
    """
    lines = []
    for command in paper.commands:
        words = [*command.line(quick=quick), *more]
        words += ["--seeds", str(seeds)] if seeds is not None and command.verb in SEEDED else []
        is_picture = command.verb == "simulate"  # all others write a folder
        words += ["--plot", str(out / f"{command.id}.png")] if is_picture else ["--out", str(out / command.id)]
        lines.append((command, words))
    return lines


def reproduce(
    paper: Paper,
    lines: Sequence[Line],
    out: Path,
    run: Run,
    *,
    quick: bool = False,
    on_progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run the commands, check the claims, and write everything to `out`.

    Writes `reproduction.json`, the page `report.md`, and the record of every command.

    Args:
        paper: its claims are checked.
        lines: its command lines.
        out: an existing folder.
        run: runs a command line and returns the object that it prints with `--json`. If it raises `StoppedError`, no
            further command runs, and the records so far are used (`stopped_by`).
        quick: noted in the record.
        on_progress: called with each command before it runs.

    Returns:
        The record; `table` is its text.

    Raises:
        AdaptiveError: if a command fails, or the paper needs something that no record has.
    """
    records: dict[str, Any] = {}
    stopped_by = None
    for command, words in lines:
        on_progress(f"{command.shows}: adaptive-train {shlex.join(words)}")
        try:
            records[command.id] = run(words)
        except StoppedError as stopped:
            stopped_by = stopped.code
            break
        except AdaptiveError as error:
            raise type(error)(f"adaptive-train {shlex.join(words)}: {error}") from error
        write_atomic(out / f"{command.id}.json", json.dumps(records[command.id]).encode())
    claims, tables = _judge(paper, records, is_whole=stopped_by is None)
    for table in tables:
        if table.curves is not None:
            write_plot(out / f"{table.id}.png", partial(_draw, table, table.curves))
    result = {
        "schema": SCHEMA,
        "kind": KIND,
        "paper": paper.name,
        "title": paper.title,
        "source": paper.source,
        "quick": quick,
        "commands": [
            {"id": command.id, "shows": command.shows, "words": shlex.join(words)}
            for command, words in lines
            if command.id in records
        ],
        "stopped_by": stopped_by,
        "derived": {table.id: table.record() for table in tables},
        "claims": [claim.record() for claim in claims],
        "published": [number._asdict() for number in paper.published],
        "missing": [missing._asdict() for missing in paper.missing],
        "out": str(out),
    }
    write_atomic(out / "reproduction.json", json.dumps(result, indent=1).encode())
    document = reproduction_document(result, records)
    links = [f"![{path.stem}]({path.relative_to(out).as_posix()})\n" for path in sorted(out.rglob("*.png"))]
    page = "\n".join([f"# {paper.title}\n", document.to_markdown(), *links])
    write_atomic(out / "report.md", page.encode())
    return {**result, "table": document.to_text()}


def _judge(paper: Paper, records: Records, *, is_whole: bool) -> tuple[list[Claim], list[DerivedTable]]:
    """Return claims and tables; after a stop, up to the first without its record."""
    claims, tables = [], []
    try:
        for finding in paper.findings(records):
            if isinstance(finding, Claim):
                claims.append(finding)
            else:
                tables.append(finding)
    except (KeyError, IndexError) as error:
        if is_whole:
            raise ConfigError(
                f"paper {paper.name}: expected {error} in the records of its commands, got {', '.join(records)}"
            ) from error
    return claims, tables


def _draw(table: DerivedTable, drawn: Curves, figure: Any) -> None:
    axes = figure.subplots()
    for label, points in drawn.lines.items():
        axes.plot([x for x, _ in points], [y for _, y in points], "o-", label=label)
    axes.set(xlabel=drawn.x, ylabel=drawn.y, title=table.title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
