"""`compare`: one training for each policy and seed, interleaved, with everything but the policy equal.

Where settings are swept, too, that holds within each combination of their values: all policies train with the first
one, then with the next, and then comes the next seed.

Seed i of a comparison is `seed` + i for initial weights, dense and rows. The built-in stream is another one for each
seed (`data.synthetic.seed` + i), so that the spread covers the data, too; of files only the shuffle changes
(`data.seed` + i, where there is one), since the data are what they are. Within a seed all policies get the same.

A run that dropped inputs is followed by its control, unasked: `random_drop` with the same seed and the share of the
inputs that was dropped. Whether a rule chose its inputs well shows beside one that did not look.

Runs of an earlier comparison in the same directory, so that one can go on: more seeds, one more policy.

A run counts if it came to its end, was trained by the same versions with the same settings (all but where it lies), and
the data are still what they were. Runs that were cut short or failed are trained anew.
"""

import hashlib
import json
import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import count, groupby
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np
from numpy.typing import NDArray

from adaptive.config import TrainConfig
from adaptive.errors import CheckpointError, InputError, OutputError
from adaptive.plugins import load_policy_class
from adaptive.storage.checkpoint import MANIFEST
from adaptive.storage.durable import write_atomic
from adaptive.storage.run_directory import RECORD as RUN_RECORD
from adaptive.storage.run_directory import read_record, read_scores, versions
from adaptive.storage.untrusted import parse_json, read_plain
from adaptive.studies.compare import Comparison
from adaptive.studies.compare.contenders import Contender, SweepPoint, folders, title
from adaptive.system import OtherWork
from adaptive.training.components import open_data
from adaptive.training.runs import train_run
from adaptive.training.runs.loading import with_vocabulary
from adaptive.training.runs.run_record import check_same_data, config_of

PLACE: Final = {"out"}  # settings that say where a run lies


class FinishedRuns:
    """The runs below a directory, by their settings. A directory without any is none to go on with, and none is found.

    Raises:
        CheckpointError: for a damaged record of a run.
    """

    def __init__(self, directory: Path) -> None:
        self._runs: dict[str, tuple[Path, dict[str, Any]]] = {}
        self._checked: set[str] = set()  # settings of data that are what they were
        for file in sorted(directory.glob(f"seed-*/**/{RUN_RECORD}")):
            record = read_record(file.parent)
            if record.get("status") == "finished" and isinstance(record.get("summary"), dict):
                self._runs[_key(config_of(record, file.parent))] = file.parent, record

    def find(self, config: TrainConfig) -> tuple[Path, dict[str, Any]] | None:
        """Directory and summary of the finished run with these settings.

        Raises:
            CheckpointError: if other versions have trained it.
            InputError: if its data have changed since.
        """
        finished = self._runs.get(_key(config))
        if finished is None:
            return None
        path, record = finished
        _check_versions(path, record)
        self._check_data(path, record, config)
        return path, dict(record["summary"])

    def holds(self, path: Path) -> bool:
        """A finished run lies there."""
        return any(path == folder for folder, _ in self._runs.values())

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


CONTROL: Final = "random_drop"
RECORD: Final = "comparison.json"
_OURS: Final = re.compile(rf"{RECORD}(\.tmp-\d+)?|seed-\d+")
_TRAINED: Final = re.compile(r"rows\d+\.(changed|weights|state)")


@dataclass(frozen=True)
class Outcome:
    """How one training ended: with a summary, or with an error."""

    policy: str
    seed: int
    run_dir: str
    arranges: bool = False
    summary: dict[str, Any] = field(default_factory=dict)
    bits: str | None = None  # of what was trained; equal exactly if the runs agree bit for bit
    error: Exception | None = None
    beside: str | None = None  # the policy whose share of dropped inputs this run dropped at random
    swept: SweepPoint = ()
    others_cpu_share: float | None = None  # of the cores, taken by other processes meanwhile; None: not known
    scores: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)  # (2, n): logits, labels


Told = Callable[[str], None]


def train_all(
    contenders: Sequence[Contender],
    seeds: int,
    directory: Path,
    *,
    overwrite: bool = False,
    auto_resume: bool = False,
    stream: TextIO | None = None,
    told: Told | None = None,
) -> list[Outcome]:
    """All outcomes of `trainings`."""
    return list(
        trainings(contenders, seeds, directory, overwrite=overwrite, auto_resume=auto_resume, stream=stream, told=told)
    )


def trainings(
    contenders: Sequence[Contender],
    seeds: int,
    directory: Path,
    *,
    overwrite: bool = False,
    auto_resume: bool = False,
    stream: TextIO | None = None,
    told: Told | None = None,
) -> Iterator[Outcome]:
    """Train every policy with every seed, seed by seed, and the controls; an error ends its own run only.

    Args:
        contenders: settings that differ in the policy and, group by group, in what is swept only.
        seeds: how many.
        directory: from `claim`; each run gets the folder `seed-<seed>/<policy>` in it, or
            `seed-<seed>/<key=value>/<policy>`.
        overwrite: replace the runs of an earlier comparison.
        auto_resume: take the runs that it finished as they are (`FinishedRuns`), and train only what is missing.
        stream: where the progress of a run is shown.
        told: called before each run.

    Raises:
        CheckpointError: from `FinishedRuns`.
        InputError: if the first run finds the data unusable (they are the same for all), or they are no longer those
            of a run that is kept.
    """
    tell = told or (lambda which: None)
    earlier = FinishedRuns(directory) if auto_resume else None
    train = partial(_find_or_train, earlier, tell, overwrite=overwrite or auto_resume, stream=stream)
    first = True
    for number in range(seeds):
        for which, rivals in _groups(contenders):
            for place, contender in enumerate(rivals):
                config = with_seed(contender.config, number)
                about = f"seed {config.seed} ({number + 1} of {seeds}){which}"
                folder = directory.joinpath(f"seed-{config.seed}", *folders(contender.swept))
                tell(f"{about}, {contender.label} ({place + 1} of {len(rivals)})")
                outcome = train(contender, config, folder / _folder_name(place, contender.label))
                if isinstance(outcome.error, InputError) and first and not contender.arranges:
                    raise outcome.error
                first = False
                yield outcome
                control = _control(contender, config, outcome)
                if control is not None:
                    tell(f"{about}, {control.label}")
                    dropped_at_random = train(control, control.config, folder / _folder_name(place, CONTROL))
                    yield replace(dropped_at_random, beside=contender.label)


def _groups(contenders: Sequence[Contender]) -> list[tuple[str, list[Contender]]]:
    """The contenders of each combination of values, with words for it: `, batch_size=256 (1 of 3)`."""
    groups = [list(members) for _, members in groupby(contenders, key=lambda one: one.swept)]
    swept = [members[0].swept for members in groups]
    words = [f", {title(one)} ({place} of {len(swept)})" if one else "" for place, one in enumerate(swept, start=1)]
    return list(zip(words, groups, strict=True))


def _control(contender: Contender, config: TrainConfig, outcome: Outcome) -> Contender | None:
    """The run that drops as many inputs at random, if this one dropped any by a rule."""
    share = outcome.summary.get("skipped_input_share")
    if not share or load_policy_class(config.policy) is load_policy_class(CONTROL):
        return None
    skip = None if config.skip is None else config.skip.model_copy(update={"rule": None})  # it drops inputs itself
    changed = {"policy": CONTROL, "policy_options": {"share": share, "seed": config.seed}, "skip": skip}
    return Contender(f"{CONTROL} beside {contender.label}", config.model_copy(update=changed), contender.swept)


def with_seed(config: TrainConfig, number: int) -> TrainConfig:
    """The settings for seed `number` of a comparison: seeds of weights and data moved on by `number`."""
    options = dict(config.data_options)
    if config.data == "synthetic":
        synthetic = dict(options.get("synthetic", {}))
        options["synthetic"] = {**synthetic, "seed": synthetic.get("seed", 0) + number}
    else:
        options["seed"] = options.get("seed", 0) + number
    return config.model_copy(update={"seed": config.seed + number, "data_options": options})


def claim(out: str | None, *, overwrite: bool = False, auto_resume: bool = False) -> Path:
    """The directory of a comparison, made if it is not there: `out`, or `runs/<date>-compare`.

    Raises:
        OutputError: if it is not empty (unless it holds a comparison and `overwrite` or `auto_resume` is set), or
            cannot be made.
    """
    path = Path(out) if out is not None else Path("runs") / f"{datetime.now():%Y-%m-%d-%H%M%S}-compare"
    try:
        path.mkdir(parents=True, exist_ok=True)
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise OutputError(f"output directory {path} cannot be used: {error}") from error
    if names and not (overwrite or auto_resume):
        raise OutputError(
            f"output directory {path} is not empty; choose another with --out, keep what is there with --auto-resume, "
            "or replace it with --overwrite"
        )
    others = [name for name in names if not _OURS.fullmatch(name)]
    if others:
        raise OutputError(
            f"output directory {path} holds {', '.join(others[:5])}, which no comparison writes; "
            "move it away or choose another directory with --out"
        )
    return path


def write_record(directory: Path, result: Comparison) -> None:
    """Keep the result beside the runs."""
    try:
        write_atomic(directory / RECORD, json.dumps(asdict(result), indent=1).encode() + b"\n")
    except OSError as error:
        raise OutputError(f"{directory / RECORD} could not be written: {error}") from error


def _find_or_train(
    earlier: FinishedRuns | None,
    tell: Told,
    contender: Contender,
    config: TrainConfig,
    path: Path,
    *,
    overwrite: bool,
    stream: TextIO | None,
) -> Outcome:
    if earlier is not None:
        if (finished := earlier.find(config)) is not None:
            where, summary = finished
            tell(f"kept: {where}")
            return _finished(contender, config, where, summary)
        path = _free_folder(path, earlier)
    return _train(contender, config, path, overwrite=overwrite, stream=stream)


def _free_folder(path: Path, earlier: FinishedRuns) -> Path:
    """The folder of a run that is trained: not that of another one, which had this place in the list before."""
    numbered = (path if number == 1 else path.with_name(f"{path.name}.{number}") for number in count(1))
    return next(folder for folder in numbered if not earlier.holds(folder))


def _finished(contender: Contender, config: TrainConfig, path: Path, summary: dict[str, Any]) -> Outcome:
    return Outcome(
        contender.label,
        config.seed,
        str(path),
        arranges=contender.arranges,
        summary=summary,
        bits=_bits(path, summary),
        swept=contender.swept,
        scores=read_scores(path) if summary.get("auc_of") == "evaluation" else None,
    )


def _train(contender: Contender, config: TrainConfig, path: Path, *, overwrite: bool, stream: TextIO | None) -> Outcome:
    others = OtherWork()
    try:
        own = config.model_copy(update={"out": str(path)})
        summary: dict[str, Any] = {**train_run(own, overwrite=overwrite, stream=stream, keep_scores=True)}
    except Exception as error:  # whatever stops one run, the others are still worth having
        traceback.clear_frames(error.__traceback__)  # its tables are not to stay in memory
        return Outcome(contender.label, config.seed, str(path), error=error, swept=contender.swept)
    summary.pop("table", None)
    return replace(_finished(contender, config, path, summary), others_cpu_share=others.share())


def _bits(path: Path, summary: dict[str, Any]) -> str:
    """A digest of the trained weights and row state, where they were saved, and of the quality."""
    facts: dict[str, Any] = {name: summary.get(name) for name in ("steps", "samples", "auc", "log_loss")}
    file = path / "weights" / MANIFEST
    if os.path.lexists(file):  # save=false: the evaluation has seen every weight that matters to it
        manifest = parse_json(read_plain(file), str(file))
        facts |= {entry["name"]: entry["sha256"] for entry in manifest["arrays"] if entry["group"] == "dense"}
        shards = enumerate(manifest["shards"])
        rows = {
            f"{number}/{entry['name']}": [entry["dtype"], entry["shape"], entry["pieces"]]
            for number, shard in shards
            for entry in shard
            if _TRAINED.fullmatch(entry["name"])
        }
        assert rows, f"{file}: no rows to compare"
        facts |= rows
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _folder_name(place: int, label: str) -> str:
    """`0-lru`: the place keeps policies apart whose names differ in signs only."""
    return f"{place}-" + (re.sub(r"[^A-Za-z0-9_.=-]+", "-", label.rpartition("/")[2]).strip("-") or "policy")
