"""The sections of a page of profiles: the tables of `profile`, and its pictures in the page's colours."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from adaptive.studies.charts import drawn_figure
from adaptive.studies.profile.profile_report import PICTURES, TITLES, profile_document
from adaptive.studies.report.blocks import Gallery, Picture, Section, sections_of
from adaptive.studies.report.load import Loaded
from adaptive.studies.report.page import visible
from adaptive.training.telemetry.document import Note

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
    for part in sections_of(profile_document(one.record), "Data and device size"):
        mine = [picture for title, picture in pictures if title == part.title]
        gallery = [Gallery(mine, wide=True)] if mine else []
        sections.append(Section(f"{where}{part.title}", [*part.blocks, *gallery]))
    return sections or [Section(f"{where}Profile", [Note("It was stopped before a part was done.")])]


def _pictures(record: Mapping[str, Any]) -> list[tuple[str, Picture]]:
    """With the title of the section that each belongs to."""
    found = []
    for name, (part, draw) in PICTURES.items():
        content = record.get(part)
        if not content or (part == "movement" and not content["points"]):
            continue
        table, title = CAPTIONS.get(name, (part, name))
        found.append((TITLES[table], drawn_figure(title, partial(_draw, draw, content), size=SIZE)))
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
