"""Dropout draws from torch's generator, which the trainer seeds by seed, step and part."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.toy import SMALL_DLRM, ToyData, toy_config
from torch import nn

from adaptive.data.dataset import by_table
from adaptive.models.dense.layers import DroppedReLU
from adaptive.training.components import build
from adaptive.training.trainer import Trainer


@contextmanager
def opened(seed: int) -> Iterator[tuple[Trainer, list[NDArray[np.bool_]]]]:
    """A trainer, and the masks of its model's last dropout."""
    torch.manual_seed(seed)
    options = {**SMALL_DLRM, "top_mlp": (64, 1), "dropout": 0.5}
    parts = build(toy_config(model_options=options), by_table(ToyData()))
    masks: list[NDArray[np.bool_]] = []
    (dropped,) = (module for module in parts.model.top if isinstance(module, DroppedReLU))
    dropped.register_forward_hook(lambda module, inputs, out: masks.append((out == 0)[inputs[0] > 0].numpy()))
    with parts.embeddings:
        yield Trainer(parts.embeddings, parts.model, parts.optimizer), masks


def test_masks_follow_from_seed_step_and_part() -> None:
    """Whatever torch's generator is at, which stays where it is."""
    (batch, *_) = by_table(ToyData()).train(32)
    masks = {}
    for name, seed, step in (("one", 0, 0), ("same", 0, 0), ("step", 0, 1), ("seed", 1, 0)):
        with opened(seed) as (trainer, seen):
            trainer.recorder.steps = step
            torch.rand(len(name))
            before = torch.get_rng_state()
            trainer.train([batch])
            assert torch.equal(torch.get_rng_state(), before)
            masks[name] = seen[0]
    assert 0.3 < masks["one"].mean() < 0.7
    assert np.array_equal(masks["one"], masks["same"])
    assert not np.array_equal(masks["one"], masks["step"]) and not np.array_equal(masks["one"], masks["seed"])


def test_a_model_of_ones_own_with_dropout_repeats() -> None:
    def trained() -> list[torch.Tensor]:
        torch.manual_seed(3)
        parts = build(toy_config(model_options=SMALL_DLRM), by_table(ToyData()))
        parts.model.top.insert(1, nn.Dropout(0.5))  # type: ignore[union-attr,operator]
        with parts.embeddings:
            for batch in by_table(ToyData()).train(32):
                torch.rand(1)  # somebody else draws
                Trainer(parts.embeddings, parts.model, parts.optimizer).train([batch])
            return [weight.detach().clone() for weight in parts.model.parameters()]

    assert all(map(torch.equal, trained(), trained()))


def test_dropped_values_and_their_gradients_are_0() -> None:
    layer, values = DroppedReLU(0.5), torch.randn(40, 30, requires_grad=True)
    out: Any = layer(values)
    out.sum().backward()
    assert values.grad is not None and torch.equal(values.grad != 0, out != 0)
    assert torch.equal(layer.eval()(values), values.clamp(min=0))
    with pytest.raises(ValueError, match="dropout probability"):
        DroppedReLU(1.5)
