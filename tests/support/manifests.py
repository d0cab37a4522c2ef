"""Manifests of checkpoints and records of runs, changed as an attacker would."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.storage.arrays import write_array
from adaptive.storage.checkpoint import MANIFEST
from adaptive.storage.durable import DISK
from adaptive.storage.run_directory import RECORD, SCHEMA
from adaptive.storage.shards import Part, write_part
from adaptive.storage.untrusted import DIGEST, signed_json


def edit_manifest(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and sign it anew: what an attacker would do."""
    manifest = json.loads((directory / MANIFEST).read_text())
    change(manifest)
    manifest["sha256"] = ""
    raw = json.dumps(manifest, indent=1)
    digest = hashlib.sha256(raw.encode()).hexdigest()
    (directory / MANIFEST).write_text(raw.replace('"sha256": ""', f'"sha256": "{digest}"', 1))


def listed(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of all arrays, of rows in shards, too."""
    return [*manifest["arrays"], *(entry for shard in manifest["shards"] for entry in shard)]


def write_again(folder: Path, entry: dict[str, Any], array: NDArray[Any]) -> None:
    """Another array in the place of a stored one, with the size and the digests that the manifest says."""
    path = folder / entry["file"]
    path.unlink()
    array = np.ascontiguousarray(array).reshape(array.shape)
    if "pieces" not in entry:
        entry |= write_array(path, array, DISK)
        return
    array = np.atleast_1d(array)
    counts = [len(array)]
    if any(number for number, _, _ in entry["pieces"]):  # of several ranks: as many entries as before
        counts = [0] * (1 + max(number for number, _, _ in entry["pieces"]))
        for number, count, _ in entry["pieces"]:
            counts[number] = count
    entry |= write_part(path, Part(array, entry["key"], counts), DISK)


def signed_whatever(content: dict[str, Any]) -> bytes:
    """As `signed_json`, also of infinite numbers, which we never write but Python reads."""
    unsigned = json.dumps({DIGEST: "", **content}, indent=1).encode() + b"\n"
    return unsigned.replace(b'"sha256": ""', f'"sha256": "{hashlib.sha256(unsigned).hexdigest()}"'.encode(), 1)


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Write `run.json`, signed."""
    content = {"schema": SCHEMA, **record}
    (folder / RECORD).write_bytes(signed_json({name: value for name, value in content.items() if name != DIGEST}))


def edit_record(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change `run.json` and sign it anew."""
    record = json.loads((folder / RECORD).read_text())
    change(record)
    write_record(folder, record)
