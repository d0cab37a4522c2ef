"""Documents of studies: the same blocks as text, Markdown, CSV files or one HTML page.

Text and Markdown omit figures. The HTML page loads nothing and runs no script, and its content security policy enforces
that. All HTML is made here, with every text escaped; invisible characters (control characters, marks of writing
direction) are shown as escape sequences.
"""

import csv
import html
import io
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from adaptive.errors import printable

COLORS: Final = 8  # of curves and bars, in page.css
WIDTH: Final = 100  # columns of text output, unless words or cells are wider

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Heading:
    """The title of the blocks up to the next heading, and an entry in the contents."""

    text: str


@dataclass(frozen=True)
class Note:
    """A paragraph. `is_lead`: it states the result; an HTML page emphasizes it."""

    text: str
    is_lead: bool = False


@dataclass(frozen=True)
class Items:
    """A list with one line per item. Lines are never wrapped, so they can be searched."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first row is the header.

    Attributes:
        rows: each with the same number of cells.
        caption: a line above the table.
        numbers: align cells after the first column to the right.
        keys: number of leading columns that identify a row; text repeats them if a table is split at `WIDTH`.
        name: name of its CSV file without the extension.
    """

    rows: Rows
    caption: str = ""
    numbers: bool = True
    keys: int = 1
    name: str = ""


@dataclass(frozen=True)
class Figure:
    """A drawing with its title above it.

    Attributes:
        svg: an `svg` element from `adaptive.studies.charts`, the only content that is not escaped.
        legend: labels of its colors, as in `Legend`.
    """

    title: str
    svg: str
    legend: Sequence[str] = ()


@dataclass(frozen=True)
class Gallery:
    """Figures next to each other, as many as fit the width of the page."""

    figures: Sequence[Figure]
    wide: bool = False  # two in a row instead of three


@dataclass(frozen=True)
class Legend:
    """Labels of the colors of the figures below, by color number; empty labels are omitted."""

    labels: Sequence[str]


@dataclass(frozen=True)
class Columns:
    """Two groups of blocks next to each other, if the page is wide enough."""

    left: "Sequence[DocumentBlock]"
    right: "Sequence[DocumentBlock]"


@dataclass(frozen=True)
class Folded:
    """Blocks that an HTML page shows after a click on their title."""

    title: str
    blocks: "Sequence[DocumentBlock]"


DocumentBlock = Heading | Note | Items | Table | Gallery | Legend | Columns | Folded


Blocks = list[DocumentBlock]


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

    def to_csv(self) -> dict[str, str]:
        """Return name -> content of a CSV file for each table with a name."""
        return {table.name: csv_text(table.rows) for table in self.blocks if isinstance(table, Table) and table.name}

    def to_html(self, title: str, about: str) -> str:
        """Return an HTML page with contents, and a section per heading with blocks."""
        sections = sections_of(self.blocks)
        contents = "".join(f'<a href="#part-{n}">{escaped(name)}</a>' for n, (name, _) in enumerate(sections))
        parts = "".join(
            f'<section id="part-{number}"><h2>{escaped(name)}</h2>\n{_html(blocks)}</section>\n'
            for number, (name, blocks) in enumerate(sections)
        )
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"<title>{escaped(title)}</title>\n<style>{_STYLE.read_text()}</style>\n</head>\n<body>\n"
            f"<header><h1>{escaped(title)}</h1><p>{escaped(about)}</p><nav>{contents}</nav></header>\n"
            f"<main>\n{parts}</main>\n</body>\n</html>\n"
        )


def prefixed(blocks: Iterable[DocumentBlock], prefix: str) -> Blocks:
    """Return the blocks with `prefix` before every heading."""
    return [replace(block, text=f"{prefix}{block.text}") if isinstance(block, Heading) else block for block in blocks]


def csv_text(rows: Sequence[Sequence[Any]]) -> str:
    """Return rows as CSV; None is an empty cell."""
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
        case Columns() | Folded() | Gallery() | Legend():  # of pages only
            return ""


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
        case Columns() | Folded() | Gallery() | Legend():  # of pages only
            return ""


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


def aligned(rows: Rows, *, numbers: bool = True) -> list[str]:
    """Return lines with aligned columns: the first to the left, numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column and numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def markdown_table(rows: Rows) -> str:
    """Return a Markdown table; the first row is its header."""
    head, *rest = rows
    line = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, line, *rest))


def visible(text: str) -> str:
    """Return the text with invisible characters as escapes such as `\u202e`."""
    return text if text.isprintable() else "".join(c if c in "\n\t" else printable(c) for c in text)


def escaped(text: str) -> str:
    """Escape the text for an HTML element or attribute."""
    return html.escape(visible(text), quote=True)


def sections_of(blocks: Sequence[DocumentBlock]) -> list[tuple[str, Blocks]]:
    """Return (heading, its blocks) for each heading with blocks."""
    sections: list[tuple[str, Blocks]] = []
    for block in blocks:
        if isinstance(block, Heading):
            sections.append((block.text, []))
        else:
            assert sections, "a page begins with a heading"
            sections[-1][1].append(block)
    return [section for section in sections if section[1]]


def _html(blocks: Sequence[DocumentBlock]) -> str:
    return "".join(map(_block_html, blocks))


def _block_html(block: DocumentBlock) -> str:
    match block:
        case Heading():
            return f"<h3>{escaped(block.text)}</h3>\n"
        case Note():
            kind = ' class="lead"' if block.is_lead else ""
            return f"<p{kind}>{escaped(block.text)}</p>\n"
        case Items():
            return f"<ul>{''.join(f'<li>{escaped(line)}</li>' for line in block.lines)}</ul>\n" if block.lines else ""
        case Table():
            return _table_html(block)
        case Gallery():
            kind = "gallery wide" if block.wide else "gallery"
            return f'<div class="{kind}">{"".join(map(_figure_html, block.figures))}</div>\n'
        case Legend():
            return _legend_html(block.labels)
        case Columns():
            left, right = _html(block.left), _html(block.right)
            return f'<div class="columns"><div>{left}</div><div>{right}</div></div>\n'
        case Folded():
            return f"<details><summary>{escaped(block.title)}</summary>\n{_html(block.blocks)}</details>\n"


def _table_html(table: Table) -> str:
    head, *rows = table.rows
    caption = f"<caption>{escaped(table.caption)}</caption>" if table.caption else ""
    top = "".join(f'<th scope="col">{escaped(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{escaped(first)}</th>{"".join(f"<td>{escaped(cell)}</td>" for cell in cells)}</tr>\n'
        for first, *cells in rows
    )
    kind = "numbers" if table.numbers else "texts"
    return (
        f'<div class="scroll" tabindex="0"><table class="{kind}">{caption}<thead><tr>{top}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>\n"
    )


def _figure_html(figure: Figure) -> str:
    legend = _legend_html(figure.legend) if figure.legend else ""
    svg = figure.svg.replace("<svg ", f'<svg role="img" aria-label="{escaped(figure.title)}" ', 1)
    return f"<figure><figcaption>{escaped(figure.title)}</figcaption>{legend}{svg}</figure>\n"


def _legend_html(labels: Sequence[str]) -> str:
    entries = "".join(
        f'<li><span class="c{number % COLORS}{" dashed" if number >= COLORS else ""}"></span>{escaped(label)}</li>'
        for number, label in enumerate(labels)
        if label
    )
    return f'<ul class="legend">{entries}</ul>\n'


_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE: Final = Path(__file__).with_name("page.css")
