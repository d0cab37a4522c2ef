"""What a page is made of: sections of blocks. Texts are plain; `page` escapes them."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first row is the head, the first column says what a row is."""

    rows: Sequence[Sequence[str]]
    caption: str = ""
    numbers: bool = True  # cells behind the first column are aligned to the right


@dataclass(frozen=True)
class Svg:
    """A picture as `pictures` draws it, the one thing that a page takes as it is."""

    markup: str


@dataclass(frozen=True)
class Picture:
    """A drawing with its title above it; `alt` says it to those who do not see it."""

    title: str
    svg: Svg
    alt: str = ""


@dataclass(frozen=True)
class Gallery:
    """Pictures side by side, as many as the page is wide."""

    pictures: Sequence[Picture]
    wide: bool = False  # two beside each other instead of three


@dataclass(frozen=True)
class Legend:
    """What the colours of the pictures below stand for; the place of a label is the number of its colour,
    an empty label is left out."""

    labels: Sequence[str]


@dataclass(frozen=True)
class Folded:
    """Blocks behind a title that opens them."""

    title: str
    blocks: "Sequence[Block]"


Block = Note | Table | Picture | Gallery | Legend | Folded


@dataclass(frozen=True)
class Section:
    """A part of the page, named in its table of contents."""

    title: str
    blocks: Sequence[Block]
