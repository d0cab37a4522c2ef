"""`write_report`: paths in, one HTML file out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from adaptive.errors import InputError, OutputError
from adaptive.storage.durable import write_atomic
from adaptive.studies.charts import DRAWS, need_matplotlib
from adaptive.studies.report.page_records import JsonObject, PageRecord, load_records
from adaptive.studies.report.run_page import Blocks, run_blocks
from adaptive.studies.report.study_pages import STUDIES
from adaptive.studies.reproduce.reproduction_page import is_reproduction, reproduction_blocks
from adaptive.training.telemetry.document import Document, prefixed

_DAMAGE: Final = (KeyError, TypeError, AttributeError, IndexError)  # of a record that is JSON, but not whole


@dataclass(frozen=True)
class Kind:
    """How records of a kind are told from others, and what a page shows of them.

    Attributes:
        is_record: of a JSON object. True for records of this kind alone.
        blocks: of one or several, which the page shows side by side.
    """

    is_record: Callable[[JsonObject], bool]
    blocks: Callable[[Sequence[PageRecord]], Blocks]


def _each(page: Callable[..., Blocks]) -> Callable[[Sequence[PageRecord]], Blocks]:
    """One record after another, with its name in the headings of several."""

    def blocks(records: Sequence[PageRecord]) -> Blocks:
        is_alone = len(records) == 1
        pages = [prefixed(page(one, is_alone=is_alone), "" if is_alone else f"{one.name}: ") for one in records]
        return [block for blocks in pages for block in blocks]

    return blocks


KINDS: Final[dict[str, Kind]] = {
    "run": Kind(lambda record: False, run_blocks),  # known by its folder, where its metrics are
    **{name: Kind(study.is_record, _each(study.page)) for name, study in STUDIES.items()},
    "reproduction": Kind(is_reproduction, _each(reproduction_blocks)),
}


def write_report(paths: Sequence[Path], out: Path, *, kinds: Mapping[str, Kind] = KINDS) -> dict[str, Any]:
    """Write a page of what the paths hold; returns what it shows and its size in bytes.

    Raises:
        CheckpointError, InputError: if the paths are none of a page, or what they hold is damaged.
        ConfigError: if matplotlib is not installed.
        OutputError: if the page cannot be written.
    """
    need_matplotlib(DRAWS)
    records = load_records(paths, {name: kind.is_record for name, kind in kinds.items()})
    page = _page(records, kinds).encode()
    try:
        write_atomic(out, page)
    except OSError as error:
        raise OutputError(f"page {out} could not be written: {error}") from error
    shown = [str(record.path) for record in records]
    return {"kind": records[0].kind, "shown": shown, "page": str(out), "page_bytes": len(page)}


def _page(records: Sequence[PageRecord], kinds: Mapping[str, Kind]) -> str:
    kind, where = records[0].kind, ", ".join(str(record.path) for record in records)
    try:
        blocks = kinds[kind].blocks(records)
    except _DAMAGE as error:
        raise InputError(
            f"{where}: not a whole record of a {kind} ({type(error).__name__}: {error}); it is damaged, or of another "
            "version of adaptive-train"
        ) from error
    several = f"{len(records)} {kind}s" if len(records) > 1 else kind
    title = f"{several[0].upper()}{several[1:]}: {', '.join(record.name for record in records)}"
    about = f"Written {datetime.now():%Y-%m-%d %H:%M} by adaptive-train {version('adaptive-train')} from {where}"
    return Document(blocks).to_html(title, about)
