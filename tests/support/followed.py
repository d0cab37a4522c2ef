"""Folders that runs follow: small files of keys that come and go by event time, renamed into place."""

from pathlib import Path
from typing import Any, Final

from adaptive.config import TrainConfig
from adaptive.training.runs import auto_resume_run
from support.forked import exit_as_command
from support.key_runs import SCHEMA, SETTINGS, write_day

DAY: Final = 80  # seconds, one for each sample that a file may have


def put(folder: Path, number: int, samples: int = 50) -> None:
    """Rename a file of so many samples and, if it is not empty, one bad line into place, perhaps over another."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f".d{number}.csv"
    write_day(new, number, DAY)
    lines = new.read_text().splitlines(keepends=True)[: samples + 1]
    new.write_text("".join([*lines, "no label,0,0,0,item\n" * (samples > 0)]))
    new.rename(folder / f"d{number}.csv")


def config(folder: Path, out: str, *, data: str, kind: str = "csv", **changed: Any) -> TrainConfig:
    """Settings of a run in `folder` that follows the folder `data` in it."""
    (folder / "schema.toml").write_text(SCHEMA.replace("200s", "60s"))
    given: dict[str, Any] = {
        "data": f"{kind}:{folder / data}",
        "data_options": {"schema_path": str(folder / "schema.toml"), "max_bad_fraction": 0.6},
        "follow": True,
        "until": "idle=1s",
        "save_every": 4,
        "batch_size": 8,
        "eval_batch_size": 20,
        "out": str(folder / out),
    }
    return TrainConfig.model_validate(SETTINGS | given | changed)


def follow(settings: dict[str, Any]) -> None:
    """Start or resume a run in this process."""
    auto_resume_run(TrainConfig.model_validate(settings))


def followed(settings: dict[str, Any], log: str) -> None:
    """In a child: the same, and exit as the command line does."""
    exit_as_command(lambda: follow(settings), log)
