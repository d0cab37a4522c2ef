"""A reproduction as a document: claims, derived tables, and the results of each command."""

from typing import Final

from adaptive.studies.charts import Line, bars, curves
from adaptive.studies.report.page_records import JsonObject, PageRecord, read_json
from adaptive.studies.report.study_pages import study_of
from adaptive.training.telemetry.document import (
    Blocks,
    Columns,
    Document,
    Folded,
    Gallery,
    Heading,
    Items,
    Legend,
    Note,
    Table,
    sections_of,
)
from adaptive.training.telemetry.formatting import short_text

KIND: Final = "reproduction"
FOLDED: Final = ("Settings", "Machine, as described", "Machines")  # a page of six commands is long enough


def is_reproduction(record: JsonObject) -> bool:
    return record.get("kind") == KIND


def reproduction_document(result: JsonObject, records: JsonObject) -> Document:
    """Commands, tables, numbers of the paper and claims, for the terminal and Markdown.

    Args:
        result: as in `reproduction.json`.
        records: of its commands, by id.
    """
    commands = result["commands"]
    blocks: Blocks = [Note(result["title"]), Note(result["source"]), Items(list(map(_command_text, commands)))]
    for command in commands:
        study = study_of(records[command["id"]])
        assert study is not None, command
        blocks += [Heading(f"{command['shows']} ({command['id']})"), *study.document(records[command["id"]]).blocks]
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


def reproduction_blocks(reproduction: PageRecord, *, is_alone: bool) -> Blocks:
    """Claims first, then derived tables, commands, and numbers of the paper."""
    record = reproduction.record
    claims = [["claim", "comes out", "numbers"]]
    claims += [[claim["says"], "yes" if claim["holds"] else "no", claim["numbers"]] for claim in record["claims"]]
    short = "A short run (--quick), which says little about quality. " if record.get("quick") else ""
    reasons = [
        Note(f"Does not come out: {claim['says']}, because {claim['why']}")
        for claim in record["claims"]
        if claim.get("why")
    ]
    blocks: Blocks = [Heading("Claims"), Note(record["title"]), Note(f"{short}{record['source']}")]
    blocks += [Table(claims, numbers=False), *reasons]
    for derived in record["derived"].values():
        heading, *table = _derived(derived)
        blocks += [heading, Columns(table, _figure(derived))]
    for command in record["commands"] if is_alone else ():
        blocks += _command(reproduction, command)
    missing = [["not available here", "why"], *([gap["what"], gap["why"]] for gap in record["missing"])]
    commands = [["shows", "command"], *([command["shows"], _command_text(command)] for command in record["commands"])]
    blocks += _published(record)
    blocks += [Heading("Not available here"), Table(missing, numbers=False)]
    return [*blocks, Heading("Commands"), Table(commands, numbers=False)]


def _derived(derived: JsonObject) -> Blocks:
    rows = [["", derived["unit"]], *([name, short_text(value)] for name, value in derived["values"].items())]
    return [Heading(derived["title"]), Table(rows), *([Note(derived["note"])] if derived.get("note") else [])]


def _figure(derived: JsonObject) -> Blocks:
    """Curves of a derived table, or its values as bars."""
    if drawn := derived.get("curves"):
        lines = [
            Line(number, [x for x, _ in points], [y for _, y in points], marked=True)
            for number, points in enumerate(drawn["lines"].values())
        ]
        figure = curves(f"{drawn['y']} over {drawn['x']}", lines, x=drawn["x"], y=drawn["y"])
        return [Legend(list(drawn["lines"])), Gallery([figure], wide=True)]
    names, values = list(derived["values"]), list(derived["values"].values())
    unit = derived["unit"]
    return [Gallery([bars(derived["title"], names, [(unit, values)], x=unit)], wide=True)] if names else []


def _published(record: JsonObject) -> Blocks:
    rows = [[number["what"], number["number"], number["source"]] for number in record["published"]]
    table = Table([["result", "number", "source"], *rows], numbers=False)
    return [Heading("Numbers in the paper"), table] if rows else []


def _command(reproduction: PageRecord, command: JsonObject) -> Blocks:
    """Results of a command in the folder; empty if its record no longer exists."""
    name, folder = str(command["id"]), reproduction.path
    # a name from a file must never become a path outside the folder
    is_there = folder.is_dir() and name.replace("-", "").isalnum() and (folder / f"{name}.json").exists()
    record = read_json(folder / f"{name}.json") if is_there else None
    study = study_of(record) if isinstance(record, dict) else None
    if study is None or record is None:
        return []
    first, *others = study.page(PageRecord("command", name, folder / name, record), is_alone=True)
    about = [Note(str(command["shows"])), Note(_command_text(command))]
    blocks: Blocks = []
    for title, section in sections_of([first, *about, *others]):
        folded = [Folded(title, section)] if title.endswith(FOLDED) else section
        blocks += [Heading(f"{name}: {title}"), *folded]
    return blocks
