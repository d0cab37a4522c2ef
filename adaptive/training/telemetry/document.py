"""Documents of studies: the same blocks as text for a terminal or Markdown."""

import csv
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

WIDTH: Final = 100  # columns of text output, unless words or cells are wider

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Note:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list with one line per item. Lines are never wrapped, so they can be searched."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first row is the header.

    Attributes:
        rows: each with the same number of cells.
        keys: number of leading columns that identify a row; text repeats them if a table is split at `WIDTH`.
    """

    rows: Rows
    keys: int = 1


DocumentBlock = Note | Items | Table


@dataclass(frozen=True)
class Document:
    """Blocks in reading order."""

    blocks: Sequence[DocumentBlock]

    def to_text(self) -> str:
        """Return text for a terminal, wrapped and split at `WIDTH`."""
        return "\n\n".join(filter(None, map(_text, self.blocks)))

    def to_markdown(self) -> str:
        """Return Markdown that ends with a newline."""
        return "\n\n".join(filter(None, map(_markdown, self.blocks))) + "\n"


def csv_text(rows: Sequence[Sequence[Any]]) -> str:
    """Return rows as CSV; None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _text(block: DocumentBlock) -> str:
    match block:
        case Note():
            return textwrap.fill(block.text, WIDTH, break_long_words=False, break_on_hyphens=False)
        case Items():
            return "\n".join(block.lines)
        case Table():
            return "\n\n".join("\n".join(aligned(part)) for part in _column_blocks(block))


def _markdown(block: DocumentBlock) -> str:
    match block:
        case Note():
            return block.text
        case Items():
            return "\n".join(f"- {line}" for line in block.lines)
        case Table():
            return markdown_table(block.rows)


def _column_blocks(table: Table) -> list[list[list[str]]]:
    """Split a table at `WIDTH` into tables that repeat its leading columns."""
    widths = [max(map(len, column)) for column in zip(*table.rows, strict=True)]
    start = sum(widths[: table.keys]) + 2 * table.keys
    blocks: list[list[int]] = [[]]
    at = start
    for column, width in enumerate(widths[table.keys :], table.keys):
        if at + width > WIDTH and blocks[-1]:
            blocks.append([])
            at = start
        blocks[-1].append(column)
        at += width + 2
    return [[[*row[: table.keys], *(row[column] for column in block)] for row in table.rows] for block in blocks]


def aligned(rows: Rows) -> list[str]:
    """Return lines with aligned columns: the first to the left, numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def markdown_table(rows: Rows) -> str:
    """Return a Markdown table; the first row is its header."""
    head, *rest = rows
    line = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, line, *rest))
