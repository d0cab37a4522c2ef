"""Manifests of checkpoints and records of runs, edited by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adaptive.storage.checkpoint import MANIFEST
from adaptive.storage.files import json_text
from adaptive.storage.run_directory import RECORD, SCHEMA


def edit_manifest(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((directory / MANIFEST).read_text())
    change(manifest)
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=1))


def listed(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of all arrays."""
    entries: list[dict[str, Any]] = manifest["arrays"]
    return entries


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Write `run.json`."""
    (folder / RECORD).write_bytes(json_text({"schema": SCHEMA, **record}))
