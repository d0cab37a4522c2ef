"""The state of dense optimizers as plain arrays: what comes back trains on, bit for bit."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adaptive.training.runs.state import load_optimizer_arrays, optimizer_arrays

KINDS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.Adagrad, {}),
    (torch.optim.Adam, {}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.AdamW, {}),
    (torch.optim.RMSprop, {"centered": True}),
]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


def optimizer_of(net: nn.Module, kind: Any, options: dict[str, Any]) -> torch.optim.Optimizer:
    first, *others = net.parameters()
    made: torch.optim.Optimizer = kind([{"params": [first], "lr": 0.1}, {"params": others}], lr=0.05, **options)
    return made


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        inputs = torch.from_numpy(np.random.default_rng(step).normal(size=(5, 3)).astype(np.float32))
        optimizer.zero_grad()
        net(inputs).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_what_comes_back_trains_on(kind: Any, options: dict[str, Any]) -> None:
    net = model()
    optimizer = optimizer_of(net, kind, options)
    train(net, optimizer, range(5))
    arrays, other = optimizer_arrays(optimizer), copy.deepcopy(net)
    train(net, optimizer, range(5, 9))
    assert not any(value.dtype == object for value in arrays.values())
    again = optimizer_of(other, kind, options)
    load_optimizer_arrays(again, arrays)
    for name, value in optimizer_arrays(again).items():
        np.testing.assert_array_equal(value, arrays[name], strict=True)
    train(other, again, range(5, 9))
    for mine, theirs in zip(other.parameters(), net.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert again.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"4.step": np.float32(1)}, r"expected an array of parameters 0 to 3, got '4\.step'"),
        ({"-1.step": np.float32(1)}, "parameters 0 to 3"),
        ({"sum": np.float32(1)}, "parameters 0 to 3"),
        (
            {"0.sum": np.zeros((3, 4), np.float32)},
            r"optimizer 0\.sum: expected float32 \(4, 3\), got float32 \(3, 4\)",
        ),
    ],
)
def test_arrays_of_other_parameters_are_refused(arrays: Any, message: str) -> None:
    net = model()
    with pytest.raises(ValueError, match=message):
        load_optimizer_arrays(optimizer_of(net, torch.optim.Adagrad, {}), arrays)
