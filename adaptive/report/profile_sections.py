"""The sections of a page of profiles: the tables of `profile`, and its pictures in the page's colours."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from adaptive.profile.pictures import PICTURES
from adaptive.profile.report import LEGENDS, TITLES, profile_tables
from adaptive.report.blocks import Block, Gallery, Picture, Section
from adaptive.report.load import Loaded
from adaptive.report.page import visible
from adaptive.report.pictures import drawn_figure
from adaptive.telemetry.document import Note, Table

FILE: Final = "profile.json"
CAPTIONS: Final = {
    "skew": ("tables", "How often rows are looked up"),
    "tables": ("tables", "Rows and look-ups of tables"),
    "hot": ("hot", "Hot rows and hot inputs by threshold"),
    "reuse": ("reuse", "Rows that come again, and distinct rows"),
    "step": ("step", "Stages of a step"),
    "movement": ("movement", "How far hot rows move"),
    "drop": ("movement", "What a threshold would leave out"),
}
SIZE: Final = (6.6, 3.6)


def is_profile(record: Mapping[str, Any]) -> bool:
    return record.get("kind") == "profile"


def profile_sections(loaded: Sequence[Loaded]) -> list[Section]:
    """A section for each table of each profile, with its pictures."""
    return [section for one in loaded for section in _sections(one, f"{one.name}: " if len(loaded) > 1 else "")]


def _sections(one: Loaded, where: str) -> list[Section]:
    pictures = _pictures(_shown(one.record))
    sections = []
    for name, rows in profile_tables(one.record).items():
        mine = [picture for table, picture in pictures if table == name]
        told: list[Block] = [Note(" ".join(LEGENDS[name].split()))] if name in LEGENDS else []
        sections.append(
            Section(f"{where}{TITLES[name]}", [Table(rows), *told, *([Gallery(mine, wide=True)] if mine else [])])
        )
    return sections or [Section(f"{where}Profile", [Note("It was stopped before a part was done.")])]


def _pictures(record: Mapping[str, Any]) -> list[tuple[str, Picture]]:
    """With the name of the table that each belongs to."""
    found = []
    for name, (part, draw) in PICTURES.items():
        content = record.get(part)
        if not content or (part == "movement" and not content["points"]):
            continue
        table, title = CAPTIONS.get(name, (part, name))
        found.append((table, drawn_figure(title, partial(_draw, draw, content), size=SIZE)))
    return found


def _draw(draw: Any, content: Any, figure: Any) -> None:
    draw(figure, {"found": content, "link": None})


def _shown(value: Any) -> Any:
    """The same with every text as a page shows it: pictures write names as they are."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {key: _shown(item) for key, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, list) else value
