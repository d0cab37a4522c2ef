"""`write_report`: write one HTML page of the results at some paths."""

from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from adaptive.errors import InputError, OutputError
from adaptive.storage.durable import write_atomic
from adaptive.studies.charts import need_matplotlib
from adaptive.studies.report.page_records import PageRecord, load_records
from adaptive.studies.report.run_page import run_blocks
from adaptive.studies.report.study_pages import STUDIES
from adaptive.studies.reproduce.reproduction_page import is_reproduction, reproduction_blocks
from adaptive.training.telemetry.document import Blocks, Document, prefixed

_DAMAGE: Final = (KeyError, TypeError, AttributeError, IndexError)  # raised by incomplete records
KINDS: Final = {
    "run": lambda record: False,  # recognized by its folder, which has its metrics
    **{name: study.is_record for name, study in STUDIES.items()},
    "reproduction": is_reproduction,
}
"""Kind of records that a page can show -> function that is True for JSON objects of this kind."""


def write_report(paths: Sequence[Path], out: Path) -> dict[str, Any]:
    """Write a page of the results at the paths; return its kind, content and size in bytes.

    Raises:
        CheckpointError, InputError: if the paths have no results that a page can show, or damaged ones.
        ConfigError: if matplotlib is not installed.
        OutputError: if the page cannot be written.
    """
    need_matplotlib("report")
    records = load_records(paths, KINDS)
    page = _page(records).encode()
    try:
        write_atomic(out, page)
    except OSError as error:
        raise OutputError(f"page {out} cannot be written: {error}") from error
    shown = [str(record.path) for record in records]
    return {"kind": records[0].kind, "shown": shown, "page": str(out), "page_bytes": len(page)}


def _blocks(records: Sequence[PageRecord]) -> Blocks:
    """Runs side by side; other records one after another, under headings with their names."""
    kind, is_alone = records[0].kind, len(records) == 1
    if kind == "run":
        return run_blocks(records)
    page = reproduction_blocks if kind == "reproduction" else STUDIES[kind].page
    pages = [prefixed(page(record, is_alone=is_alone), "" if is_alone else f"{record.name}: ") for record in records]
    return [block for blocks in pages for block in blocks]


def _page(records: Sequence[PageRecord]) -> str:
    kind, where = records[0].kind, ", ".join(str(record.path) for record in records)
    try:
        blocks = _blocks(records)
    except _DAMAGE as error:
        raise InputError(
            f"{where}: expected a complete record of a {kind}, got {type(error).__name__}: {error}. It is damaged, or "
            "of another version of adaptive-train"
        ) from error
    several = f"{len(records)} {kind}s" if len(records) > 1 else kind
    title = f"{several[0].upper()}{several[1:]}: {', '.join(record.name for record in records)}"
    about = f"Written {datetime.now():%Y-%m-%d %H:%M} by adaptive-train {version('adaptive-train')} from {where}"
    return Document(blocks).to_html(title, about)
