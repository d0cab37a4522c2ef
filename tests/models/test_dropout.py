"""Dropout's masks: of seed, layer and step alone; a part of a batch has its samples' share of the batch's mask."""

import pytest
import torch
from torch import nn

from adaptive.models.dense.layers import Dropout, DroppedReLU, at_step, dropouts, seed_dropouts


def masked(layer: Dropout, samples: int = 50, width: int = 20) -> torch.Tensor:
    return layer(torch.ones(samples, width))


def test_a_share_is_dropped_and_the_mean_stays() -> None:
    actual = masked(Dropout(0.25), 400, 100)
    assert sorted(actual.unique().tolist()) == [0.0, pytest.approx(1 / 0.75)]
    assert abs(float((actual == 0).float().mean()) - 0.25) < 0.01


def test_masks_follow_from_seed_layer_and_step() -> None:
    model = nn.Sequential(Dropout(0.5), nn.Linear(3, 3), DroppedReLU(0.5))
    seed_dropouts(model, 3)
    one, other = dropouts(model)
    before = torch.get_rng_state()
    first = masked(one)
    assert torch.equal(first, masked(one)) and not torch.equal(first, masked(other))
    at_step(model, 1)
    assert not torch.equal(first, masked(one))
    at_step(model, 0)
    assert torch.equal(first, masked(one))
    seed_dropouts(model, 4)
    assert not torch.equal(first, masked(one))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("times", [1, 3])
def test_parts_have_their_share_of_the_mask(times: int) -> None:
    """Also where each sample has several rows, one after another, as the steps of a sequence."""
    layer = Dropout(0.5)
    at_step(layer, 2, samples=50)
    whole = masked(layer, 50 * times)
    parts = []
    for first, samples in ((0, 17), (17, 33)):
        at_step(layer, 2, first=first, samples=samples, whole=50)
        parts.append(masked(layer, samples * times))
    assert torch.equal(torch.cat(parts), whole)


def test_it_is_off_in_evaluation_and_where_the_share_is_0() -> None:
    layer = DroppedReLU(0.5).eval()
    values = torch.randn(4, 3)
    assert torch.equal(layer(values), values.clamp(min=0))
    assert torch.equal(Dropout(0.0)(values), values)
    with pytest.raises(ValueError, match="from 0 to below 1, got 1"):
        Dropout(1)


def test_gradients_of_what_is_dropped_are_0() -> None:
    layer, values = DroppedReLU(0.5), torch.randn(40, 30, requires_grad=True)
    out = layer(values)
    out.sum().backward()
    assert values.grad is not None and torch.equal(values.grad != 0, out != 0)
