"""Runs from start to end: what is written, what stops them, and that nothing is left behind on any path."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from test_evaluation import assert_equal, state
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from toy import SIZES, ToyData, toy_config

import adaptive.build
import adaptive.trainer
from adaptive.batch import Batch
from adaptive.build import Parts, build
from adaptive.checkpoint import load_checkpoint
from adaptive.errors import CheckpointError, InputError, NonFiniteError, OutputError, PolicyError
from adaptive.models.dlrm import DLRM
from adaptive.planned import Planned
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
        ({"batch_size": 100, "tier": {"device_rows": "100%"}}, 7, [7]),
    ],
)
def test_steps_and_epochs(tmp_path: Path, changed: dict[str, Any], steps: int, evaluated_after: list[int]) -> None:
    config = toy_config(out=str(tmp_path / "run"), **changed)
    assert plan_run(config)["steps"] == steps
    assert train_run(config)["steps"] == steps
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [r.step for r in records if isinstance(r, EvalRecord)] == evaluated_after


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
    """All weights and all optimizer state, wherever rows lie."""
    values = {table.name: parts.embeddings.table_weights(table.name) for table in parts.tables}
    saved = parts.embeddings.state_arrays()
    values["row state"] = np.zeros((sum(SIZES.values()), saved["rows0.state"].shape[1]), np.float32)
    values["row state"][saved["rows0.changed"]] = saved["rows0.state"]
    return values | {name: value for name, value in state(parts).items() if not name.startswith(("rows", "next"))}


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


@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize("policy", ["lru", "lfu", "static", "hybrid"])
def test_placement_does_not_change_the_numbers(policy: str, depth: int) -> None:
    assert_equal(trained(depth, policy=policy), trained(0, policy="device"))


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("policy", ["lru", "hybrid", "device", "slipstream"])
def test_eval_gives_the_numbers_of_the_run_again(tmp_path: Path, policy: str) -> None:
    config = toy_config(out=str(tmp_path), policy=policy, tier={"device_rows": "auto"}, epochs=2)
    stream = StringIO()
    summary, found = train_run(config), evaluate_run(tmp_path, stream=stream)
    assert stream.getvalue().startswith(f"evaluation after step 40: auc {summary['auc']:.4f}")
    for key in ("auc", "log_loss", "eval_samples", "normalised_entropy", "calibration", "steps", "auc_of"):
        assert found[key] == summary[key], key


SCHEMA = """
separator = ","
header = true
[label]
column = "click"
[[dense]]
columns = ["price"]
kind = "float"
[[categorical]]
columns = ["first", "second"]
kind = "string"
vocabulary = true
min_count = 1
table = "genre"
[[categorical]]
columns = ["user"]
kind = "int"
num_embeddings = 50
"""


def test_files_with_a_shared_table_and_a_fitted_vocabulary(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [
        f"{rng.integers(2)},{rng.random():.3f},{'abc'[rng.integers(3)]},{rng.integers(50)},{'cde'[rng.integers(3)]}"
        for _ in range(200)
    ]
    (tmp_path / "a.csv").write_text("\n".join(["click,price,first,user,second", *lines]) + "\n")
    (tmp_path / "schema.toml").write_text(SCHEMA)
    options = {"schema_path": str(tmp_path / "schema.toml"), "holdout": 0.25}
    config = toy_config(
        data=f"csv:{tmp_path}/a.csv", data_options=options, out=str(tmp_path / "run"), tier={"device_rows": "100%"}
    )
    summary, found = train_run(config), evaluate_run(tmp_path / "run")
    assert summary["samples"] == 150 and summary["eval_samples"] == 50
    assert (found["auc"], found["log_loss"]) == (summary["auc"], summary["log_loss"])
    tables = load_checkpoint(tmp_path / "run" / "weights").meta["tables"]
    assert [table["name"] for table in tables] == ["genre", "user"]
    assert (tmp_path / "run" / "vocabulary" / "vocabulary.json").exists()
    assert train_run(config, overwrite=True)["auc"] == summary["auc"]


# -- eval refuses -------------------------------------------------------------------------------------------------


def test_eval_refuses_other_data(tmp_path: Path, data: Any) -> None:
    train_run(toy_config(out=str(tmp_path)))
    data(seed=1)
    with pytest.raises(InputError, match=r"the data are not those of .*: seed: expected 0, found 1"):
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


def assert_stops(parts: Parts, toy: ToyData, message: str, *, good_steps: int) -> None:
    """Training stops with the message; all weights and states are as after the good steps."""
    trainer = Trainer(parts.embeddings, parts.model, parts.optimizer)
    after_good: dict[str, NDArray[Any]] = {}

    def watch(planned: Planned) -> None:
        if planned.number == good_steps:
            after_good.update(everything(parts))
        Trainer.step(trainer, planned)

    trainer.step = watch  # type: ignore[method-assign]
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
    arrays = parts.embeddings.state_arrays()
    with parts.embeddings as embeddings:
        Trainer(embeddings, parts.model, parts.optimizer).train(islice(toy.train(32), 2))
        arrays = embeddings.state_arrays()
        arrays["rows0.weights"][arrays["rows0.changed"] < SIZES["site"]] = np.nan
        embeddings.load_state_arrays(arrays)
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


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("depth", [0, 3])
def test_an_exception_in_the_policy_leaves_nothing_open(tmp_path: Path, depth: int) -> None:
    config = toy_config(out=str(tmp_path), policy="test_trainer:Failing", depth=depth, epochs=5)
    with pytest.raises(PolicyError, match="out of ideas"):
        train_run(config)
    assert read_record(tmp_path)["status"] == "stopped" and not (tmp_path / "lock").exists()


def test_an_exception_in_the_data_leaves_nothing_open(tmp_path: Path, data: Any) -> None:
    toy = data()

    def broken(batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        for number, batch in enumerate(ToyData.train(toy, batch_size)):
            if number == 7:
                raise InputError("a.tsv:225: truncated")
            yield batch

    toy.train = broken
    with pytest.raises(InputError, match="truncated"):
        train_run(toy_config(out=str(tmp_path)))
    assert read_record(tmp_path)["status"] == "stopped"


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_run_after_its_step_with_weights_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    def interrupt(model: Hooked, dense: Tensor, pooled: Tensor) -> None:
        if model.calls == 6:
            os.kill(os.getpid(), number)

    in_model(monkeypatch, interrupt)
    with pytest.raises(SystemExit) as caught:
        train_run(toy_config(out=str(tmp_path / "cut"), depth=3))
    assert caught.value.code == code
    assert read_record(tmp_path / "cut")["status"] == "stopped"
    in_model(monkeypatch, lambda model, dense, pooled: None)
    train_run(toy_config(out=str(tmp_path / "short"), depth=3, steps=6))
    cut, short = load_checkpoint(tmp_path / "cut" / "weights"), load_checkpoint(tmp_path / "short" / "weights")
    assert cut.meta == short.meta and cut.meta["steps"] == 6
    for name in cut.dense:
        assert torch.equal(cut.dense[name], short.dense[name])
    assert evaluate_run(tmp_path / "cut")["auc"] == evaluate_run(tmp_path / "short")["auc"]


@pytest.mark.usefixtures("data")
def test_a_signal_in_the_evaluation_ends_the_run_with_weights_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_second_signal_ends_the_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(model: Hooked, dense: Tensor, pooled: Tensor) -> None:
        if model.calls == 6:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    in_model(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_run(toy_config(out=str(tmp_path)))
    assert not (tmp_path / "weights").exists() and not (tmp_path / "lock").exists()


@pytest.mark.usefixtures("data")
def test_runs_work_outside_the_main_thread(tmp_path: Path) -> None:
    results: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: results.append(train_run(toy_config(out=str(tmp_path), steps=2))))
    thread.start()
    thread.join()
    assert results[0]["steps"] == 2
