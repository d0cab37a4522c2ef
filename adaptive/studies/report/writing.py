"""`write_report`: paths in, one HTML file out."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from adaptive.errors import InputError, OutputError
from adaptive.storage.durable import write_atomic
from adaptive.studies.charts import DRAWS, need_matplotlib
from adaptive.studies.report.kinds import KINDS, Kind
from adaptive.studies.report.load import Loaded, load_all
from adaptive.studies.report.page import page_html

_DAMAGE: Final = (KeyError, TypeError, AttributeError, IndexError)  # of a record that is JSON, but not whole


def write_report(paths: Sequence[Path], out: Path, *, kinds: Mapping[str, Kind] = KINDS) -> dict[str, Any]:
    """Write a page of what lies at the paths; returns what it shows and its size in bytes.

    Raises:
        CheckpointError, InputError: if the paths are none of a page, or what lies there is damaged.
        ConfigError: if matplotlib is not installed.
        OutputError: if the page cannot be written.
    """
    need_matplotlib(DRAWS)
    loaded = load_all(paths, {name: kind.is_one for name, kind in kinds.items()})
    page = _page(loaded, kinds).encode()
    try:
        write_atomic(out, page)
    except OSError as error:
        raise OutputError(f"page {out} could not be written: {error}") from error
    kind = loaded[0].kind
    return {"kind": kind, "shown": [str(one.path) for one in loaded], "page": str(out), "page_bytes": len(page)}


def _page(loaded: Sequence[Loaded], kinds: Mapping[str, Kind]) -> str:
    kind = loaded[0].kind
    try:
        sections = kinds[kind].sections(loaded)
    except _DAMAGE as error:
        which = ", ".join(str(one.path) for one in loaded)
        raise InputError(
            f"{which}: not a whole record of a {kind} ({type(error).__name__}: {error}); it is damaged, or of another "
            "version of adaptive-train"
        ) from error
    names = ", ".join(one.name for one in loaded)
    several = f"{len(loaded)} {kind}s" if len(loaded) > 1 else kind
    where = ", ".join(str(one.path) for one in loaded)
    about = f"Written {datetime.now():%Y-%m-%d %H:%M} by adaptive-train {version('adaptive-train')} from {where}"
    return page_html(f"{several[0].upper()}{several[1:]}: {names}", about, sections)
