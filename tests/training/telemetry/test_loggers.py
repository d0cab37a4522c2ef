"""Loggers are found by entry point, get a run's numbers, never stop training; W&B's and MLflow's by fake packages."""

import logging
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from support.toy import toy_config
from support.toy_runs import data_fixture, nothing_is_left_behind  # noqa: F401 (fixtures)

from adaptive.errors import ConfigError
from adaptive.training.runs import train_run
from adaptive.training.telemetry import loggers
from adaptive.training.telemetry.loggers import LoggerSink, flat, make_loggers
from adaptive.training.telemetry.record import EvalRecord, IntervalRecord, RunRecord, TableCounts

INTERVAL = IntervalRecord(
    step=20, samples=640, loss=0.5, auc=None, log_loss=0.6, samples_per_s=10.0, time_ms={"wait": 1.5}, hit_rate=0.75,
    row_hit_rate=0.5, tables={"a": TableCounts(lookups=100, lookup_hits=75, promoted=40)}, policy={"kept": 3.0},
)  # fmt: skip


class Kept:
    """A logger that keeps what it is given."""

    made: ClassVar[list["Kept"]] = []

    def __init__(self, directory: Path, config: Any) -> None:
        self.directory, self.config, self.closed = directory, config, 0
        self.found: list[tuple[int, dict[str, float]]] = []
        Kept.made.append(self)

    def numbers(self, values: Any, step: int) -> None:
        self.found.append((step, dict(values)))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loggers of pyproject.toml, and some more."""
    values = {"wandb": f"{loggers.__name__}:WandbLogger", "mlflow": f"{loggers.__name__}:MlflowLogger",
              "kept": f"{__name__}:Kept", "gone": "no.such.package:Logger"}  # fmt: skip
    found = EntryPoints(EntryPoint(name, value, loggers.GROUP) for name, value in values.items())
    monkeypatch.setattr(loggers, "entry_points", lambda group: found.select(group=group))
    monkeypatch.setattr(Kept, "made", [])
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Kept.__module__])


def test_numbers_have_tensorboard_tags() -> None:
    kept = Kept(Path(), {})
    sink = LoggerSink("kept", kept)
    sink.write(RunRecord(policy="lru", table_rows={"a": 10}))
    sink.write(INTERVAL)
    sink.write(EvalRecord(step=20, samples=9, auc=0.7, log_loss=None))
    sink.close()
    (step, numbers), evaluated = kept.found
    assert step == 20 and evaluated == (20, {"2_evaluation/auc": 0.7})
    wanted = {"1_training/loss": 0.5, "3_tiers/hit_rate": 0.75, "3_tiers/promoted_rows_per_step": 2.0,
              "5_time/wait_ms": 1.5, "6_policy/kept": 3.0}  # fmt: skip
    assert wanted.items() <= numbers.items() and "1_training/auc_so_far" not in numbers
    assert kept.closed == 1


def test_a_run_logs_where_it_is_asked_to(tmp_path: Path, data: Any) -> None:
    train_run(toy_config(out=str(tmp_path / "quiet"), steps=4, log_every=2))
    assert not Kept.made
    train_run(toy_config(out=str(tmp_path / "run"), steps=4, log_every=2, log_to="kept"))
    (kept,) = Kept.made
    assert [step for step, numbers in kept.found if "1_training/loss" in numbers] == [2, 4]
    assert kept.directory == tmp_path / "run" and kept.config["log_every"] == 2 and kept.closed == 1


def test_a_logger_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    def numbers(values: Any, step: int) -> None:
        calls.append(step)
        raise OSError("no route to host")

    sink = LoggerSink("far", SimpleNamespace(numbers=numbers, close=lambda: calls.append(-1)))  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            sink.write(INTERVAL)
        sink.close()
    assert calls == [20, 20, 20]
    assert [record.getMessage() for record in caplog.records][-1] == (
        "logger far failed: OSError: no route to host; it is not called any more"
    )


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("nothing", r"expected installed loggers \(gone, kept, mlflow, wandb\), got .nothing. \(log_to\)"),
        ("kept,gone", "logger 'gone' .no.such.package:Logger. cannot be loaded"),
        ("wandb", "log_to: wandb requires wandb. Run pip install wandb"),
        ("mlflow", "log_to: mlflow requires mlflow. Run pip install mlflow"),
    ],
)
def test_what_is_missing_is_told(names: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=message):
        train_run(toy_config(out=str(tmp_path / "run"), log_to=names))
    assert not (tmp_path / "run").exists()


def test_one_that_cannot_be_started_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As mlflow-skinny, which has no database."""

    def refuses(self: Kept, directory: Path, config: Any) -> None:
        raise RuntimeError("unsupported sqlite")

    monkeypatch.setattr(Kept, "__init__", refuses)
    with pytest.raises(ConfigError, match=r"kept cannot start: RuntimeError: unsupported sqlite\. Fix the cause"):
        make_loggers("kept", tmp_path, {})
    assert make_loggers(None, Path(), {}) == [] and make_loggers(" ", Path(), {}) == []


def test_wandb_is_offline_in_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    run = SimpleNamespace(log=lambda values, step: calls.append((step, values)), finish=lambda: calls.append("finish"))
    fake = ModuleType("wandb")
    fake.init = lambda **words: calls.append(words) or run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    (sink,) = make_loggers("wandb", tmp_path, {"tier": {"device_rows": "5%"}, "steps": 3, "out": None})
    sink.write(EvalRecord(step=7, samples=9, auc=0.5, log_loss=None))
    sink.close()
    begun, logged, ended = calls
    assert begun["mode"] == "offline" and begun["dir"] == str(tmp_path)
    assert begun["config"] == {"tier.device_rows": "5%", "steps": "3"}
    assert logged == (7, {"2_evaluation/auc": 0.5}) and ended == "finish"


def test_mlflow_is_a_file_of_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Client:
        def __init__(self, tracking_uri: str) -> None:
            calls.append(tracking_uri)

        def get_experiment_by_name(self, name: str) -> None:
            return None

        def create_experiment(self, name: str) -> str:
            return f"number of {name}"

        def create_run(self, experiment: str, run_name: str) -> Any:
            calls.append((experiment, run_name))
            return SimpleNamespace(info=SimpleNamespace(run_id="R"))

        def log_batch(self, run: str, metrics: Any = (), params: Any = ()) -> None:
            calls.append((run, list(metrics), list(params)))

        def set_terminated(self, run: str) -> None:
            calls.append((run, "over"))

    fake, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    fake.MlflowClient = Client  # type: ignore[attr-defined]
    entities.Metric = lambda name, value, now, step: (name, value, step)  # type: ignore[attr-defined]
    entities.Param = lambda name, text: (name, text)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (sink,) = make_loggers("mlflow", tmp_path, {"steps": 3})
    sink.write(EvalRecord(step=7, samples=9, auc=0.5, log_loss=None))
    sink.close()
    assert calls == [
        f"sqlite:///{tmp_path}/mlflow.db",
        ("number of adaptive-train", tmp_path.name),
        ("R", [], [("steps", "3")]),
        ("R", [("2_evaluation/auc", 0.5, 7)], []),
        ("R", "over"),
    ]


def test_settings_by_their_whole_names() -> None:
    assert flat({"a": {"b": {"c": 1}, "d": [1, 2]}, "e": None, "f": True, "g": "x"}) == {
        "a.b.c": "1", "a.d": "[1, 2]", "f": "true", "g": "x"}  # fmt: skip
