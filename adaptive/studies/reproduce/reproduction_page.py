"""A reproduction as a document: claims, derived tables, and the results of each command."""

from collections.abc import Callable
from typing import Any, Final

from adaptive.storage.files import from_json
from adaptive.studies.compare import Comparison
from adaptive.studies.compare.comparison_report import comparison_document
from adaptive.studies.placements.placement_report import placements_document
from adaptive.studies.placements.placement_study import PlacementStudy
from adaptive.studies.profile import Profile
from adaptive.studies.profile.profile_report import profile_document
from adaptive.studies.simulate.simulation import Simulation
from adaptive.studies.simulate.simulation_report import simulation_document
from adaptive.training.telemetry.document import Document, DocumentBlock, Heading, Items, Note, Table
from adaptive.training.telemetry.formatting import short_text

KIND: Final = "reproduction"
JsonObject = dict[str, Any]
Blocks = list[DocumentBlock]
DOCUMENTS: Final[dict[str, tuple[type[Any], Callable[[Any], Document]]]] = {
    "compare": (Comparison, comparison_document),
    "profile": (Profile, profile_document),
    "placements": (PlacementStudy, placements_document),
    "simulate": (Simulation, simulation_document),
}
"""Command -> class of its record, and its tables."""


def reproduction_document(result: JsonObject, records: JsonObject) -> Document:
    """Commands, tables, numbers of the paper and claims, for the terminal and Markdown.

    Args:
        result: as in `reproduction.json`.
        records: of its commands, by id.
    """
    commands = result["commands"]
    blocks: Blocks = [Note(result["title"]), Note(result["source"]), Items(list(map(_command_text, commands)))]
    for command in commands:
        kind, to_document = DOCUMENTS[command["words"].partition(" ")[0]]
        document = to_document(from_json(kind, records[command["id"]]))
        blocks += [Heading(f"{command['shows']} ({command['id']})"), *document.blocks]
    for derived in result["derived"].values():
        blocks += _derived(derived)
    claims = result["claims"]
    claimed = {
        "comes out": [f"{claim['says']} ({claim['numbers']})" for claim in claims if claim["holds"]],
        "does not come out": [
            f"{claim['says']} ({', because '.join(filter(None, [claim['numbers'], claim['why']]))})"
            for claim in claims
            if not claim["holds"]
        ],
        "not available here": [f"{missing['what']} ({missing['why']})" for missing in result["missing"]],
    }
    last = Items([f"{verdict}: {'; '.join(texts) or 'nothing'}" for verdict, texts in claimed.items()])
    return Document([*blocks, *_published(result), last])


def _command_text(command: JsonObject) -> str:
    return f"adaptive-train {command['words']}"


def _derived(derived: JsonObject) -> Blocks:
    rows = [["", derived["unit"]], *([name, short_text(value)] for name, value in derived["values"].items())]
    return [Heading(derived["title"]), Table(rows), *([Note(derived["note"])] if derived.get("note") else [])]


def _published(record: JsonObject) -> Blocks:
    rows = [[number["what"], number["number"], number["source"]] for number in record["published"]]
    table = Table([["result", "number", "source"], *rows], numbers=False)
    return [Heading("Numbers in the paper"), table] if rows else []
