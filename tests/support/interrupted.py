"""Runs on the toy data that are killed or stopped and gone on with, and the numbers that must then be equal."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from adaptive.config import TrainConfig
from adaptive.embeddings.planning import skipping
from adaptive.policies.rules import defer
from adaptive.storage.checkpoint import load_checkpoint
from adaptive.storage.durable import Disk
from adaptive.training.runs import resume_run, train_run
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import EvalRecord
from support.example_policies import S3FIFO, SIEVE
from support.toy import ToyData, toy_config
from support.toy_runs import Hooked, in_model, open_toy_data

Numbers = dict[str, NDArray[Any]]
How = Literal["kill", "stop"]

SKIP = {"interval": 4, "min_accesses": 2, "hot_rows": "100%", "feedback_delay": 4}
RULES = {
    "defer": "defer+warmup=2",
    "predicted": "predicted+factor=1+warmup=4",
    "in turn": "predicted+factor=1+warmup=4",  # in the training thread, which also plans
}
"""Skip rules next to `lfu`."""
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "lru": ("lru", {}),
    "hybrid": ("hybrid", {}),
    "static": ("static", {}),
    "scratchpipe": ("scratchpipe", {"window": 3}),
    "hotline": ("hotline", {"learn": 4}),
    "slipstream": ("slipstream", {}),
    "random_drop": ("random_drop", {"share": 0.2}),
    "fae": ("fae", {"block": 4, "held_back": 8}),
    **dict.fromkeys(RULES, ("lfu", {})),
}
ALIKE = ("lru", "hybrid", "static", "scratchpipe", "hotline")
"""What these train does not depend on where a look-ahead ends."""


class Killed(BaseException):
    """Nothing of the run's own code is done after it, but for letting go."""


def config_of(policy: str, *, device: str = "auto", **changed: Any) -> TrainConfig:
    name, options = POLICIES[policy]
    tier = {"device_rows": "auto" if name == "hybrid" else "60%", "device": device}
    if policy == "in turn":
        tier |= {"plan_threads": 0, "device": "cpu"}
    skip = {**SKIP, "rule": RULES.get(policy)}
    given: dict[str, Any] = {"policy": name, "policy_options": options, "skip": skip, "tier": tier}
    return toy_config(**given | changed)


@contextmanager
def small_world(num_train: int = 640) -> Iterator[pytest.MonkeyPatch]:
    """Inside, runs use the toy data, and a disk that does not wait until all is stored."""
    with pytest.MonkeyPatch.context() as patch:
        open_toy_data(patch, ToyData(num_train))
        for module in (skipping, defer):  # toy rows are far from saturation
            patch.setattr(module, "SATURATED", np.float32(0.5))
        patch.setattr(Disk, "sync", lambda self, file: file.flush())
        patch.setattr(Disk, "sync_directory", lambda self, path: None)
        yield patch


@contextmanager
def interrupted(patch: pytest.MonkeyPatch, how: How, at: int) -> Iterator[None]:
    """What is run inside is killed, or stopped by a signal, in its forward pass number `at`, if there is one."""

    done: list[int] = []

    def interrupt(model: Hooked, dense: Tensor, pooled: Tensor) -> None:
        if model.training and model.calls == at and not done:
            done.append(at)
            if how == "kill":
                raise Killed
            os.kill(os.getpid(), signal.SIGTERM)

    in_model(patch, interrupt)
    try:
        yield
    except (Killed, SystemExit):
        pass
    finally:
        in_model(patch, lambda model, dense, pooled: None)


def numbers(out: Path, *, placement: bool = True) -> Numbers:
    """All that a finished run has trained and counted. `placement`: also that from which only placement follows."""
    saved, summary = load_checkpoint(out / "weights"), json.loads((out / "run.json").read_text())["summary"]
    found: Numbers = {f"rows {name}": value for name, value in saved.rows.items()}
    found |= {f"dense {name}": value.numpy() for name, value in saved.dense.items()}
    found |= {f"optimizer {name}": value for name, value in saved.optimizer.items()}
    found |= {f"run {name}": value for name, value in saved.run.items()}
    evaluations = [r for r in read_metrics(out / "metrics.jsonl") if isinstance(r, EvalRecord)]
    found["evaluations"] = np.array([(r.step, r.samples, r.auc, r.log_loss) for r in evaluations])
    names = ("steps", "samples", "auc", "log_loss", "calibration", "skipped_update_share", "deferred_update_share",
             "skipped_lookup_share", "skipped_input_share")  # fmt: skip
    found["summary"] = np.array([summary[name] for name in names])
    if not placement:
        left_out = ("accesses", "last_access", "next_batch")
        return {name: value for name, value in found.items() if not name.endswith(left_out)}
    policy = {SIEVE: {}, S3FIFO: {}}.get(summary["policy"], saved.policy)  # their queues follow what is resident
    return found | {f"policy {name}": value for name, value in policy.items()}


def assert_equal(found: Numbers, expected: Numbers) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, strict=True, err_msg=name)


def run(out: Path, config: TrainConfig) -> None:
    train_run(config.model_copy(update={"out": str(out)}))


__all__ = [
    "ALIKE", "POLICIES", "SKIP", "How", "Killed", "Numbers", "assert_equal", "config_of", "interrupted", "numbers",
    "resume_run", "run", "small_world",
]  # fmt: skip
