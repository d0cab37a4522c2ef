"""The sections of a page of reproductions: what comes out and what does not, derived tables and pictures, and then what
each command found, as a page of its own record would show it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from adaptive.errors import InputError
from adaptive.storage.untrusted import parse_json, read_plain
from adaptive.studies.charts import Line, bars, curves
from adaptive.studies.report.blocks import Block, Folded, Gallery, Legend, Picture, Section
from adaptive.studies.report.comparison_sections import comparison_sections, is_comparison
from adaptive.studies.report.load import Loaded
from adaptive.studies.report.placement_sections import is_placements, placement_sections
from adaptive.studies.report.profile_sections import is_profile, profile_sections
from adaptive.studies.report.simulation_sections import is_simulation, simulation_sections
from adaptive.training.telemetry.document import Note, Table
from adaptive.training.telemetry.formatting import short_text

_OF_COMMANDS: Final[tuple[tuple[Callable[[Mapping[str, Any]], bool], Callable[..., list[Section]]], ...]] = (
    (is_comparison, comparison_sections),
    (is_profile, profile_sections),
    (is_placements, placement_sections),
    (is_simulation, simulation_sections),
)


def is_reproduction(record: Mapping[str, Any]) -> bool:
    return record.get("kind") == "reproduction"


def reproduction_sections(loaded: Sequence[Loaded]) -> list[Section]:
    """Claims first, then derived tables, then commands one after another, then what is not from here."""
    several = len(loaded) > 1
    return [section for one in loaded for section in _reproduction(one, f"{one.name}: " if several else "", several)]


def _reproduction(one: Loaded, where: str, several: bool) -> list[Section]:
    found = one.record
    papers = [["the paper", "number", "source"], *([p["what"], p["number"], p["source"]] for p in found["papers"])]
    missing = [["cannot be had here", "why"], *([m["what"], m["why"]] for m in found["missing"])]
    commands = [["shows", "command"], *([c["shows"], f"adaptive-train {c['words']}"] for c in found["commands"])]
    return [
        _claims(found, where),
        *(_derived(d, where) for d in found["derived"].values()),
        *([] if several else [section for command in found["commands"] for section in _command(one, command)]),
        *([Section(f"{where}Numbers of the paper", [Table(papers, numbers=False)])] if found["papers"] else []),
        Section(f"{where}What cannot be had here", [Table(missing, numbers=False)]),
        Section(f"{where}Commands", [Table(commands, numbers=False)]),
    ]


def _claims(found: Mapping[str, Any], where: str) -> Section:
    rows = [["claim", "comes out", "numbers"]]
    rows += [[c["says"], "yes" if c["holds"] else "no", c["numbers"]] for c in found["claims"]]
    whys = [Note(f"{c['says']}: {c['why']}") for c in found["claims"] if not c["holds"] and c.get("why")]
    short = "Of a short run (--quick): of quality it shows little. " if found.get("quick") else ""
    return Section(
        f"{where}What comes out",
        [Note(found["title"]), Note(f"{short}{found['source']}"), Table(rows, numbers=False), *whys],
    )


def _derived(one: Mapping[str, Any], where: str) -> Section:
    names, values = list(one["values"]), list(one["values"].values())
    table = Table([["", one["unit"]], *([name, short_text(value)] for name, value in one["values"].items())])
    told: list[Block] = [Note(one["note"])] if one.get("note") else []
    if one.get("curves"):
        return Section(f"{where}{one['title']}", [table, *told, *_curves(one["curves"])])
    picture: list[Picture] = [bars(one["title"], names, [(one["unit"], values)], x=one["unit"])] if names else []
    return Section(f"{where}{one['title']}", [table, *told, Gallery(picture, wide=True)])


def _curves(drawn: Mapping[str, Any]) -> list[Block]:
    lines = [
        Line(number, [x for x, _ in points], [y for _, y in points], marked=True)
        for number, points in enumerate(drawn["lines"].values())
    ]
    title = f"{drawn['y']} over {drawn['x']}"
    return [Legend(list(drawn["lines"])), Gallery([curves(title, lines, x=drawn["x"], y=drawn["y"])], wide=True)]


def _command(one: Loaded, command: Mapping[str, Any]) -> list[Section]:
    """What a command left in the folder, under its id; nothing for a record that is no longer there."""
    name = str(command["id"])
    head: list[Block] = [Note(str(command["shows"])), Note(f"adaptive-train {command['words']}")]
    record = _record_of(one.path, name)
    make = next((make for is_one, make in _OF_COMMANDS if record is not None and is_one(record)), None)
    if record is None or make is None:
        return []
    sections = make([Loaded("command", name, one.path / name, record)])
    first = replace(sections[0], blocks=[*head, *sections[0].blocks])
    return [replace(section, title=f"{name}: {section.title}") for section in (first, *_folded(sections[1:]))]


FOLDED: Final = ("Settings", "Machine, as described", "Machines")


def _folded(sections: Sequence[Section]) -> list[Section]:
    """With what only some want to see behind a title: a page of six commands is long enough."""
    return [
        replace(one, blocks=[Folded(one.title, one.blocks)]) if one.title.endswith(FOLDED) else one for one in sections
    ]


def _record_of(folder: Path, name: str) -> Mapping[str, Any] | None:
    """A name of a record that came from a file never becomes a path out of the folder."""
    if not folder.is_dir() or not name.replace("-", "").isalnum():
        return None
    file = folder / f"{name}.json"
    if not file.exists():
        return None
    record = parse_json(read_plain(file, error=InputError, follow=True), str(file), error=InputError)
    return record if isinstance(record, dict) else None
