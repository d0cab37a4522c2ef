"""`Linear` in oneDNN: what torch's own layer computes, gradients of gradients included; elsewhere that layer itself."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from adaptive.models.dense import layers as dense_layers
from adaptive.models.dense.dlrm import DLRM
from adaptive.models.dense.layers import Linear
from adaptive.models.model_settings import DLRMConfig


@pytest.fixture
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Every product that may go to oneDNN does; the list gets their shapes."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    shapes: list[Any] = []
    inside = dense_layers._Product.forward

    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        shapes.append((*x.shape, len(weight)))
        return inside(ctx, x, weight, bias)

    monkeypatch.setattr(dense_layers, "multiplies_faster", lambda: True)
    monkeypatch.setattr(dense_layers, "MANY", 1)
    monkeypatch.setattr(dense_layers, "MANY_SUMS", 1)
    monkeypatch.setattr(dense_layers._Product, "forward", staticmethod(forward))
    return iter([shapes])


def layers(num_inputs: int, num_outputs: int, *, bias: bool = True) -> tuple[Linear, nn.Linear]:
    torch.manual_seed(0)
    ours, plain = Linear(num_inputs, num_outputs, bias=bias), nn.Linear(num_inputs, num_outputs, bias=bias)
    ours.load_state_dict(plain.state_dict())
    return ours, plain


@pytest.mark.parametrize("bias", [True, False])
def test_products_and_gradients_are_those_of_torch(by_onednn: Iterator[list[Any]], bias: bool) -> None:
    ours, plain = layers(37, 19, bias=bias)
    x = torch.randn(53, 37)
    actual = []
    for layer in (ours, plain):
        given = x.clone().requires_grad_()
        out = layer(given)
        (out * torch.arange(19)).sum().backward()
        actual.append([out, given.grad, *(parameter.grad for parameter in layer.parameters())])
    for one, other in zip(*actual, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert next(by_onednn) == [(53, 37, 19), (53, 19, 37), (19, 53, 37)]


def test_gradients_of_gradients(by_onednn: Iterator[list[Any]]) -> None:
    actual = []
    for layer in layers(5, 3):
        x = torch.linspace(-1, 1, 20).view(4, 5).requires_grad_()
        (first,) = torch.autograd.grad((layer(x) ** 3).sum(), x, create_graph=True)
        (first**2).sum().backward()
        actual.append((x.grad, layer.weight.grad))
    for one, other in zip(*actual, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["float64", "three dimensions", "bfloat16", "no rows", "small"])
def test_other_products_are_left_to_torch(
    kind: str, by_onednn: Iterator[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, plain = layers(6, 4)
    x = torch.randn(8, 6)
    if kind == "float64":
        ours, plain, x = ours.double(), plain.double(), x.double()
    if kind == "three dimensions":
        x = x.view(2, 4, 6)
    if kind == "no rows":
        x = x[:0]
    if kind == "small":
        monkeypatch.setattr(dense_layers, "MANY", 6 * 4 + 1)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "bfloat16"):
        assert torch.equal(ours(x), plain(x))
    assert next(by_onednn) == []


def test_padding_gets_no_gradient_in_onednn_either(by_onednn: Iterator[list[Any]]) -> None:
    """The top MLP's input has 10 columns and 6 of zeros: their weights stay 0."""
    model = DLRM(DLRMConfig(embedding_dim=4, bottom_mlp=(8, 4), top_mlp=(8, 1)), num_dense=3, num_features=3)
    loss = functional.binary_cross_entropy_with_logits(model(torch.randn(9, 3), torch.randn(9, 3, 4)), torch.ones(9))
    loss.backward()  # type: ignore[no-untyped-call]
    (first,) = [layer for layer in model.top if isinstance(layer, Linear) and layer.in_features == 16]
    assert first.weight.grad is not None
    assert (first.weight[:, 10:] == 0).all()
    assert (first.weight.grad[:, 10:] == 0).all()
    assert (first.weight.grad[:, :10] != 0).any()
    assert (9, 16, 8) in next(by_onednn)


def test_a_torch_whose_call_has_another_form_multiplies_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_form(*arguments: object) -> Tensor:
        raise TypeError("_linear_pointwise() takes 7 positional arguments")

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", other_form, raising=False)
    monkeypatch.setattr(dense_layers, "_vendor", lambda: "AuthenticAMD")
    dense_layers.multiplies_faster.cache_clear()
    assert not dense_layers.multiplies_faster()
    dense_layers.multiplies_faster.cache_clear()
