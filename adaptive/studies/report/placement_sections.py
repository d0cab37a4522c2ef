"""The sections of a page of placements: tables and the picture."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from adaptive.studies.charts import drawn_figure
from adaptive.studies.placements.placement_report import DRAW, LEGEND, STOPPED, lines_table, measured_table
from adaptive.studies.report.blocks import Block, Folded, Gallery, Section
from adaptive.studies.report.load import Loaded
from adaptive.studies.report.page import visible
from adaptive.training.telemetry.document import Note, Table

SIZE: Final = (7.2, 4.4)
MOST_LINES: Final = 32  # of a table that stands open


def is_placements(record: Mapping[str, Any]) -> bool:
    return record.get("kind") == "placements"


def placement_sections(loaded: Sequence[Loaded]) -> list[Section]:
    """Modelled lines with their picture, and what was measured beside them."""
    return [section for one in loaded for section in _placements(one, f"{one.name}: " if len(loaded) > 1 else "")]


def _placements(one: Loaded, where: str) -> list[Section]:
    record = _visible(one.record)
    picture = drawn_figure("Throughput (modelled)", partial(_drawn, record), size=SIZE)
    rows = lines_table(one.record)
    lines: Block = Table(rows)
    if len(rows) > MOST_LINES:
        lines = Folded(f"All {len(rows) - 1} lines", [lines])
    first: list[Block] = [Gallery([picture], wide=True), lines, Note(LEGEND)]
    sections = [Section(f"{where}Placements, modelled", first)]
    if one.record.get("measured"):
        sections.append(Section(f"{where}Trained here beside the model", [Table(measured_table(one.record))]))
    if one.record.get("was_stopped"):
        sections.append(Section(f"{where}Not all was trained", [Note(STOPPED)]))
    machines = [["machine", "where its numbers come from", "and what is not from there"]]
    machines += [[m["name"], m["source"], m.get("note") or ""] for m in one.record["machines"]]
    return [*sections, Section(f"{where}Machines", [Table(machines, numbers=False)])]


def _drawn(record: Mapping[str, Any], figure: Any) -> None:
    DRAW[len(record["sweep"])](figure, record)


def _visible(value: Any) -> Any:
    """Texts as a picture can show them."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {key: _visible(one) for key, one in value.items()}
    return [_visible(one) for one in value] if isinstance(value, list) else value
