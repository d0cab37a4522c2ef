"""The dense step as a graph: without a GPU, a stand-in records torch's operations and repeats them in their memory."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from support.simulated_training import patched
from support.toy import ToyData
from support.toy_runs import assert_equal, everything
from test_flagged_steps import DENSE, Clock, clock_fixture, parts_on  # noqa: F401 (fixture)
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import adaptive.training.dense_graph
from adaptive.batch import Batch
from adaptive.errors import DeviceMemoryError, NonFiniteError
from adaptive.training.components import Components
from adaptive.training.trainer import Trainer

GRAPHED = [name for name in DENSE if name != "sgd"] + ["plain sgd"]
DENSE["plain sgd"] = lambda weights: torch.optim.SGD(weights, lr=0.1, weight_decay=0.01, fused=True)


class Operations(TorchDispatchMode):
    """Records operations with their tensors; some wait for a device."""

    def __init__(self, *, may_wait: bool) -> None:
        super().__init__()
        self._may_wait, self._done = may_wait, list[tuple[Any, ...]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._may_wait and func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("called a synchronizing CUDA operation")
        result = func(*args, **(kwargs or {}))
        self._done.append((func, args, kwargs or {}, result))
        return result

    def repeat(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, result in self._done:
                for old, new in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class Recordings:
    """The stand-in; see `adaptive.training.dense_graph.Graphs`."""

    def __init__(self) -> None:
        self.replays, self.free = 0, 200

    def warm_up(self, work: Callable[[], object]) -> int:
        for may_wait in (True, False):
            with Operations(may_wait=may_wait):
                work()
        return 100

    def free_bytes(self) -> int:
        return self.free

    def record(self, work: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        assert self.free >= 200, "a recording would fail"
        with Operations(may_wait=False) as operations:
            result = work()

        def replay() -> None:
            self.replays += 1
            operations.repeat()

        return result, replay


class Plain(nn.Module):
    """Torch's own operations, which the stand-in sees."""

    def __init__(self, extra: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.LazyLinear(8), extra or nn.Tanh(), nn.Linear(8, 1))
        self.waits = False

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        if self.waits and float(dense.sum()) > 1e9:
            raise AssertionError
        logits: Tensor = self.layers(torch.cat([dense, pooled.flatten(1)], 1)).squeeze(1)
        return logits


@pytest.fixture(name="graphs")
def graphs_fixture() -> Iterator[Recordings]:
    recordings = Recordings()
    with patched(adaptive.training.dense_graph, graphs_of=lambda device: recordings):
        yield recordings


def made(dense: str = "adam", model: nn.Module | None = None) -> Components:
    parts, model = parts_on(dense="adam"), model or Plain()
    model(torch.zeros(1, ToyData().num_dense), torch.zeros(1, 3, 4))  # lazy layers get their shapes
    return Components(parts.tables, parts.embeddings, model, DENSE[dense](list(model.parameters())))


def scheduled(parts: Components) -> Trainer:
    def set_rates(step: int) -> None:
        parts.embeddings.optimizer.lr = 0.1 / (1 + step)
        parts.optimizer.param_groups[0]["lr"] = 0.03 / (1 + step)

    return Trainer(parts.embeddings, parts.model, parts.optimizer, set_rates=set_rates)


def eager(dense: str, batches: list[Batch]) -> dict[str, Any]:
    with patched(adaptive.training.dense_graph, graphs_of=lambda device: None):
        parts = made(dense)
        scheduled(parts).train(batches, depth=0)
        return everything(parts)


@pytest.mark.parametrize("dense", GRAPHED)
@pytest.mark.parametrize("depth", [0, 3])
def test_a_graph_gives_the_bits_of_its_operations(graphs: Recordings, dense: str, depth: int) -> None:
    """20 batches with a schedule; one in the middle is smaller, one has weights, and both run one by one."""
    batches = list(ToyData().train(32))
    batches[6] = batches[6].take(np.arange(20))
    batches[9] = replace(batches[9], extras={"weight": np.linspace(0, 2, 32, dtype=np.float32)})
    parts = made(dense)
    assert scheduled(parts).train(batches, depth=depth) == 20
    assert graphs.replays == 18
    assert_equal(everything(parts), eager(dense, batches))


@pytest.mark.parametrize("dense", GRAPHED)
def test_training_resumes_in_the_middle(graphs: Recordings, dense: str) -> None:
    """In another trainer, which has recorded a step before and records it again for another optimizer state."""
    batches = list(ToyData().train(32))
    first = made(dense)
    scheduled(first).train(batches[:10], depth=2)
    second = made(dense)
    again = scheduled(second)
    again.train(batches[:3])
    second.embeddings.rows.load_state_arrays(first.embeddings.rows.state_arrays())
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    again.recorder.steps = 10
    again.train(batches[10:], depth=3)
    assert graphs.replays == 10 + 3 + 10
    assert_equal(everything(second), eager(dense, batches))


@pytest.mark.parametrize("good_steps", [0, 9, 19])
def test_a_bad_loss_changes_nothing(graphs: Recordings, good_steps: int) -> None:
    batches = list(ToyData(spoil={32 * good_steps + 7: math.nan}).train(32))
    parts = made()
    trainer = scheduled(parts)
    with pytest.raises(
        NonFiniteError, match=rf"step {good_steps + 1}: the loss is nan; not finite: dense input 0; 1 of"
    ):
        trainer.train(batches, depth=2)
    assert graphs.replays == min(good_steps + 3, 20)
    found, expected = everything(parts), eager("adam", batches[:good_steps])
    assert found.pop("rate") <= expected.pop("rate")  # of the latest step that was launched
    assert_equal(found, expected)


def test_a_bad_gradient_is_named(graphs: Recordings) -> None:
    """The loss is finite, but not the gradient of the weights whose inputs are large."""
    parts, batches = made("plain sgd"), list(ToyData().train(32))
    batches[4] = replace(batches[4], dense=np.full_like(batches[4].dense, 3e38))
    with torch.no_grad():
        parts.model.layers[0].weight[:, :2] = 0  # type: ignore[union-attr, index]
        parts.model.layers[2].weight.mul_(1e4)  # type: ignore[union-attr, operator]
    message = r"step 5: the gradient of weight layers\.0\.weight is not finite; the batch is 32 samples from b\.tsv:29"
    with pytest.raises(NonFiniteError, match=message):
        Trainer(parts.embeddings, parts.model, torch.optim.SGD(parts.model.parameters(), 0.0, fused=True)).train(
            batches
        )


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, values: Tensor) -> Tensor:
        self.passes += 1
        return values


def hooked() -> nn.Module:
    layer = nn.Tanh()
    layer.register_forward_hook(lambda *given: None)
    return layer


def waiting() -> nn.Module:
    model = Plain()
    model.waits = True
    return model


def trains_eagerly(parts: Components, graphs: Recordings, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    """Twice, and says why once; warnings are shown where logging is not configured."""
    trainer, batches = scheduled(parts), list(ToyData().train(32))
    assert trainer.train(islice(batches, 10)) + trainer.train(batches[10:]) == 20
    assert graphs.replays == 0
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"the dense part runs without a CUDA graph: {reason}")
    ]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: Plain(nn.Dropout(0.5)), "the model has dropout"),
        (lambda: Plain(Counting()), "buffers change in a forward pass"),
        (lambda: Plain(hooked()), "modules have hooks"),
        (waiting, "an operation waits for the device"),
    ],
)
def test_other_models_run_their_operations(
    graphs: Recordings, caplog: pytest.LogCaptureFixture, model: Callable[[], nn.Module], reason: str
) -> None:
    batches = list(ToyData().train(32))
    parts = made(model=model())
    trains_eagerly(parts, graphs, caplog, reason)
    with patched(adaptive.training.dense_graph, graphs_of=lambda device: None):
        others = made(model=model())
        scheduled(others).train(batches)
    assert_equal(everything(parts), everything(others))


@pytest.mark.parametrize("where", ["forward", "update", "recording"])
def test_too_little_memory_runs_operations(graphs: Recordings, caplog: pytest.LogCaptureFixture, where: str) -> None:
    """Found by the passes to warm up: no recording begins."""
    parts = made()
    weight, once = next(parts.model.parameters()), iter([1])

    def run_out(*given: object) -> None:
        for _ in once:
            if where == "update":
                parts.optimizer.state[weight]["step"] = torch.zeros(())  # of a state that stays incomplete
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    if where == "recording":
        graphs.free = 199
    else:
        owner, name = (parts.model, "forward") if where == "forward" else (parts.optimizer, "step")
        method = getattr(owner, name)
        setattr(owner, name, lambda *given: run_out() or method(*given))
    trains_eagerly(parts, graphs, caplog, "it would leave too little GPU memory")
    assert_equal(everything(parts), eager("adam", list(ToyData().train(32))))


def test_a_recording_that_runs_out_says_what_would_fit(graphs: Recordings) -> None:
    parts = made()

    def run_out(work: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    graphs.record = run_out  # type: ignore[assignment, method-assign]
    with pytest.raises(
        DeviceMemoryError, match=r"out of GPU memory in recording a graph: .* (Set device_rows to|Lower) "
    ):
        scheduled(parts).train(ToyData().train(32))


def test_momentum_runs_its_operations(graphs: Recordings) -> None:
    parts = made("sgd")
    assert scheduled(parts).train(ToyData().train(32)) == 20 and graphs.replays == 0


def test_settings_that_change_are_seen(graphs: Recordings) -> None:
    parts = made("plain sgd")
    trainer = scheduled(parts)

    def after_step() -> None:
        parts.optimizer.param_groups[0]["weight_decay"] = 0.5 if trainer._launched >= 8 else 0.01

    trainer.train(ToyData().train(32), after_step=after_step)
    assert graphs.replays == 8
    trainer.train(islice(ToyData().train(32), 3))  # records it again
    assert graphs.replays == 11


def test_no_replay_waits(graphs: Recordings, clock: Clock) -> None:
    trainer = scheduled(made())
    trainer.step = clock.counted(trainer.step)  # type: ignore[method-assign]
    assert trainer.train(ToyData().train(32), depth=4) == 20
    assert clock.waits == 0 and graphs.replays == 20
