"""The result of a study as a document: the same headings, paragraphs, lists and tables as text, Markdown and CSV.

The HTML page (`report`) shows the same blocks, next to pictures of its own.
"""

import csv
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

WIDTH: Final = 100  # columns of a terminal that a document as text keeps to, where words and cells let it

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Heading:
    """The title of the blocks that follow, up to the next heading."""

    text: str


@dataclass(frozen=True)
class Note:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list, one line each: verdicts, problems. Lines are never broken, so that they can be searched."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first row is the head.

    Attributes:
        rows: of equally many cells each.
        caption: a line above the table.
        numbers: cells after the first column are aligned to the right.
        keys: leading columns that say what a row is; text repeats them where a table is split at `WIDTH`.
        name: of its CSV file, without the ending.
    """

    rows: Rows
    caption: str = ""
    numbers: bool = True
    keys: int = 1
    name: str = ""


DocumentBlock = Heading | Note | Items | Table


@dataclass(frozen=True)
class Document:
    """Blocks in the order in which they are read."""

    blocks: Sequence[DocumentBlock]

    def to_text(self) -> str:
        """For a terminal: paragraphs wrapped at `WIDTH`, wider tables split into blocks of columns."""
        return "\n\n".join(filter(None, map(_text, self.blocks)))

    def to_markdown(self) -> str:
        """As Markdown, with a line end at the end."""
        return "\n\n".join(filter(None, map(_markdown, self.blocks))) + "\n"

    def to_csv(self) -> dict[str, str]:
        """Name -> content of a CSV file, for each table that has a name."""
        return {one.name: csv_text(one.rows) for one in self.blocks if isinstance(one, Table) and one.name}


def csv_text(rows: Sequence[Sequence[Any]]) -> str:
    """Rows as CSV; None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _text(block: DocumentBlock) -> str:
    match block:
        case Heading():
            return f"--- {block.text}"
        case Note():
            return textwrap.fill(block.text, WIDTH, break_long_words=False, break_on_hyphens=False)
        case Items():
            return "\n".join(block.lines)
        case Table():
            parts = ["\n".join(aligned(part, numbers=block.numbers)) for part in _column_blocks(block)]
            return "\n".join(filter(None, [block.caption, "\n\n".join(parts)]))


def _markdown(block: DocumentBlock) -> str:
    match block:
        case Heading():
            return f"## {block.text}"
        case Note():
            return block.text
        case Items():
            return "\n".join(f"- {line}" for line in block.lines)
        case Table():
            return "\n\n".join(filter(None, [block.caption, markdown_table(block.rows)]))


def _column_blocks(table: Table) -> list[list[list[str]]]:
    """The table, or several with its leading columns in each, none wider than `WIDTH` unless two columns are."""
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


def aligned(rows: Rows, *, numbers: bool = True) -> list[str]:
    """Columns as wide as their widest cell: the first to the left, numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column and numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def markdown_table(rows: Rows) -> str:
    """The same as a table of Markdown; the first row is its head."""
    head, *rest = rows
    line = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, line, *rest))
