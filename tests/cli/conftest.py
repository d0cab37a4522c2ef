"""Run a command line inside the test process, and fake a trainer that records its calls."""

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import pytest

from adaptive.cli.app import main
from adaptive.config import TrainConfig


@dataclass
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Run `adaptive-train` in an empty folder, without settings from the environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ADAPTIVE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer installs its own

    def run(*words: str) -> Result:
        with pytest.raises(SystemExit) as exit_:
            main(words)
        captured = capsys.readouterr()
        return Result(int(exit_.value.code or 0), captured.out, captured.err)

    return run


@dataclass
class FakeTrainer:
    """Record calls; each raises `error` if it is set."""

    calls: list[tuple[str, Any]] = field(default_factory=list)
    error: BaseException | None = None

    def train_run(self, config: TrainConfig, *, stream: TextIO, overwrite: bool = False, **more: Any) -> dict[str, Any]:
        print("training", file=stream)
        return self._answer("train", config, overwrite=overwrite)

    def resume_run(self, run_dir: Path, *, stream: TextIO, peers: Any, **lengths: Any) -> dict[str, Any]:
        print("resuming", file=stream)
        return self._answer("resume", (run_dir, lengths))

    def auto_resume_run(self, config: TrainConfig, *, stream: TextIO, **more: Any) -> dict[str, Any]:
        print("going on", file=stream)
        return self._answer("go on", config)

    def plan_run(self, config: TrainConfig) -> dict[str, Any]:
        return self._answer("plan", config)

    def evaluate_run(self, run_dir: Path, *, stream: TextIO, **reading: Any) -> dict[str, Any]:
        print("evaluating", file=stream)
        return self._answer("eval", (run_dir, reading))

    def _answer(self, call: str, about: Any, **more: Any) -> dict[str, Any]:
        self.calls.append((call, about))
        if self.error:
            raise self.error
        return {"schema": 1, "auc": 0.75, "log_loss": float("nan"), "table": "AUC 0.75", **more}


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> FakeTrainer:
    """Replace `adaptive.training.runs` by a fake."""
    fake = FakeTrainer()
    module: Any = ModuleType("adaptive.training.runs")
    for name in ("train_run", "resume_run", "auto_resume_run", "plan_run", "evaluate_run"):
        setattr(module, name, getattr(fake, name))
    monkeypatch.setitem(sys.modules, "adaptive.training.runs", module)
    distributed: Any = ModuleType("adaptive.training.runs.distributed")
    distributed.launched_peers = lambda config: nullcontext()
    monkeypatch.setitem(sys.modules, "adaptive.training.runs.distributed", distributed)
    return fake
