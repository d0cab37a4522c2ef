"""Numbers as text (None is a dash), and documents of studies: the same blocks for a terminal or Markdown."""

import csv
import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # numpy, which `--help` need not wait for
    from adaptive.policy import Policy, SkipRule


def count_text(number: float | None) -> str:
    """`1,234,567`"""
    return "-" if number is None or not math.isfinite(number) else f"{number:,.0f}"


def score_text(number: float | None) -> str:
    """Four decimals: `0.7312`"""
    return "-" if number is None else f"{number:.4f}"


def accuracy_text(share: float | None) -> str:
    """`78.86%`, with the two decimals that papers give."""
    return "-" if share is None else f"{100 * share:.2f}%"


def percent_text(share: float | None) -> str:
    """A share between 0 and 1: `91.2%`. Only exactly 0 and 1 read as `0.0%` and `100.0%`."""
    if share is None:
        return "-"
    if 0 < share < 0.0005:
        return "<0.1%"
    if 0.9995 <= share < 1:
        return ">99.9%"
    return f"{100 * share:.1f}%"


def number_text(name: str, number: float | None) -> str:
    """A policy's number: `..._share` in percent, `..._bytes` in units, else 4 decimals."""
    if number is None or not math.isfinite(number):
        return "-"
    if name.endswith("_share"):
        return percent_text(number)
    if name.endswith("_bytes"):
        return bytes_text(number)
    return f"{number:,.4f}".rstrip("0").rstrip(".")


def bytes_text(size: float | None) -> str:
    """`12.3 MiB`"""
    if size is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1023.95:  # rounded, more would read as 1024.0
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def duration_text(seconds: float | None) -> str:
    """`0:03:12`"""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def policy_text(spec: str, policy: "Policy", rule: "SkipRule | None") -> str:
    """The first line of a run: `policy lru: prefetches missed rows; skips no updates`.

    Args:
        spec: the policy as the user named it.
        policy: the instance.
        rule: the skip rule in this run.
    """
    misses = "prefetches missed rows" if policy.misses == "prefetch" else "leaves missed rows on the host"
    return f"policy {spec}: {misses}; {skip_text(rule)}"


def skip_text(rule: "SkipRule | None") -> str:
    """`skip rule Defer accumulates updates for up to 16 visits of a row`"""
    from adaptive.policy import InputRule, SkipRule

    drops_inputs = isinstance(rule, InputRule)
    if rule is None or not (rule.least == 0 or drops_inputs or rule.most > 1):
        return "skips no updates"
    # Custom rules seldom state a bound of their own, and nobody expects the largest possible one.
    visits = f" for up to {rule.most} visits of a row" if rule.most < SkipRule.most else ""
    effects = {
        "drops updates": rule.least == 0,
        f"accumulates updates{visits}": rule.most > 1,
        "drops inputs": drops_inputs,
    }
    effect = " and ".join(text for text, has_effect in effects.items() if has_effect)
    return f"skip rule {type(rule).__name__} {effect}"


# --- documents --------------------------------------------------------------------------------------------------------

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
