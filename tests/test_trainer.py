"""Runs from start to end: what is written, what stops them, and that nothing is left behind on any path."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from test_evaluation import assert_equal, state
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from toy import ToyData, toy_config

import adaptive.build
import adaptive.trainer
from adaptive.build import Parts, build
from adaptive.checkpoint import load_checkpoint
from adaptive.errors import AdaptiveError, CheckpointError, InputError, NonFiniteError, OutputError, PolicyError
from adaptive.models.dlrm import DLRM
from adaptive.policy import Policy, RowStats
from adaptive.rundir import read_record
from adaptive.telemetry.jsonl import read_metrics
from adaptive.telemetry.record import EvalRecord, IntervalRecord
from adaptive.trainer import Trainer, evaluate_run, plan_run, train_run

KEYS = {
    "schema", "policy", "steps", "samples", "samples_per_s", "auc", "log_loss", "hit_rate", "fetched_rows",
    "written_back_rows", "bytes_h2d", "bytes_d2h", "skipped_update_share", "time_ms", "run_dir", "eval_samples",
    "device_rows", "seed", "auc_of",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    threads = set(threading.enumerate())
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    assert set(threading.enumerate()) == threads
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ToyData]:
    """`data(...)` makes the toy data set what every run opens."""

    def use(*arguments: Any, **options: Any) -> ToyData:
        toy = ToyData(*arguments, **options)
        monkeypatch.setattr(adaptive.trainer, "open_data", lambda config, run_directory=None: toy)
        return toy

    use()
    return use


def in_model(monkeypatch: pytest.MonkeyPatch, action: Callable[["Hooked", Tensor, Tensor], None]) -> None:
    """Runs use a DLRM that calls `action(model, dense, pooled)` before each forward pass."""

    class Model(Hooked):
        def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
            if self.training:
                self.calls += 1
            action(self, dense, pooled)
            return super().forward(dense, pooled)

    monkeypatch.setattr(adaptive.build, "DLRM", Model)


class Hooked(DLRM):
    calls = 0  # in training mode


# -- what a run is ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("data")
def test_a_run_is_written_down(tmp_path: Path) -> None:
    stream = StringIO()
    summary = train_run(toy_config(out=str(tmp_path / "run"), tensorboard=True), stream=stream)
    table = summary.pop("table")
    assert summary.keys() >= KEYS
    assert (summary["steps"], summary["samples"], summary["eval_samples"]) == (20, 640, 256)
    assert summary["auc_of"] == "evaluation" and 0.6 < summary["auc"] < 1
    assert summary["time_ms"].keys() >= {"read", "plan", "wait", "forward", "backward", "update", "other"}
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert "policy lru: 20 steps, 640 samples" in table
    record = read_record(tmp_path / "run")
    assert record["status"] == "finished" and record["summary"] == summary
    assert record["config"]["batch_size"] == 32 and record["data"]["name"] == "toy" and record["device"] == "cpu"
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "metrics.jsonl", "run.json", "tensorboard", "weights",
    ]  # fmt: skip
    assert "step 20/20" in stream.getvalue() and "evaluation after step 20" in stream.getvalue()


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(("log_every", "expected"), [(1, list(range(1, 21))), (7, [7, 14, 20]), (50, [20])])
def test_intervals_add_up_to_the_run(tmp_path: Path, log_every: int, expected: list[int]) -> None:
    summary = train_run(toy_config(out=str(tmp_path), log_every=log_every, depth=3))
    intervals = [r for r in read_metrics(tmp_path / "metrics.jsonl") if isinstance(r, IntervalRecord)]
    assert [record.step for record in intervals] == expected
    for before, record in zip([0, *expected], intervals, strict=False):
        assert [counts.lookups for counts in record.tables.values()] == 3 * [32 * (record.step - before)]
    assert summary["fetched_rows"] == sum(c.fetched for r in intervals for c in r.tables.values())
    own = ("wait", "forward", "backward", "update", "other")
    step_ms = sum(intervals[-1].time_ms[stage] for stage in own)
    assert step_ms == pytest.approx(1000 * 32 / intervals[-1].samples_per_s)


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("changed", "steps", "evaluated_after"),
    [
        ({"steps": 5}, 5, [5]),
        ({"epochs": 3}, 60, [20, 40, 60]),
        ({"epochs": 3, "steps": 25}, 25, [20, 25]),
        ({"epochs": 2, "steps": 20}, 20, [20]),
        ({"batch_size": 100}, 7, [7]),
    ],
)
def test_steps_and_epochs(tmp_path: Path, changed: dict[str, Any], steps: int, evaluated_after: list[int]) -> None:
    config = toy_config(out=str(tmp_path / "run"), **changed)
    assert plan_run(config)["steps"] == steps
    assert train_run(config)["steps"] == steps
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [r.step for r in records if isinstance(r, EvalRecord)][-len(evaluated_after) :] == evaluated_after


def test_without_evaluation_data_the_quality_is_that_of_training(tmp_path: Path, data: Any) -> None:
    data(num_eval=0)
    summary = train_run(toy_config(out=str(tmp_path)))
    assert summary["auc_of"] == "training" and summary["eval_samples"] == 0
    assert 0.5 < summary["auc"] < 1 and summary["log_loss"] > 0
    with pytest.raises(InputError, match="no evaluation part"):
        evaluate_run(tmp_path)


def test_without_training_data_a_run_is_an_error(tmp_path: Path, data: Any) -> None:
    data(num_train=0)
    with pytest.raises(InputError, match="no training samples"):
        train_run(toy_config(out=str(tmp_path)))


@pytest.mark.usefixtures("data")
def test_default_directory_and_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    summary = train_run(toy_config(steps=1, save=False))
    path = Path(summary["run_dir"])
    assert path.parent == Path("runs") and path.name.endswith("-lru") and not (path / "weights").exists()
    with pytest.raises(OutputError, match="is not empty"):
        train_run(toy_config(steps=1, out=str(path)))
    assert train_run(toy_config(steps=2, out=str(path)), overwrite=True)["steps"] == 2


@pytest.mark.usefixtures("data")
def test_plan_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_run(toy_config(tier={"device_rows": "60%", "host": f"mmap:{tmp_path / 'rows'}"}))
    assert list(tmp_path.iterdir()) == []
    assert plan["rows"] == 347 and plan["device_rows"] == 209 and plan["tables"] == 3
    assert (plan["samples"], plan["steps"]) == (640, 20)
    assert plan["memory_bytes"]["host_weights"] == 347 * 4 * 4
    json.dumps(plan)


@pytest.mark.usefixtures("data")
def test_torch_settings_are_given_back(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    train_run(toy_config(steps=1, out=str(tmp_path), deterministic=True))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.are_deterministic_algorithms_enabled()


# -- the numbers --------------------------------------------------------------------------------------------------


def trained(depth: int = 2, **changed: Any) -> dict[str, NDArray[Any]]:
    parts, toy = parts_of(**changed)
    with parts.embeddings:
        Trainer(parts.embeddings, parts.model, parts.optimizer).train(toy.train(32), depth=depth)
        return everything(parts)


def parts_of(**changed: Any) -> tuple[Parts, ToyData]:
    toy = ToyData()
    sample = list(toy.train(32))
    parts = build(toy_config(tier={"device_rows": "auto"}, **changed), toy, sample)
    parts.embeddings.calibrate(sample)
    return parts, toy


def everything(parts: Parts) -> dict[str, NDArray[Any]]:
    tables = {table.name: parts.embeddings.table_weights(table.name) for table in parts.tables}
    return {name: value for name, value in state(parts).items() if "rows" not in name and "dense" in name} | tables


def test_the_loop_is_the_one_a_user_would_write() -> None:
    parts, toy = parts_of()
    with parts.embeddings as embeddings:
        for planned in embeddings.look_ahead(toy.train(32), depth=2):
            logits = parts.model(planned.dense, embeddings.stack(planned))
            loss = binary_cross_entropy_with_logits(logits, planned.labels)
            parts.optimizer.zero_grad()
            loss.backward()
            parts.optimizer.step()
            embeddings.step()
        expected = everything(parts)
    assert_equal(trained(), expected)


@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize("policy", ["lru", "lfu", "static", "hybrid"])
def test_placement_does_not_change_the_numbers(policy: str, depth: int) -> None:
    assert_equal(trained(depth, policy=policy), trained(0, policy="device"))


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("policy", ["lru", "hybrid", "device", "slipstream"])
def test_eval_gives_the_numbers_of_the_run_again(tmp_path: Path, policy: str) -> None:
    config = toy_config(out=str(tmp_path), policy=policy, tier={"device_rows": "auto"}, epochs=2)
    summary, found = train_run(config), evaluate_run(tmp_path)
    for key in ("auc", "log_loss", "eval_samples", "normalised_entropy", "calibration", "steps", "auc_of"):
        assert found[key] == summary[key], key


# -- eval refuses -------------------------------------------------------------------------------------------------


def test_eval_refuses_other_data(tmp_path: Path, data: Any) -> None:
    train_run(toy_config(out=str(tmp_path)))
    data(seed=1)
    with pytest.raises(InputError, match="the data are not those of .*: seed: expected 0, found 1"):
        evaluate_run(tmp_path)


@pytest.mark.usefixtures("data")
def test_eval_refuses_damaged_or_missing_weights(tmp_path: Path) -> None:
    train_run(toy_config(out=str(tmp_path / "run")))
    file = next((tmp_path / "run" / "weights").glob("dense-*.npy"))
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=rf"{file.name}: expected sha256"):
        evaluate_run(tmp_path / "run")
    file.unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        evaluate_run(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"run\.json: expected the record of a run"):
        evaluate_run(tmp_path)


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("options", "message"),
    [({"top_mlp": (16, 1)}, "another model"), ({"embedding_dim": 8, "bottom_mlp": (8,)}, "other tables")],
)
def test_eval_refuses_weights_of_another_model(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    train_run(toy_config(out=str(tmp_path)))
    edit_config(tmp_path, lambda config: config["model_options"].update(options))
    with pytest.raises(CheckpointError, match=message):
        evaluate_run(tmp_path)


@pytest.mark.usefixtures("data")
def test_eval_runs_no_code_that_a_run_directory_names(tmp_path: Path) -> None:
    train_run(toy_config(out=str(tmp_path / "run")))
    marker = tmp_path / "code was run"
    (tmp_path / "evil.py").write_text(f"import os; os.mkdir({str(marker)!r})")
    edit_config(tmp_path / "run", lambda config: config.update(policy=f"{tmp_path}/evil.py:Evil"))
    assert evaluate_run(tmp_path / "run")["eval_samples"] == 256
    assert not marker.exists()


def edit_config(path: Path, change: Callable[[Any], None]) -> None:
    record = json.loads((path / "run.json").read_text())
    change(record["config"])
    (path / "run.json").write_text(json.dumps(record))


# -- numbers that are not finite ----------------------------------------------------------------------------------


def assert_nothing_changes(parts: Parts, toy: ToyData, message: str, *, good_steps: int) -> None:
    """Training stops with the message; all weights and states are as after the good steps."""
    trainer = Trainer(parts.embeddings, parts.model, parts.optimizer)
    with parts.embeddings:
        before: dict[str, NDArray[Any]] = {}
        with pytest.raises(NonFiniteError, match=message) as caught:
            for planned in (coming := parts.embeddings.look_ahead(toy.train(32), depth=2)):
                if planned.number == good_steps:
                    before = everything(parts) | state(parts)
                trainer.step(planned)
        coming.close()  # type: ignore[attr-defined]
        assert "nothing was updated" in str(caught.value) and caught.value.exit_code == 8
        after = everything(parts) | state(parts)
    assert trainer.recorder.steps == good_steps
    moved = {"codes", "used", "accesses"}  # look-ahead goes on planning; only values must stand still
    keep = [name for name in before if not any(word in name for word in moved)]
    assert keep
    for name in set(keep) & set(SIZES_AND_DENSE(before)):
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)


def SIZES_AND_DENSE(names: dict[str, Any]) -> list[str]:  # noqa: N802
    return [name for name in names if name in ("site", "user", "hour") or name.startswith(("dense", "optimizer"))]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_bad_data_stop_before_anything_changes(value: float) -> None:
    parts, _ = parts_of()
    toy = ToyData(spoil={32 * 3 + 7: value})
    message = (
        r"step 4: the loss is nan; not finite: dense input 0; 1 of 32 predictions are not finite, at b\.tsv:4; "
        r"the batch is 32 samples from a\.tsv:97 to b\.tsv:28"
    )
    assert_nothing_changes(parts, toy, message, good_steps=3)
