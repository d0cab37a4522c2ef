"""The device's memory runs out: an error that says which `device_rows` would fit, and nothing has changed."""

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.helpers import bags, one_table, step_all
from support.toy import ToyData, toy_config
from support.toy_runs import assert_equal, everything
from torch import Tensor, nn

import adaptive.training.components
import adaptive.training.trainer
from adaptive.batch import Batch
from adaptive.embeddings.tiers.gpu import build as gpu_build
from adaptive.errors import DeviceMemoryError
from adaptive.models.dense.dlrm import DLRM
from adaptive.optim import Adam
from adaptive.system import is_out_of_memory
from adaptive.training.components import Components, build
from adaptive.training.evaluation import evaluate
from adaptive.training.trainer import Trainer, reserve_update_memory


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
            (pooled if self.where == "end of backward" else logits).register_hook(fail)
        return logits


def made(**tier: object) -> Components:
    toy = ToyData()
    tier = {"device": "cpu-torch", "device_rows": "100%", "poison": True} | tier
    config = toy_config(tier=tier, depth=2, dense_optimizer={"name": "adam", "lr": 0.01})
    return build(config, toy, list(toy.train(32)))


def batches(count: int) -> list[Batch]:
    return list(islice(ToyData().train(32), count))


@pytest.mark.parametrize("where", ["forward", "backward", "end of backward"])
def test_running_out_in_a_pass_changes_nothing(where: str) -> None:
    """The batches before it are trained, and their rows and weights are those of a run that ends there."""
    found, expected = made(), made()
    rows = found.embeddings.runtime.view.device_rows
    with pytest.raises(
        DeviceMemoryError, match="out of GPU memory in the forward or backward pass: CUDA out"
    ) as caught:
        Trainer(found.embeddings, RunsOut(found.model, [3], where), found.optimizer).train(batches(9), depth=2)
    assert caught.value.exit_code == 7
    assert f"Set device_rows to {int(0.9 * rows)} (now {rows}), or lower batch_size or depth." in str(caught.value)
    Trainer(expected.embeddings, expected.model, expected.optimizer).train(batches(3), depth=2)
    assert_equal(weights_of(found), weights_of(expected))


def weights_of(parts: Components) -> dict[str, NDArray[np.float32]]:
    """Values of all rows, and the dense weights."""
    rows = {table.name: parts.embeddings.rows.table_weights(table.name) for table in parts.tables}
    return rows | {name: value.detach().numpy() for name, value in parts.model.named_parameters()}


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("CUDA error: out of memory"), False),
    ],
)
def test_libraries_have_their_own_words_for_full_memory(error: Exception, full: bool) -> None:
    assert is_out_of_memory(error) == full
    raised = pytest.raises(DeviceMemoryError if full else type(error))
    with one_table(5) as embeddings, raised, embeddings.runtime.pipeline.running_out("here"):
        raise error


@pytest.mark.parametrize("part", ["look-ahead", "update"])
def test_out_of_memory_outside_of_passes_is_exit_code_7(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = one_table(20, "100%", device="cpu-torch", optimizer=Adam())
    method = {"look-ahead": "fetch", "update": "update"}[part]
    monkeypatch.setattr(gpu_build.TorchDevice, method, fail)
    with pytest.raises(DeviceMemoryError, match="out of GPU memory") as caught:
        step_all(embeddings, [bags([1]), bags([2])], depth=1)
    assert caught.value.exit_code == 7


def test_out_of_memory_when_tables_are_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_build, "TorchDevice", fail)
    with pytest.raises(
        DeviceMemoryError, match=r"while tables were created: CUDA .* Set device_rows to 90 \(now 100\)"
    ):
        one_table(100, "100%", device="cpu-torch")


def fail(*arguments: object, **options: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


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


def test_without_memory_for_the_update_nothing_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected = made(), made()
    monkeypatch.setattr(adaptive.training.trainer, "reserve_update_memory", Fails(reserve_update_memory, [3]))
    with pytest.raises(DeviceMemoryError, match="in the forward or backward pass"):
        Trainer(found.embeddings, found.model, found.optimizer).train(batches(9), depth=2)
    Trainer(expected.embeddings, expected.model, expected.optimizer).train(batches(3), depth=2)
    assert_equal(weights_of(found), weights_of(expected))


@pytest.mark.parametrize("late", [False, True])
def test_a_dense_update_that_fails_is_not_done_twice(late: bool) -> None:
    parts = made()
    parts.optimizer.step = step = Fails(parts.optimizer.step, [3], late=late)  # type: ignore[method-assign]
    with pytest.raises(DeviceMemoryError, match="out of GPU memory in the update of dense weights: CUDA") as caught:
        Trainer(parts.embeddings, parts.model, parts.optimizer).train(ToyData().train(32))
    assert step.calls == 4 and caught.value.exit_code == 7


# --- building and evaluating -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_a_model_that_does_not_fit_is_exit_code_7(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if part == "model":
        monkeypatch.setattr(DLRM, "to", fail)
    else:
        monkeypatch.setattr(adaptive.training.components, "dense_optimizer", fail)
    with pytest.raises(DeviceMemoryError, match=r"in building the model: CUDA .* Set device_rows to") as caught:
        made()
    assert caught.value.exit_code == 7


def test_an_evaluation_that_does_not_fit_changes_nothing() -> None:
    parts = made()
    before = everything(parts)
    with pytest.raises(DeviceMemoryError, match="out of GPU memory in an evaluation"):
        evaluate(parts.embeddings, RunsOut(parts.model, [1], "forward"), ToyData().evaluation(64))
    assert_equal(everything(parts), before)
