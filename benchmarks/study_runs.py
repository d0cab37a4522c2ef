"""The runs of the study and their file: one JSON line per run, so that a study can resume.

A run is `adaptive-train compare`'s: the same seeds, streams and outcomes (`adaptive.studies.compare.comparison_runs`).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptive.config import TrainConfig
from adaptive.storage.durable import write_atomic
from adaptive.studies.compare import Contender
from adaptive.studies.compare.comparison_runs import Outcome, train_all, with_seed
from benchmarks.study_cells import Setting, Way

Key = tuple[str, str, int]  # setting, label of the way, seed


@dataclass(frozen=True)
class Run:
    """One training that came to its end, or the error that stopped it."""

    setting: str
    label: str
    seed: int
    fingerprint: str  # of all that was asked for
    summary: dict[str, Any]
    error: str | None = None
    beside: str | None = None  # the way whose share of dropped inputs this run dropped
    by: str | None = None  # how it did: by chance or by label

    @property
    def key(self) -> Key:
        return self.setting, self.label, self.seed

    @property
    def outcome(self) -> Outcome:
        """As a comparison judges it."""
        bits = None if self.error else json.dumps([self.summary["auc"], self.summary["log_loss"]])
        error = RuntimeError(self.error) if self.error else None
        arranges = bool(self.summary.get("skipped_input_share"))
        summary = {**self.summary, "time_ms": {}} if self.summary else {}  # nothing is timed here
        return Outcome(self.label, self.seed, "", arranges, summary, bits, error, self.beside, self.by)


class Runs:
    """The runs of a file; a run that was asked for differently since counts as not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._runs: dict[Key, Run] = {}
        if path.is_file():
            *whole, rest = path.read_text("utf-8").split("\n")
            if rest:  # of a process that was killed while it wrote
                write_atomic(path, "".join(f"{line}\n" for line in whole).encode())
            for line in whole:
                run = Run(**json.loads(line))
                self._runs[run.key] = run

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    def get(self, setting: Setting, way: Way, seed: int, *, control: str | None = None) -> Run | None:
        """The run of a way, or of the control that dropped as many inputs (`chance`, `label`)."""
        label = control_label(way, control) if control else way.label
        run = self._runs.get((setting.name, label, seed))
        return run if run is not None and run.fingerprint == fingerprint(setting, way) else None

    def add(self, run: Run) -> None:
        """Append it to the file."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(run.__dict__) + "\n")
        self._runs[run.key] = run


def fingerprint(setting: Setting, way: Way) -> str:
    """Of the settings of a run, without its seed and without where files lie."""
    parts = [setting.data, setting.config, setting.stream, way.policy, way.options, way.config]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=dict).encode()).hexdigest()[:16]


def control_label(way: Way, by: str) -> str:
    """Of the run that drops as many inputs by chance, or by label."""
    return f"{'random' if by == 'chance' else 'negatives'} as {way.label}"


def train(setting: Setting, way: Way, seed: int, *, folder: Path) -> list[Run]:
    """Train one run in `folder`, which is overwritten, and its control if it dropped inputs."""
    config = with_seed(config_of(setting, way, folder=folder), seed)
    directory = folder / "run"
    directory.mkdir(parents=True, exist_ok=True)
    outcomes = train_all([Contender(way.label, config)], 1, directory, overwrite=True)
    return [_run(setting, way, outcome) for outcome in outcomes]


def _run(setting: Setting, way: Way, outcome: Outcome) -> Run:
    error = None if outcome.error is None else f"{type(outcome.error).__name__}: {outcome.error}"
    return Run(
        setting.name,
        way.label if outcome.control_by is None else control_label(way, outcome.control_by),
        outcome.seed,
        fingerprint(setting, way),
        {name: value for name, value in outcome.summary.items() if name not in ("run_dir", "time_ms")},
        error,
        outcome.control_of,
        outcome.control_by,
    )


def config_of(setting: Setting, way: Way, *, folder: Path) -> TrainConfig:
    """The settings of a run, before its seed is set."""
    values: Mapping[str, Any] = {
        "policy": way.policy,
        "policy_options": dict(way.options),
        "save": False,
        "tensorboard": False,
        "log_every": 50,  # the first interval, which compiles, is not timed
        **setting.config,
        **way.config,
        **_data(setting, folder),
    }
    return TrainConfig.model_validate(values)


def _data(setting: Setting, folder: Path) -> dict[str, Any]:
    if setting.stream is not None:
        return {"data": "synthetic", "data_options": {"synthetic": dict(setting.stream)}}
    from benchmarks.study_sets import data_of

    return data_of(setting.data, folder / "sets")
