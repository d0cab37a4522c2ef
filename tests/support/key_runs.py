"""Runs on data with keys that come and go, also in a process that kills itself in the middle of a sweep."""

import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adaptive import load_run
from adaptive.config import TrainConfig
from adaptive.embeddings.engine import between_batches
from adaptive.embeddings.engine.tiered_group import TieredGroup
from adaptive.embeddings.planning.books import Tracker
from adaptive.embeddings.planning.key_tables import KeyTable
from adaptive.storage.durable import Disk
from adaptive.training.runs import resume_run, train_run
from support.toy import SMALL_DLRM

SCHEMA = """
label = { column = "y" }
time = { column = "t" }
[[dense]]
columns = ["x"]
[[categorical]]
columns = ["user"]
keys = true
capacity = 60
admit = 2
expire = "200s"
[[categorical]]
columns = ["item"]
kind = "string"
keys = true
capacity = 20
"""


SETTINGS: dict[str, Any] = {
    "model_options": SMALL_DLRM,
    "log_every": 4,
    "tensorboard": False,
    "tier": {"device_rows": "100%", "device": "cpu"},
}


def write_day(path: Path, day: int, samples: int = 600) -> None:
    """Samples of one day: a second each, with users and items that come and go."""
    random = np.random.default_rng(day)
    with path.open("w") as file:
        file.write("y,t,x,user,item\n")
        for place in range(samples):
            now = day * samples + place
            user = (now // 20 + int(random.integers(0, 40)) ** 2 // 40) * 2**40 - 2**62
            item = f"item {now // 50 + random.integers(0, 20)}"
            file.write(f"{int(random.random() < 0.3 + user % 3 / 6)},{now},{random.random():.3f},{user},{item}\n")


def config(folder: Path, out: str, **changed: Any) -> TrainConfig:
    (folder / "schema.toml").write_text(SCHEMA)
    if not (folder / "day0.csv").exists():
        write_day(folder / "day0.csv", 0)
    given = {
        "data": f"csv:{folder / 'day0.csv'}",
        "data_options": {"schema_path": str(folder / "schema.toml"), "holdout": 0.2},
        "batch_size": 2,
        "eval_batch_size": 100,
        "out": str(folder / out),
    }
    return TrainConfig.model_validate(SETTINGS | given | changed)


def digest(run: Path) -> tuple[str, dict[str, int]]:
    """Digest of (key, weights, state) by key of all tables and of the dense part; number of keys by table."""
    total, sizes = hashlib.sha256(), {}
    with load_run(run) as loaded:
        for tiered in loaded.embeddings.runtime.pipeline.tiered_groups:
            assert tiered.keys is not None
            for table in tiered.keys.tables:
                rows = table.live_rows()
                rows = np.concatenate([[table.start], rows[np.argsort(tiered.keys.row_keys[rows])]])
                values = loaded.embeddings.runtime.pipeline.values(tiered, rows)
                for array in (tiered.keys.row_keys[rows[1:]], *values):
                    total.update(array.tobytes())
                sizes[table.config.name] = len(rows) - 1
        for value in loaded.model.state_dict().values():
            total.update(value.numpy().tobytes())
    return total.hexdigest(), sizes


def die(*arguments: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hook(owner: Any, name: str, before: Callable[..., None], after: Callable[..., None] = lambda *_: None) -> None:
    """Call `before` and `after` around a function, with its arguments."""
    function = getattr(owner, name)

    def hooked(*arguments: Any) -> Any:
        before(*arguments)
        result = function(*arguments)
        after(*arguments)
        return result

    setattr(owner, name, hooked)


STAGES = ("chosen", "waited", "discarded", "reset", "saved", "synced", "renamed")
"""Instants of a sweep: keys are gone from the index; training has caught up; slots are released, and host rows are not
reset; both are; and of the checkpoint that follows: keys are copied, half of the files are written, all are."""


def die_in_sweep(stage: str, number: int) -> None:
    """Kill this process in sweep `number`, from 1, that frees rows, or in the first checkpoint after it."""
    sweeps, due = list[int](), list[bool]()

    def sweep(table: KeyTable, batch: int, *_: object) -> None:
        if table.config.expire is not None and batch and batch % table.sweep_every == 0:
            sweeps.append(batch)
            due[:] = [True] * (len(sweeps) >= number)

    def die_if_due(*_: object) -> None:
        if due:
            die()

    hook(KeyTable, "sweep", sweep)
    if stage == "chosen":
        hook(between_batches, "_release", die_if_due)
    elif stage == "waited":
        hook(between_batches, "_commit", die_if_due)
    elif stage == "discarded":
        hook(Tracker, "forget_rows", die_if_due)
    elif stage == "reset":
        hook(TieredGroup, "commit", lambda *_: None, die_if_due)
    elif stage == "saved":
        hook(KeyTable, "state", lambda *_: None, die_if_due)
    elif stage == "synced":
        synced = list[bool]()
        hook(Disk, "sync", lambda *_: synced.extend(due), lambda *_: die() if len(synced) > 2 else None)
    else:
        hook(Disk, "rename", lambda *_: None, die_if_due)


def train_or_resume(out: str, settings: dict[str, Any], resume: bool) -> None:
    torch.set_num_threads(1)
    with open(f"{out}.log", "a") as stream:
        if resume:
            resume_run(out, stream=stream)
        else:
            train_run(TrainConfig.model_validate({**settings, "out": out}), stream=stream)


def train_and_die(out: str, settings: dict[str, Any], resume: bool, stage: str) -> None:
    """In a child of a nursery: train a run and die in its second sweep, or resume it and die in the next one.

    Without a stage, exit with code 0.
    """
    try:
        if stage:
            die_in_sweep(stage, 1 if resume else 2)
        train_or_resume(out, settings, resume)
        os._exit(0)
    except BaseException as error:
        Path(f"{out}.error").write_text(repr(error))
        raise
