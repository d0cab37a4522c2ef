"""Runs from start to end: what is written, that the numbers are right, what `eval` accepts."""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.manifests import write_record
from support.toy import ToyData, toy_config
from support.toy_runs import assert_equal, data_fixture, everything, nothing_is_left_behind, parts_of  # noqa: F401 (fixtures)
from torch.nn.functional import binary_cross_entropy_with_logits

from adaptive.config import DenseOptimizerConfig, ScheduleConfig
from adaptive.errors import CheckpointError, InputError, OutputError
from adaptive.storage.checkpoint import load_checkpoint
from adaptive.storage.run_directory import read_record
from adaptive.training.components import build, dense_optimizer, set_rates, torch_settings
from adaptive.training.runs import evaluate_run, plan_run, train_run
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import STAGES, EvalRecord, IntervalRecord
from adaptive.training.trainer import Trainer

KEYS = {
    "schema", "policy", "steps", "samples", "samples_per_s", "auc", "log_loss", "hit_rate", "fetched_rows",
    "written_back_rows", "bytes_h2d", "bytes_d2h", "skipped_update_share", "time_ms", "run_dir", "eval_samples",
    "device_rows", "seed", "auc_of",
}  # fmt: skip


# -- what a run is ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("data")
def test_a_run_is_written_down(tmp_path: Path) -> None:
    stream = StringIO()
    summary = train_run(toy_config(out=str(tmp_path / "run"), tensorboard=True), stream=stream)
    table = summary.pop("table") + summary.pop("details")
    assert summary.keys() >= KEYS
    assert (summary["steps"], summary["samples"], summary["eval_samples"]) == (20, 640, 256)
    assert summary["auc_of"] == "evaluation" and 0.6 < summary["auc"] < 1
    assert summary["time_ms"].keys() >= {"read", "plan", "wait", "forward", "backward", "update", "row_update", "other"}
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert "policy lru: 20 steps, 640 samples" in table
    record = read_record(tmp_path / "run")
    del summary["compile_s"]  # known when the run is written down, but no fact about it
    assert record["status"] == "finished" and record["summary"] == summary
    assert record["config"]["batch_size"] == 32 and record["data"]["name"] == "toy" and record["device"] == "cpu"
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "metrics.jsonl", "run.json", "tensorboard", "weights",
    ]  # fmt: skip
    assert stream.getvalue().startswith("policy lru: prefetches missed rows; skips no updates\n")
    assert "100% | step 20 | " in stream.getvalue() and "evaluation after step 20" in stream.getvalue()


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(("log_every", "expected"), [(1, list(range(1, 21))), (7, [7, 14, 20]), (50, [20])])
def test_intervals_add_up_to_the_run(tmp_path: Path, log_every: int, expected: list[int]) -> None:
    summary = train_run(toy_config(out=str(tmp_path), log_every=log_every, depth=3))
    intervals = [r for r in read_metrics(tmp_path / "metrics.jsonl") if isinstance(r, IntervalRecord)]
    assert [record.step for record in intervals] == expected
    for before, record in zip([0, *expected], intervals, strict=False):
        assert [counts.lookups for counts in record.tables.values()] == 3 * [32 * (record.step - before)]
    assert summary["fetched_rows"] == sum(c.fetched for r in intervals for c in r.tables.values())
    own = ("wait", "forward", "backward", "update", "row_update", "other")
    step_ms = sum(intervals[-1].time_ms[stage] for stage in own)
    assert step_ms == pytest.approx(1000 * 32 / intervals[-1].samples_per_s)
    assert set(intervals[-1].time_ms) <= {*STAGES, "policy"} and min(intervals[-1].time_ms.values()) >= 0


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("changed", "steps", "evaluated_after"),
    [
        ({"steps": 5}, 5, [5]),
        ({"epochs": 3}, 60, [20, 40, 60]),
        ({"epochs": 3, "steps": 25}, 25, [20, 25]),
        ({"epochs": 2, "steps": 20}, 20, [20]),
        ({"batch_size": 100, "tier": {"device_rows": "100%"}}, 7, [7]),
        ({"eval_every": 6}, 20, [6, 12, 18, 20]),
        ({"eval_every": 10}, 20, [10, 20]),
        ({"eval_every": 6, "epochs": 2}, 40, [6, 12, 18, 20, 24, 30, 36, 40]),
        ({"eval_every": 6, "save_every": 4, "epochs": 2, "steps": 24}, 24, [6, 12, 18, 20, 24]),
        ({"eval_every": 50, "save_every": 6}, 20, [20]),
    ],
)
def test_steps_and_epochs(tmp_path: Path, changed: dict[str, Any], steps: int, evaluated_after: list[int]) -> None:
    config = toy_config(out=str(tmp_path / "run"), **changed)
    assert plan_run(config)["steps"] == steps
    assert train_run(config)["steps"] == steps
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [r.step for r in records if isinstance(r, EvalRecord)] == evaluated_after


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("depth", [0, 3])
def test_evaluating_on_the_way_changes_no_bit(tmp_path: Path, depth: int) -> None:
    with_it = train_run(toy_config(out=str(tmp_path / "with"), depth=depth, eval_every=3, epochs=2))
    without = train_run(toy_config(out=str(tmp_path / "without"), depth=depth, epochs=2))
    found, expected = (load_checkpoint(tmp_path / name / "weights") for name in ("with", "without"))
    for group in ("rows", "optimizer"):
        assert_equal(getattr(found, group), getattr(expected, group))
    assert all(torch.equal(found.dense[name], weight) for name, weight in expected.dense.items())
    for name in ("auc", "log_loss", "accuracy", "steps", "hit_rate", "skipped_update_share"):
        assert with_it[name] == without[name], name
    assert [point["step"] for point in without["evaluations"]] == [20, 40]
    steps = [point["step"] for point in with_it["evaluations"]]
    assert steps == [3, 6, 9, 12, 15, 18, 20, 21, 24, 27, 30, 33, 36, 39, 40]
    last = with_it["evaluations"][-1]
    assert [last[name] for name in ("auc", "accuracy", "samples")] == [with_it["auc"], with_it["accuracy"], 256]
    assert with_it["evaluations"][6] == without["evaluations"][0]


def test_without_evaluation_data_the_quality_is_that_of_training(tmp_path: Path, data: Any) -> None:
    data(num_eval=0)
    summary = train_run(toy_config(out=str(tmp_path)))
    assert summary["auc_of"] == "training" and summary["eval_samples"] == 0
    assert 0.5 < summary["auc"] < 1 and summary["log_loss"] > 0
    with pytest.raises(InputError, match="expected data with an evaluation part"):
        evaluate_run(tmp_path)


def test_without_training_data_a_run_is_an_error(tmp_path: Path, data: Any) -> None:
    data(num_train=0)
    with pytest.raises(InputError, match="expected training samples, got none"):
        train_run(toy_config(out=str(tmp_path)))


@pytest.mark.usefixtures("data")
def test_default_directory_and_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    summary = train_run(toy_config(steps=1, save=False))
    path = Path(summary["run_dir"])
    assert path.parent == Path("runs") and path.name.endswith("-lru") and not (path / "weights").exists()
    with pytest.raises(OutputError, match="expected an empty directory, got files in it"):
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
    assert torch.utils.deterministic.fill_uninitialized_memory  # torch's default, which the caller has again


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
def test_dense_optimizers_step_as_those_of_torch(name: Literal["sgd", "adagrad", "adam"]) -> None:
    kinds: dict[str, Any] = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}
    models = [torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)]
    models[1].load_state_dict(models[0].state_dict())
    ours = dense_optimizer(DenseOptimizerConfig(name=name, lr=0.1), models[0])
    plain = kinds[name](models[1].parameters(), lr=0.1)
    for step in range(3):
        for model, optimizer in zip(models, (ours, plain), strict=True):
            optimizer.zero_grad()
            (model(torch.full((4, 3), step + 1.0)).sin().sum()).backward()
            optimizer.step()
    assert isinstance(ours, kinds[name]) and repr(ours) == repr(plain)
    assert all(torch.equal(*weights) for weights in zip(*(model.parameters() for model in models), strict=True))
    states = [optimizer.state_dict() for optimizer in (ours, plain)]
    assert str(states[0]) == str(states[1])
    ours.load_state_dict(states[1])
    assert str(ours.state_dict()) == str(states[1])


def test_tf32_is_set_during_a_run_only() -> None:
    """All of torch's getters agree: some raise where the newest of them was set."""
    products = torch.backends.cuda.matmul
    assert not products.allow_tf32
    with torch_settings(toy_config()):
        assert not products.allow_tf32
    with torch_settings(toy_config(tf32=True)):
        assert products.allow_tf32 and products.fp32_precision == "tf32"
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.mkldnn.matmul.fp32_precision != "tf32"  # the CPU's numbers stay
    assert not products.allow_tf32 and torch.get_float32_matmul_precision() == "highest"


# -- the numbers --------------------------------------------------------------------------------------------------


def trained(depth: int = 2, **changed: Any) -> dict[str, NDArray[Any]]:
    parts, toy = parts_of(**changed)
    with parts.embeddings:
        Trainer(parts.embeddings, parts.model, parts.optimizer).train(toy.train(32), depth=depth)
        return everything(parts)


def test_the_loop_is_the_one_a_user_would_write() -> None:
    parts, toy = parts_of()
    with parts.embeddings as embeddings:
        for planned in embeddings.look_ahead(toy.train(32), depth=2):
            logits = parts.model(planned.dense, embeddings.stack(planned))
            loss = binary_cross_entropy_with_logits(logits, planned.labels)
            parts.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            parts.optimizer.step()
            embeddings.step()
        expected = everything(parts)
    assert_equal(trained(), expected)


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("policy", ["lru", "hybrid", "device", "slipstream"])
def test_eval_gives_the_numbers_of_the_run_again(tmp_path: Path, policy: str) -> None:
    config = toy_config(out=str(tmp_path), policy=policy, tier={"device_rows": "auto"}, epochs=2)
    stream = StringIO()
    summary, found = train_run(config), evaluate_run(tmp_path, stream=stream)
    assert stream.getvalue().startswith(f"evaluation after step 40: AUC {summary['auc']:.4f}")
    for key in ("auc", "log_loss", "eval_samples", "normalised_entropy", "calibration", "steps", "auc_of"):
        assert found[key] == summary[key], key


# -- eval refuses -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_mlp": (16, 1)}, "expected weights of this model"),
        ({"embedding_dim": 8, "bottom_mlp": (8,)}, "expected the tables"),
    ],
)
def test_eval_refuses_weights_of_another_model(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    train_run(toy_config(out=str(tmp_path)))
    edit_config(tmp_path, lambda config: config["model_options"].update(options))
    with pytest.raises(CheckpointError, match=message):
        evaluate_run(tmp_path)


def edit_config(path: Path, change: Callable[[Any], None]) -> None:
    record = json.loads((path / "run.json").read_text())
    change(record["config"])
    write_record(path, record)


def test_learning_rates_follow_the_schedules() -> None:
    """Each step has its scheduled rates, for every look-ahead and device tier."""
    schedule = {"warmup": 3, "decay": "linear", "decay_steps": 10}

    def trained(depth: int, device_rows: str) -> tuple[list[tuple[float, float]], dict[str, Any]]:
        toy = ToyData()
        config = toy_config(
            tier={"device_rows": device_rows},
            optimizer={"name": "adam", "lr": 0.1},
            dense_optimizer={"lr": 0.2},
            schedule=schedule,
        )
        parts, rates = build(config, toy), []

        def set_and_see(step: int) -> None:
            set_rates(config, parts, step)
            rates.append((parts.embeddings.optimizer.lr, parts.optimizer.param_groups[0]["lr"]))

        Trainer(parts.embeddings, parts.model, parts.optimizer, set_rates=set_and_see).train(toy.train(32), depth=depth)
        return rates, parts.embeddings.rows.state_arrays()

    rates, arrays = trained(0, "100%")
    factors = [ScheduleConfig.model_validate(schedule).factor(step) for step in range(len(rates))]
    for rates_of_one, lr in zip(zip(*rates, strict=True), (0.1, 0.2), strict=True):
        assert rates_of_one == pytest.approx([lr * factor for factor in factors])
    other, found = trained(3, "80%")
    assert other == rates
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
