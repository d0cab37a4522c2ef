"""`auto_resume_run`: one command for the first start of a run and every later one, for schedulers and launchers.

no run in the directory, or one without a checkpoint     it begins
one with a checkpoint                                    it is resumed, on as many ranks as there are now
one that is finished                                     nothing is done
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from adaptive.config import TrainConfig
from adaptive.embeddings.ranks import Ranks
from adaptive.errors import ConfigError
from adaptive.storage.run_directory import RECORD, newest_first, read_record
from adaptive.training.runs.distributed import telling
from adaptive.training.runs.next_commands import code_of
from adaptive.training.runs.record import config_of
from adaptive.training.runs.resuming import resume_run
from adaptive.training.runs.training import train_run

BEGIN, RESUME, DONE = "begin", "resume", "done"
LENGTHS: Final = ("steps", "epochs")


def auto_resume_run(
    config: TrainConfig,
    *,
    force_unlock: bool = False,
    stream: TextIO | None = None,
    ranks: Ranks | None = None,
) -> dict[str, Any]:
    """Begin the run in `config.out`, or go on with it; returns what `train_run` returns.

    Args:
        config: of the run. One that is there must have the same settings, but may become longer. Code that it names
            is named by the caller, so it is run.
        force_unlock, stream, ranks: as in `resume_run`. Rank 0 looks what there is, and tells the others.

    Raises:
        ConfigError: if there is a run with other settings.
        AdaptiveError: as `train_run` and `resume_run`.
    """
    assert config.out is not None
    path = Path(config.out)
    with telling(ranks):
        found = what_to_do(path, config) if ranks is None or ranks.is_first else None
        if ranks is not None:
            found = ranks.gather_facts(found)[0]
    if found == DONE:
        return _finished(path, stream)
    if found == RESUME:
        lengths = {name: getattr(config, name) for name in LENGTHS}
        code = {key: spec for key, spec in code_of(config).items() if spec is not None}
        return resume_run(path, **lengths, code=code, force_unlock=force_unlock, stream=stream, ranks=ranks)
    what = "holds a run without a checkpoint, which begins anew" if (path / RECORD).exists() else "holds no run yet"
    _tell(stream, f"--auto-resume: {path} {what}")
    return train_run(config, overwrite=True, force_unlock=force_unlock, stream=stream, ranks=ranks)


def what_to_do(path: Path, config: TrainConfig) -> str:
    """`BEGIN`, `RESUME` or `DONE`.

    Raises:
        ConfigError: as `auto_resume_run`.
        CheckpointError: if `run.json` cannot be read.
    """
    if not (path / RECORD).exists():
        return BEGIN
    record = read_record(path)
    of_run = config_of(record, path)
    _check_same(of_run, config, path)
    longer = any((new := getattr(config, name)) is not None and new != getattr(of_run, name) for name in LENGTHS)
    if record.get("status") == "finished" and not longer:
        return DONE
    return RESUME if any(one.exists() for one in newest_first(path)) else BEGIN


def _check_same(of_run: TrainConfig, given: TrainConfig, path: Path) -> None:
    """Check that the run there is the one that is meant."""
    here, there = (_flat(one.model_dump(mode="json")) for one in (given, of_run))
    for key in {**there, **here}:
        lengthened = key in LENGTHS and here.get(key) is not None
        if key != "out" and not lengthened and here.get(key) != there.get(key):
            raise ConfigError(
                f"--auto-resume: the run in {path} has {key}={there.get(key)!r}, given is {here.get(key)!r}; "
                "resume with the run's own settings, or choose another --out"
            )


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def _finished(path: Path, stream: TextIO | None) -> dict[str, Any]:
    summary = dict(read_record(path).get("summary") or {})
    text = f"--auto-resume: the run in {path} is finished after {summary.get('steps')} steps; nothing is left to do"
    _tell(stream, text)
    return {**summary, "table": f"{text}\nsee it with: adaptive-train report {path}"}


def _tell(stream: TextIO | None, text: str) -> None:
    with contextlib.suppress(OSError):
        if stream is not None:
            stream.write(text + "\n")
