"""Train one run per policy and seed, interleaved, with everything but the policy equal.

Seed i of a comparison is `seed` + i for the initial weights. The built-in stream also changes with the seed
(`data.synthetic.seed` + i), so the spread covers the data. With files, only the shuffle changes (`data.seed` + i, if
there is one). All policies of one seed get the same data and weights.

A run that drops inputs is followed by its controls: `random_drop` with the same seed and the same share of dropped
inputs, by chance and by label. They show whether the rule chose better.

A comparison resumes from the finished runs in its directory, so you can add seeds or policies. A run is reused if it
finished, was trained by the same versions with the same settings (except for its directory), and the data have not
changed. Runs that stopped or failed are trained again.
"""

import hashlib
import json
import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, Final, TextIO

from adaptive.config import TrainConfig
from adaptive.errors import CheckpointError, InputError, OutputError
from adaptive.plugins import load_policy_class
from adaptive.storage.checkpoint import MANIFEST
from adaptive.storage.durable import write_atomic
from adaptive.storage.files import parse_json, read_file
from adaptive.storage.run_directory import RECORD as RUN_RECORD
from adaptive.storage.run_directory import read_record, versions
from adaptive.studies.compare import Comparison, Contender
from adaptive.system import OtherWork
from adaptive.training.components import open_data
from adaptive.training.runs import train_run
from adaptive.training.runs.loading import with_vocabulary
from adaptive.training.runs.run_record import check_same_data, config_of

PLACE: Final = {"out"}  # settings that only say where a run is stored
CONTROL: Final = "random_drop"
RECORD: Final = "comparison.json"
_OURS: Final = re.compile(rf"{RECORD}(\.tmp-\d+)?|seed-\d+")
_TRAINED: Final = re.compile(r"rows\d+\.(changed|weights|state)")


class FinishedRuns:
    """Finished runs below a directory, by their settings; none if the directory has none.

    Raises:
        CheckpointError: if the record of a run is damaged.
    """

    def __init__(self, directory: Path) -> None:
        self._runs: dict[str, tuple[Path, dict[str, Any]]] = {}
        self._unchanged: set[str] = set()  # settings of data that were checked
        for file in sorted(directory.glob(f"seed-*/**/{RUN_RECORD}")):
            record = read_record(file.parent)
            if record.get("status") == "finished" and isinstance(record.get("summary"), dict):
                self._runs[_key(config_of(record, file.parent))] = file.parent, record

    def find(self, config: TrainConfig) -> tuple[Path, dict[str, Any]] | None:
        """Directory and summary of the finished run with these settings.

        Raises:
            CheckpointError: if other versions trained it.
            InputError: if its data changed since.
        """
        finished = self._runs.get(_key(config))
        if finished is None:
            return None
        path, record = finished
        _check_versions(path, record)
        self._check_data(path, record, config)
        return path, dict(record["summary"])

    def free_folder(self, path: Path) -> Path:
        """The folder, with a number if a finished run has the same place in its list."""
        taken = {folder for folder, _ in self._runs.values()}
        numbered = (path if number == 1 else path.with_name(f"{path.name}.{number}") for number in count(1))
        return next(folder for folder in numbered if folder not in taken)

    def _check_data(self, path: Path, record: Mapping[str, Any], config: TrainConfig) -> None:
        data = json.dumps([config.data, config.model_dump(mode="json")["data_options"]], sort_keys=True)
        if data not in self._unchanged:
            check_same_data(path, record, open_data(with_vocabulary(config, path)))
            self._unchanged.add(data)


def _key(config: TrainConfig) -> str:
    return json.dumps(config.model_dump(mode="json", exclude=PLACE), sort_keys=True)


def _check_versions(path: Path, record: Mapping[str, Any]) -> None:
    """Other versions may train other numbers, and the comparison would call a policy inexact."""
    then, now = record.get("versions"), versions()
    then = then if isinstance(then, dict) else {}
    other = [name for name, version in now.items() if then.get(name) != version]
    if other:
        raise CheckpointError(
            f"{path}: expected a run of {', '.join(f'{name} {now[name]}' for name in other)}, got one of "
            f"{', '.join(f'{name} {then.get(name)}' for name in other)}. Numbers of different versions cannot be "
            "compared: resume with those versions, or train all runs again with --overwrite"
        )


@dataclass(frozen=True)
class Outcome:
    """The end of one training run: a summary, or an error.

    Attributes:
        bits: digest of what was trained; equal exactly if two runs agree bit for bit.
        control_of: set for a `random_drop` control: the policy whose share of dropped inputs it drops at random.
        control_by: set for such a control: `chance` or `label`.
        others_cpu_share: share of the cores that other processes used meanwhile; None if unknown.
    """

    policy: str
    seed: int
    run_dir: str
    arranges: bool = False
    summary: dict[str, Any] = field(default_factory=dict)
    bits: str | None = None
    error: Exception | None = None
    control_of: str | None = None
    control_by: str | None = None
    others_cpu_share: float | None = None


def train_all(
    contenders: Sequence[Contender],
    seeds: int,
    directory: Path,
    *,
    overwrite: bool = False,
    auto_resume: bool = False,
    stream: TextIO | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
) -> Iterator[Outcome]:
    """Train every policy with every seed, and the controls; an error ends only its run.

    Args:
        contenders: settings that differ in the policy.
        seeds: number of seeds.
        directory: from `claim`. Each run gets the folder `seed-<seed>/<policy>` in it.
        overwrite: replace the runs of an earlier comparison.
        auto_resume: reuse the finished runs in the directory (`FinishedRuns`) and train the rest.
        stream: shows the progress of each run.
        on_progress: called with a line before each run.

    Raises:
        CheckpointError: from `FinishedRuns`.
        InputError: if the first run cannot use the data (all runs have the same), or the data of a reused run changed.
    """
    finished = FinishedRuns(directory) if auto_resume else None

    def train(contender: Contender, config: TrainConfig, path: Path) -> Outcome:
        if finished is not None:
            if (earlier := finished.find(config)) is not None:
                on_progress(f"reusing the finished run {earlier[0]}")
                return _finished(contender, config, *earlier)
            path = finished.free_folder(path)
        return _train(contender, config, path, overwrite=overwrite or auto_resume, stream=stream)

    is_first = True
    for number in range(seeds):
        for place, contender in enumerate(contenders):
            config = with_seed(contender.config, number)
            about, folder = f"seed {config.seed} ({number + 1} of {seeds})", directory / f"seed-{config.seed}"
            on_progress(f"{about}, {contender.label} ({place + 1} of {len(contenders)})")
            outcome = train(contender, config, folder / _folder_name(place, contender.label))
            if isinstance(outcome.error, InputError) and is_first and not contender.arranges:
                raise outcome.error
            is_first = False
            yield outcome
            for by, control in _controls(contender, config, outcome).items():
                on_progress(f"{about}, {control.label}")
                dropped_at_random = train(control, control.config, folder / _folder_name(place, _control_name(by)))
                yield replace(dropped_at_random, control_of=contender.label, control_by=by)


def _controls(contender: Contender, config: TrainConfig, outcome: Outcome) -> dict[str, Contender]:
    """The runs that drop as many inputs at random, by chance and by label, if a rule dropped inputs in this run.

    They take as many steps as the run if its rule fills smaller batches.
    """
    summary = outcome.summary
    share = summary.get("skipped_input_share")
    if not share or load_policy_class(config.policy) is load_policy_class(CONTROL):
        return {}
    keeps_steps = summary["samples"] < (1 - share / 2) * summary["steps"] * config.batch_size
    skip = None if config.skip is None else config.skip.model_copy(update={"rule": None})  # it drops inputs itself
    options = {"share": share, "keep_steps": keeps_steps, "seed": config.seed}
    controls = {}
    for by in ("chance", "label"):
        changed = {"policy": CONTROL, "policy_options": {**options, "by": by}, "skip": skip}
        label = f"{_control_name(by)} for {contender.label}"
        controls[by] = Contender(label, config.model_copy(update=changed))
    return controls


def _control_name(by: str) -> str:
    return CONTROL if by == "chance" else f"{CONTROL}+by={by}"


def with_seed(config: TrainConfig, number: int) -> TrainConfig:
    """Settings for seed `number` of a comparison: the seeds of weights and data plus `number`."""
    options = dict(config.data_options)
    if config.data == "synthetic":
        synthetic = dict(options.get("synthetic", {}))
        options["synthetic"] = {**synthetic, "seed": synthetic.get("seed", 0) + number}
    else:
        options["seed"] = options.get("seed", 0) + number
    return config.model_copy(update={"seed": config.seed + number, "data_options": options})


def claim(out: str | None, *, overwrite: bool = False, auto_resume: bool = False) -> Path:
    """Create the directory of a comparison if it is missing: `out`, or `runs/<date>-compare`.

    Raises:
        OutputError: if it is not empty (unless it holds a comparison and `overwrite` or `auto_resume` is set), or
            cannot be created.
    """
    path = Path(out) if out is not None else Path("runs") / f"{datetime.now():%Y-%m-%d-%H%M%S}-compare"
    try:
        path.mkdir(parents=True, exist_ok=True)
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise OutputError(f"output directory {path} cannot be used: {error}") from error
    if names and not (overwrite or auto_resume):
        raise OutputError(
            f"expected a new or empty output directory, got {path}, which has files. Choose another with --out, keep "
            "its runs with --auto-resume, or replace them with --overwrite"
        )
    others = [name for name in names if not _OURS.fullmatch(name)]
    if others:
        raise OutputError(
            f"expected only files of a comparison in the output directory {path}, got {', '.join(others[:5])}. Move "
            "them, or choose another directory with --out"
        )
    return path


def write_record(directory: Path, result: Comparison) -> None:
    """Write the result next to the runs."""
    try:
        write_atomic(directory / RECORD, json.dumps(asdict(result), indent=1).encode() + b"\n")
    except OSError as error:
        raise OutputError(f"{directory / RECORD} cannot be written: {error}") from error


def _finished(contender: Contender, config: TrainConfig, path: Path, summary: dict[str, Any]) -> Outcome:
    return Outcome(
        contender.label,
        config.seed,
        str(path),
        arranges=contender.arranges,
        summary=summary,
        bits=_bits(path, summary),
    )


def _train(contender: Contender, config: TrainConfig, path: Path, *, overwrite: bool, stream: TextIO | None) -> Outcome:
    others = OtherWork()
    try:
        placed = config.model_copy(update={"out": str(path)})
        summary: dict[str, Any] = {**train_run(placed, overwrite=overwrite, stream=stream)}
    except Exception as error:  # any error ends only this run
        traceback.clear_frames(error.__traceback__)  # frees its tables
        return Outcome(contender.label, config.seed, str(path), error=error)
    for text in ("table", "details"):
        summary.pop(text, None)
    return replace(_finished(contender, config, path, summary), others_cpu_share=others.share())


def _bits(path: Path, summary: dict[str, Any]) -> str:
    """Digest of the trained weights and row state, if they were saved, and of the quality."""
    facts: dict[str, Any] = {name: summary.get(name) for name in ("steps", "samples", "auc", "log_loss")}
    file = path / "weights" / MANIFEST
    if os.path.lexists(file):  # not with save=false, where the quality stands for the weights
        manifest = parse_json(read_file(file), str(file))
        arrays = manifest["arrays"]
        facts |= {entry["name"]: entry["sha256"] for entry in arrays if entry["group"] == "dense"}
        rows = [entry for entry in arrays if entry["group"] == "rows" and _TRAINED.fullmatch(entry["name"])]
        assert rows, f"{file}: no rows to compare"
        facts |= {f"{entry['shard']}/{entry['name']}": entry["sha256"] for entry in rows}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _folder_name(place: int, label: str) -> str:
    """`0-lru`: the place separates policies whose names differ only in punctuation."""
    return f"{place}-" + (re.sub(r"[^A-Za-z0-9_.=-]+", "-", label.rpartition("/")[2]).strip("-") or "policy")
