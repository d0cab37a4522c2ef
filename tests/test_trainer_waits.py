"""A training step asks for numbers of the device once: where loss and gradients are known, before the update."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from contract import InParts
from support.toy import ToyData, toy_config
from support.toy_runs import assert_equal, everything
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import adaptive.training.trainer
from adaptive.errors import NonFiniteError
from adaptive.training.components import Components, build
from adaptive.training.trainer import Trainer


class Scalars(TorchDispatchMode):
    """Counts what makes a number of one value: `item`, `float`, `bool`."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@contextmanager
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], tuple[int, int]]]:
    """(numbers read one by one, tensors read whole), on the training thread."""
    whole: list[str] = []
    with monkeypatch.context() as patch, Scalars() as scalars:
        for name in ("tolist", "cpu", "nonzero"):
            method = getattr(Tensor, name)
            patch.setattr(Tensor, name, lambda self, m=method, n=name: (whole.append(n), m(self))[1])
        yield lambda: (scalars.count, len(whole))


def parts_on(device: str, policy: str = "lru") -> tuple[Components, ToyData]:
    toy = ToyData()
    tier = {"device": device, "device_rows": "100%"}
    config = toy_config(tier=tier, policy=policy, dense_optimizer={"name": "sgd", "lr": 0.1})  # counts no steps
    return build(config, toy, list(toy.train(32))), toy


@pytest.mark.parametrize("device", ["cpu", "cpu-torch"])
@pytest.mark.parametrize("policy", ["lru", "contract:InParts"])
def test_a_step_reads_once(monkeypatch: pytest.MonkeyPatch, device: str, policy: str) -> None:
    parts, toy = parts_on(device, policy)
    trainer = Trainer(parts.embeddings, parts.model, parts.optimizer)
    for planned in parts.embeddings.look_ahead(toy.train(32), depth=2):
        assert len(list(planned.parts())) > 1 or not planned.batch.part_sizes or device != "cpu"
        with reads(monkeypatch) as found:
            trainer.step(planned)
            assert found() == (0, 1)
    assert trainer.recorder.steps == 20


def test_batches_in_parts_are_among_them() -> None:
    assert any(batch.part_sizes for batch in InParts().arrange(ToyData().train(32), None))  # type: ignore[arg-type]


def test_a_non_finite_loss_leaves_no_gradients() -> None:
    parts, _ = parts_on("cpu-torch")
    trainer = Trainer(parts.embeddings, parts.model, parts.optimizer)
    expected, _ = parts_on("cpu-torch")
    good = Trainer(expected.embeddings, expected.model, expected.optimizer)
    good.train(ToyData().train(32), depth=0)
    spoilt = [*ToyData().train(32)][:3] + [*ToyData(spoil={7: math.nan}).train(32)][:1]
    with pytest.raises(NonFiniteError, match=r"step 4: the loss is nan; not finite: dense input 0; 1 of 32"):
        trainer.train(spoilt, depth=2)
    trainer.train([*ToyData().train(32)][3:], depth=2)
    assert_equal(everything(parts), everything(expected))


def test_sums_that_overflow_are_looked_at_closely_and_let_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, toy = parts_on("cpu")
    Trainer(expected.embeddings, expected.model, expected.optimizer).train(toy.train(32))
    sums = adaptive.training.trainer.sums_of_gradients
    monkeypatch.setattr(
        adaptive.training.trainer, "sums_of_gradients", lambda *given: [*sums(*given), torch.tensor(math.inf)]
    )
    found, _ = parts_on("cpu")
    Trainer(found.embeddings, found.model, found.optimizer).train(toy.train(32))
    assert_equal(everything(found), everything(expected))
