"""The device's memory runs out in a forward or backward pass, for the dense update, in building or evaluating: what was
tried is done again with fewer device rows. In the middle of a dense update it is an error, and not done twice."""

from collections.abc import Sequence

import pytest
import torch
from support.toy import ToyData, toy_config
from support.toy_runs import assert_equal, everything
from torch import Tensor, nn

import adaptive.training.components
import adaptive.training.trainer
from adaptive.errors import DeviceMemoryError
from adaptive.models.dense.dlrm import DLRM
from adaptive.training.components import Components, build
from adaptive.training.evaluation import evaluate
from adaptive.training.trainer import UPDATE_ROOM, Trainer, reserve_update_memory


class RunsOut(nn.Module):
    """Fails in the given calls of forward, before it or in its backward pass."""

    def __init__(self, model: nn.Module, calls: Sequence[int], where: str) -> None:
        super().__init__()
        self.model, self.failing, self.where, self.calls = model, set(calls), where, 0

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        self.calls += 1
        fails = self.calls - 1 in self.failing
        if fails and self.where == "forward":
            raise torch.OutOfMemoryError("CUDA out of memory")
        logits: Tensor = self.model(dense, pooled)
        if fails:
            (pooled if self.where == "end of backward" else logits).register_hook(out_of_memory)
        return logits


def out_of_memory(gradient: Tensor) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def made(depth: int = 2, **tier: object) -> Components:
    toy = ToyData()
    tier = {"device": "cpu-torch", "device_rows": "100%", "poison": True} | tier
    config = toy_config(tier=tier, depth=depth, dense_optimizer={"name": "adam", "lr": 0.01})
    return build(config, toy, list(toy.train(32)))


def train(calls: Sequence[int], where: str, *, depth: int = 2, **tier: object) -> tuple[Components, int]:
    toy, parts = ToyData(), made(depth, **tier)
    model = RunsOut(parts.model, calls, where)
    steps = Trainer(parts.embeddings, model, parts.optimizer).train(toy.train(32), depth=depth)
    return parts, steps


@pytest.mark.parametrize("where", ["forward", "backward", "end of backward"])
@pytest.mark.parametrize("calls", [[0], [3, 4], [7, 12, 13]])
def test_the_result_is_that_of_an_undisturbed_run(where: str, calls: list[int]) -> None:
    expected, steps = train([], where)
    found, steps_found = train(calls, where, transfer="direct")
    assert steps_found == steps == 20
    assert found.embeddings.runtime.view.device_rows < expected.embeddings.runtime.view.device_rows
    assert_equal(everything(found), everything(expected))


def test_a_batch_that_never_fits_ends_the_run_with_what_to_do() -> None:
    with pytest.raises(DeviceMemoryError, match="Lower batch_size or depth") as caught:
        train(range(3, 1000), "forward", depth=1)
    assert caught.value.exit_code == 7


# --- the dense update ------------------------------------------------------------------------------------------------


class Fails:
    """Runs out of memory in the given calls, before `work` or, `late`, after it."""

    def __init__(self, work, calls: Sequence[int], *, late: bool = False) -> None:  # type: ignore[no-untyped-def]
        self.work, self.failing, self.late, self.calls = work, set(calls), late, 0

    def __call__(self, *arguments: object, **options: object) -> object:
        self.calls += 1
        fails = self.calls - 1 in self.failing
        if fails and not self.late:
            raise torch.OutOfMemoryError("CUDA out of memory")
        found = self.work(*arguments, **options)
        if fails:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found


@pytest.mark.parametrize("calls", [[0], [4, 5], [19]])
def test_without_memory_for_the_update_the_batch_runs_again(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = train([], "")
    monkeypatch.setattr(
        adaptive.training.trainer, "reserve_update_memory", asked := Fails(reserve_update_memory, calls)
    )
    found, steps = train([], "")
    assert steps == 20 and asked.calls == 20 + len(calls)
    assert found.embeddings.runtime.view.device_rows < expected.embeddings.runtime.view.device_rows
    assert_equal(everything(found), everything(expected))


def test_the_room_asked_for_is_what_torchs_optimizers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(30, 10)
    model.weight.grad = torch.ones(10, 30)  # and none of the bias, which is not updated
    asked: list[tuple[int, torch.device]] = []
    monkeypatch.setattr(torch, "empty", lambda size, *, dtype, device: asked.append((size * dtype.itemsize, device)))
    for name in ("cpu", "meta"):
        reserve_update_memory(torch.optim.Adam(model.parameters()), torch.device(name))
    assert asked == [(UPDATE_ROOM * 4 * 300, torch.device("meta"))]


@pytest.mark.parametrize("late", [False, True])
def test_a_dense_update_that_fails_is_not_done_twice(late: bool) -> None:
    parts = made()
    parts.optimizer.step = step = Fails(parts.optimizer.step, [3], late=late)  # type: ignore[method-assign]
    with pytest.raises(DeviceMemoryError, match="out of GPU memory in the update of dense weights: CUDA") as caught:
        Trainer(parts.embeddings, parts.model, parts.optimizer).train(ToyData().train(32))
    assert step.calls == 4 and caught.value.exit_code == 7


# --- building and evaluating -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["model", "optimizer"])
@pytest.mark.parametrize("late", [False, True])
def test_rows_make_room_for_the_model(part: str, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = train([], "")
    if part == "model":
        moving = Fails(DLRM.to, [0, 1], late=late)
        monkeypatch.setattr(DLRM, "to", lambda model, device: moving(model, device))
    else:
        monkeypatch.setattr(
            adaptive.training.components, "dense_optimizer", Fails(adaptive.training.components.dense_optimizer, [0, 1])
        )
    found, _ = train([], "")
    rows = expected.embeddings.runtime.view.device_rows
    assert found.embeddings.runtime.view.device_rows == int(0.9 * int(0.9 * rows))
    assert "reduced: out of GPU memory" in found.embeddings.statistics.device_rows_text()
    assert_equal(everything(found), everything(expected))


def test_a_model_that_never_fits_is_exit_code_7(monkeypatch: pytest.MonkeyPatch) -> None:
    moving = Fails(DLRM.to, range(100))
    monkeypatch.setattr(DLRM, "to", lambda model, device: moving(model, device))
    with pytest.raises(DeviceMemoryError, match="Lower batch_size or depth") as caught:
        made(held_rows=200)
    assert caught.value.exit_code == 7 and moving.calls > 2


@pytest.mark.parametrize("device", ["cpu", "cpu-torch"])
def test_evaluation_gives_rows_back_and_finds_the_same(device: str) -> None:
    parts, toy = made(device=device), ToyData()
    Trainer(parts.embeddings, parts.model, parts.optimizer).train(toy.train(32))
    expected, values, rows = evaluate_with([], parts), everything(parts), parts.embeddings.runtime.view.device_rows
    assert evaluate_with([0, 2, 3], parts) == expected
    assert parts.embeddings.runtime.view.device_rows < rows
    assert_equal(everything(parts), values)


def test_an_evaluation_in_the_middle_of_training_gives_rows_back() -> None:
    found, expected = made(), made()
    for parts, calls in ((found, [1]), (expected, [])):
        trainer = Trainer(parts.embeddings, parts.model, parts.optimizer)
        for planned in parts.embeddings.look_ahead(ToyData().train(32), depth=2):
            trainer.step(planned)
            if planned.number == 9:
                evaluate_with(calls, parts)
    assert found.embeddings.runtime.view.device_rows < expected.embeddings.runtime.view.device_rows
    assert_equal(everything(found), everything(expected))


def evaluate_with(calls: Sequence[int], parts: Components) -> object:
    return evaluate(parts.embeddings, RunsOut(parts.model, calls, "forward"), ToyData().evaluation(64))
