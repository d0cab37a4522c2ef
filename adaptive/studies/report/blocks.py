"""What a page is made of: sections of blocks. Texts are plain; `page` escapes them."""

from collections.abc import Sequence
from dataclasses import dataclass

from adaptive.training.telemetry.document import Document, Heading, Items, Note, Table


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
    legend: Sequence[str] = ()  # labels of its colours, as in `Legend`


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
class Lead:
    """The sentence that says what came out, set apart from other paragraphs."""

    text: str


@dataclass(frozen=True)
class Columns:
    """Two groups of blocks next to each other where the page is wide enough; the right one takes the room left."""

    left: "Sequence[Block]"
    right: "Sequence[Block]"


@dataclass(frozen=True)
class Folded:
    """Blocks behind a title that opens them."""

    title: str
    blocks: "Sequence[Block]"


Block = Note | Lead | Items | Table | Columns | Picture | Gallery | Legend | Folded


@dataclass(frozen=True)
class Section:
    """A part of the page, named in its table of contents."""

    title: str
    blocks: Sequence[Block]


def sections_of(document: Document, title: str) -> list[Section]:
    """A document as sections: what stands before its first heading is called `title`."""
    sections: list[tuple[str, list[Block]]] = [(title, [])]
    for block in document.blocks:
        if isinstance(block, Heading):
            sections.append((block.text, []))
        else:
            sections[-1][1].append(block)
    return [Section(name, blocks) for name, blocks in sections if blocks]
