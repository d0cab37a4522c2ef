"""Manifests of checkpoints, changed as an attacker would."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adaptive.storage.checkpoint import MANIFEST


def edit_manifest(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and sign it anew: what an attacker would do."""
    manifest = json.loads((directory / MANIFEST).read_text())
    change(manifest)
    manifest["sha256"] = ""
    raw = json.dumps(manifest, indent=1)
    digest = hashlib.sha256(raw.encode()).hexdigest()
    (directory / MANIFEST).write_text(raw.replace('"sha256": ""', f'"sha256": "{digest}"', 1))
