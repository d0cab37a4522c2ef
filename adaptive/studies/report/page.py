"""Sections as one HTML page: every text is escaped here, and nothing else makes HTML.

The page loads nothing and runs no script, which its content security policy also says to the browser. Characters that
are not seen but change what is (control characters, marks of writing direction) are shown by their numbers.
"""

import html
import unicodedata
from collections.abc import Sequence
from typing import Final

from adaptive.studies.report.blocks import Block, Columns, Folded, Gallery, Lead, Legend, Picture, Section
from adaptive.studies.report.style import COLOURS, STYLE
from adaptive.training.telemetry.document import Items, Note, Table

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_KEPT: Final = "\n\t"
_HIDDEN: Final = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # control, format (direction), surrogates, unassigned


def page_html(title: str, about: str, sections: Sequence[Section]) -> str:
    """The whole page.

    Args:
        title: heading and title of the window.
        about: a line below it.
        sections: in order; the contents lead to each.
    """
    contents = "".join(f'<a href="#part-{n}">{escaped(one.title)}</a>' for n, one in enumerate(sections))
    parts = "".join(_section(number, one) for number, one in enumerate(sections))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escaped(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<header><h1>{escaped(title)}</h1><p>{escaped(about)}</p><nav>{contents}</nav></header>\n"
        f"<main>\n{parts}</main>\n</body>\n</html>\n"
    )


def visible(text: str) -> str:
    """The text with every character that is not seen written as `\\u202e`; line ends and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if one in _KEPT or unicodedata.category(one) not in _HIDDEN else _numbered(one) for one in text)


def escaped(text: str) -> str:
    """The text for HTML, in element or attribute."""
    return html.escape(visible(text), quote=True)


def _numbered(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"


def _section(number: int, section: Section) -> str:
    return (
        f'<section id="part-{number}"><h2>{escaped(section.title)}</h2>\n'
        f"{''.join(map(_block, section.blocks))}</section>\n"
    )


def _block(block: Block) -> str:
    match block:
        case Note():
            return f"<p>{escaped(block.text)}</p>\n"
        case Lead():
            return f'<p class="lead">{escaped(block.text)}</p>\n'
        case Columns():
            left, right = ("".join(map(_block, blocks)) for blocks in (block.left, block.right))
            return f'<div class="columns"><div>{left}</div><div>{right}</div></div>\n'
        case Items():
            return f"<ul>{''.join(f'<li>{escaped(line)}</li>' for line in block.lines)}</ul>\n" if block.lines else ""
        case Table():
            return _table(block)
        case Picture():
            return _picture(block)
        case Gallery():
            kind = "gallery wide" if block.wide else "gallery"
            return f'<div class="{kind}">{"".join(map(_picture, block.pictures))}</div>\n'
        case Legend():
            return _legend(block)
        case Folded():
            inner = "".join(map(_block, block.blocks))
            return f"<details><summary>{escaped(block.title)}</summary>\n{inner}</details>\n"


def _table(table: Table) -> str:
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


def _picture(picture: Picture) -> str:
    alt = picture.alt or picture.title
    legend = _legend(Legend(picture.legend)) if picture.legend else ""
    svg = picture.svg.markup.replace("<svg ", f'<svg role="img" aria-label="{escaped(alt)}" ', 1)
    return f"<figure><figcaption>{escaped(picture.title)}</figcaption>{legend}{svg}</figure>\n"


def _legend(legend: Legend) -> str:
    entries = "".join(
        f'<li><span class="c{number % COLOURS}{" dashed" if number >= COLOURS else ""}"></span>{escaped(label)}</li>'
        for number, label in enumerate(legend.labels)
        if label
    )
    return f'<ul class="legend">{entries}</ul>\n'
