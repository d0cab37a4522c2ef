"""Runs of an earlier comparison in the same directory, so that one can go on: more seeds, one more policy.

A run counts if it came to its end, was trained by the same versions with the same settings (all but where it lies), and
the data are still what they were. Runs that were cut short or failed are trained anew.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from adaptive.config import TrainConfig
from adaptive.errors import CheckpointError
from adaptive.storage.run_directory import RECORD, read_record, versions
from adaptive.training.build import open_data
from adaptive.training.runs.loading import with_vocabulary
from adaptive.training.runs.record import check_same_data, config_of

PLACE: Final = {"out"}  # settings that say where a run lies


class KeptRuns:
    """The runs below a directory, by their settings. A directory without any is none to go on with, and none is found.

    Raises:
        CheckpointError: for a damaged record of a run.
    """

    def __init__(self, directory: Path) -> None:
        self._runs: dict[str, tuple[Path, dict[str, Any]]] = {}
        self._checked: set[str] = set()  # settings of data that are what they were
        for file in sorted(directory.glob(f"seed-*/**/{RECORD}")):
            record = read_record(file.parent)
            if record.get("status") == "finished" and isinstance(record.get("summary"), dict):
                self._runs[_key(config_of(record, file.parent))] = file.parent, record

    def find(self, config: TrainConfig) -> tuple[Path, dict[str, Any]] | None:
        """Directory and summary of the finished run with these settings.

        Raises:
            CheckpointError: if other versions have trained it.
            InputError: if its data have changed since.
        """
        found = self._runs.get(_key(config))
        if found is None:
            return None
        path, record = found
        _check_versions(path, record)
        self._check_data(path, record, config)
        return path, dict(record["summary"])

    def holds(self, path: Path) -> bool:
        """A finished run lies there."""
        return any(path == kept for kept, _ in self._runs.values())

    def _check_data(self, path: Path, record: Mapping[str, Any], config: TrainConfig) -> None:
        data = json.dumps([config.data, config.model_dump(mode="json")["data_options"]], sort_keys=True)
        if data not in self._checked:
            check_same_data(path, record, open_data(with_vocabulary(config, path)))
            self._checked.add(data)


def _key(config: TrainConfig) -> str:
    return json.dumps(config.model_dump(mode="json", exclude=PLACE), sort_keys=True)


def _check_versions(path: Path, record: Mapping[str, Any]) -> None:
    """Other versions may train other numbers, and the comparison would call a policy inexact."""
    then, now = record.get("versions"), versions()
    then = then if isinstance(then, dict) else {}
    other = [f"{name} {then.get(name)}, now {version}" for name, version in now.items() if then.get(name) != version]
    if other:
        raise CheckpointError(
            f"{path}: trained with {'; '.join(other)}: its numbers need not compare with new ones; go on with those "
            "versions, or train all anew with --overwrite"
        )
