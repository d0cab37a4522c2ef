"""What stops a run: numbers that are not finite, exceptions, signals. Nothing is left behind on any path."""

import io
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.toy import ToyData, toy_config
from support.toy_runs import Hooked, assert_equal, data_fixture, everything, in_model, nothing_is_left_behind, parts_of  # noqa: F401 (fixtures)
from torch import Tensor

from adaptive.batch import Batch
from adaptive.embeddings.planned_batch import Planned
from adaptive.errors import InputError, NonFiniteError, PolicyError
from adaptive.policy import Policy, RowStats
from adaptive.storage.checkpoint import load_checkpoint
from adaptive.storage.run_directory import read_record
from adaptive.training.components import Components
from adaptive.training.runs import evaluate_run, train_run
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import EvalRecord, IntervalRecord
from adaptive.training.trainer import Trainer

# -- numbers that are not finite ----------------------------------------------------------------------------------


def assert_stops(parts: Components, toy: ToyData, message: str, *, good_steps: int) -> None:
    """Training stops with the message; all weights and states are as after the good steps."""
    trainer = Trainer(parts.embeddings, parts.model, parts.optimizer)
    after_good: dict[str, NDArray[Any]] = {}

    def look(planned: Planned) -> None:
        if planned.number == good_steps:
            after_good.update(everything(parts))
        Trainer.step(trainer, planned)

    trainer.step = look  # type: ignore[method-assign]
    with parts.embeddings:
        with pytest.raises(NonFiniteError, match=message) as caught:
            trainer.train(toy.train(32), depth=2)
        assert_equal(everything(parts), after_good)
    assert trainer.recorder.steps == good_steps
    assert "nothing was updated" in str(caught.value) and caught.value.exit_code == 8


@pytest.mark.parametrize("policy", ["lru", "hybrid"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_bad_data_stop_before_anything_changes(value: float, policy: str) -> None:
    parts, _ = parts_of(policy=policy)
    toy = ToyData(spoil={32 * 3 + 7: value})
    message = (
        r"step 4: the loss is nan; not finite: dense input 0; 1 of 32 predictions are not finite, at b\.tsv:4; "
        r"the batch is 32 samples from a\.tsv:97 to b\.tsv:28"
    )
    assert_stops(parts, toy, message, good_steps=3)


@pytest.mark.parametrize(("name", "value"), [("bottom.0.weight", float("nan")), ("top.2.bias", float("inf"))])
def test_bad_dense_weights_are_named(name: str, value: float) -> None:
    parts, toy = parts_of()
    with torch.no_grad():
        parts.model.get_parameter(name).view(-1)[0] = value
    message = rf"step 1: the loss is (nan|inf); not finite: weight {name}; 32 of 32 predictions .* and 27 more;"
    assert_stops(parts, toy, message, good_steps=0)


def test_bad_rows_are_named() -> None:
    parts, toy = parts_of()
    with parts.embeddings as embeddings:
        Trainer(embeddings, parts.model, parts.optimizer).train(islice(toy.train(32), 2))
        embeddings.rows.load_table("site", np.full_like(embeddings.rows.table_weights("site"), np.nan))
        with pytest.raises(NonFiniteError, match="step 1: the loss is nan; not finite: embedding vector of feature 0"):
            Trainer(embeddings, parts.model, parts.optimizer).train(toy.train(32))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["bottom.0.weight", "top.2.bias"])
def test_bad_dense_gradients_stop_before_anything_changes(name: str, value: float) -> None:
    parts, toy = parts_of()
    calls = []

    def spoil(gradient: Tensor) -> Tensor:
        calls.append(1)
        return gradient * value if len(calls) == 3 else gradient

    parts.model.get_parameter(name).register_hook(spoil)  # type: ignore[no-untyped-call]
    message = rf"step 3: the gradient of weight {name} is not finite; the batch is 32 samples from a\.tsv:65 to"
    assert_stops(parts, toy, message, good_steps=2)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bad_row_gradients_stop_before_anything_changes(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    def spoil(model: Hooked, dense: Tensor, pooled: Tensor) -> None:
        if pooled.requires_grad and model.calls == 3:
            scale = torch.ones_like(pooled)
            scale[5, 1, 2] = value
            hook = lambda gradient: torch.where(torch.isfinite(scale), gradient, scale)  # noqa: E731
            pooled.register_hook(hook)  # type: ignore[no-untyped-call]

    in_model(monkeypatch, spoil)
    parts, toy = parts_of()
    message = r"step 3: the gradient of embedding vectors of feature user is not finite; .* 32 samples from a\.tsv:65"
    assert_stops(parts, toy, message, good_steps=2)


def test_a_non_finite_run_is_recorded(tmp_path: Path, data: Any) -> None:
    data(spoil={200: float("nan")})
    with pytest.raises(NonFiniteError, match=r"step 7: .* at b\.tsv:101"):
        train_run(toy_config(out=str(tmp_path)))
    record = read_record(tmp_path)
    assert record["status"] == "stopped" and record["error"].startswith("NonFiniteError: step 7")
    assert not (tmp_path / "weights").exists() and not (tmp_path / "lock").exists()


# -- runs that are cut short --------------------------------------------------------------------------------------


class Failing(Policy):
    """Its third `score` raises."""

    calls = 0

    def score(self, rows: RowStats) -> NDArray[Any]:
        self.calls += 1
        if self.calls == 3:
            raise RuntimeError("out of ideas")
        return rows.last_access


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("error", [RuntimeError("model bug"), KeyboardInterrupt(), SystemExit(5)])
def test_an_exception_in_the_model_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, depth: int
) -> None:
    def fail(model: Hooked, dense: Tensor, pooled: Tensor) -> None:
        if model.calls == 6:
            raise error

    in_model(monkeypatch, fail)
    with pytest.raises(type(error)) as caught:
        train_run(toy_config(out=str(tmp_path), depth=depth, tensorboard=True))
    assert caught.value is error
    assert not (tmp_path / "lock").exists() and not (tmp_path / "weights").exists()
    assert read_record(tmp_path)["error"].startswith(type(error).__name__)
    assert [r.step for r in read_metrics(tmp_path / "metrics.jsonl") if isinstance(r, IntervalRecord)] == [4]


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize(("policy", "message"), [("test_trainer_stops:Failing", "out of ideas"), ("lru", "truncated")])
def test_an_exception_in_policy_or_data_leaves_nothing_open(
    tmp_path: Path, data: Any, policy: str, message: str, depth: int
) -> None:
    toy = data()

    def broken(batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        for number, batch in enumerate(ToyData.train(toy, batch_size)):
            # Labels are read before the run begins.
            if policy == "lru" and number == 7 and (tmp_path / "run.json").exists():
                raise InputError("a.tsv:225: truncated")
            yield batch

    toy.train = broken
    with pytest.raises((PolicyError, InputError), match=message):
        train_run(toy_config(out=str(tmp_path), policy=policy, depth=depth, epochs=5))
    assert read_record(tmp_path)["status"] == "stopped" and not (tmp_path / "lock").exists()


def signal_in_step_6(number: int) -> Callable[[Hooked, Tensor, Tensor], None]:
    def interrupt(model: Hooked, dense: Tensor, pooled: Tensor) -> None:
        if model.calls == 6:
            os.kill(os.getpid(), number)

    return interrupt


@pytest.mark.usefixtures("data", "hangup_heard")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_run_after_planned_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    in_model(monkeypatch, signal_in_step_6(number))
    with pytest.raises(SystemExit) as caught:
        train_run(toy_config(out=str(tmp_path / "cut"), depth=3))
    assert caught.value.code == code
    assert read_record(tmp_path / "cut")["status"] == "stopped"
    in_model(monkeypatch, lambda model, dense, pooled: None)
    steps = load_checkpoint(tmp_path / "cut" / "weights").meta["steps"]
    assert 6 <= steps <= 6 + 3
    train_run(toy_config(out=str(tmp_path / "short"), depth=3, steps=steps))
    cut, short = load_checkpoint(tmp_path / "cut" / "weights"), load_checkpoint(tmp_path / "short" / "weights")
    for name in ("steps", "samples", "tables"):
        assert cut.meta[name] == short.meta[name]
    for name in cut.dense:
        assert torch.equal(cut.dense[name], short.dense[name])
    assert evaluate_run(tmp_path / "cut")["auc"] == evaluate_run(tmp_path / "short")["auc"]


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("save", "told"),
    [
        (True, "saved; resume with: adaptive-train run --resume '{path}'\n"),
        (False, "nothing was saved because save=false\n"),
    ],
)
def test_a_stopped_run_prints_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: bool, told: str
) -> None:
    in_model(monkeypatch, signal_in_step_6(signal.SIGTERM))
    stream, path = io.StringIO(), tmp_path / "my run"
    with pytest.raises(SystemExit):
        train_run(toy_config(out=str(path), save=save), stream=stream)
    shown = re.search(r"stopped after step (\d+): (.*\n)$", stream.getvalue())
    assert shown and 6 <= int(shown[1]) <= 6 + 4 and shown[2] == told.format(path=path)


@pytest.mark.usefixtures("data")
def test_a_signal_in_the_evaluation_saves_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(model: Hooked, dense: Tensor, pooled: Tensor) -> None:
        if not model.training:
            os.kill(os.getpid(), signal.SIGTERM)

    in_model(monkeypatch, interrupt)
    with pytest.raises(SystemExit) as caught:
        train_run(toy_config(out=str(tmp_path)))
    assert caught.value.code == 143
    assert load_checkpoint(tmp_path / "weights").meta["steps"] == 20
    assert not [r for r in read_metrics(tmp_path / "metrics.jsonl") if isinstance(r, EvalRecord)]


@pytest.mark.usefixtures("data")
def test_a_second_signal_ends_the_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupt(model: Hooked, dense: Tensor, pooled: Tensor) -> None:
        if model.calls == 6:
            signal.raise_signal(signal.SIGINT)  # handled before the next one, which os.kill does not promise
            signal.raise_signal(signal.SIGINT)

    in_model(monkeypatch, interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which jobs in a shell's background ignore
    try:
        with pytest.raises(KeyboardInterrupt):
            train_run(toy_config(out=str(tmp_path)))
    finally:
        signal.signal(signal.SIGINT, before)
    assert (
        "stopping after the planned steps; press Ctrl-C or send a second signal to stop at once\n"
        in capfd.readouterr().err
    )
    assert not (tmp_path / "weights").exists() and not (tmp_path / "lock").exists()


@pytest.mark.usefixtures("data")
def test_runs_work_outside_the_main_thread(tmp_path: Path) -> None:
    results: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: results.append(train_run(toy_config(out=str(tmp_path), steps=2))))
    thread.start()
    thread.join()
    assert results[0]["steps"] == 2
