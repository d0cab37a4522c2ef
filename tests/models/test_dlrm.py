"""DLRM's dense part: layer sizes, seeds, and the padded model against the model of the paper."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adaptive.errors import ConfigError
from adaptive.models.dense.dlrm import DLRM
from adaptive.models.dense.interactions import plain_dot_interaction
from adaptive.models.model_settings import DLRMConfig, parse_mlp

NUM_DENSE, NUM_FEATURES = 13, 26


def make_model(*, num_dense: int = NUM_DENSE, num_features: int = NUM_FEATURES, **settings: Any) -> DLRM:
    return DLRM(DLRMConfig(**settings), num_dense=num_dense, num_features=num_features)


def make_inputs(model: DLRM, num_samples: int = 33) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    dense = torch.randn((num_samples, model.num_dense), generator=generator)
    shape = (num_samples, model.num_features, model.config.embedding_dim)
    return dense, torch.randn(shape, generator=generator)


def linears(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "'' at position 1"),
        ("512--16", "'' at position 2"),
        ("512-x-16", "'x' at position 2"),
        ("512-0", "'0' at position 2"),
        ("64,16", "'64,16' at position 1"),
        ("64-1.5", "'1.5' at position 2"),
        ("64-٣", "'٣' at position 2"),
    ],
)
def test_parse_mlp_errors(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match="positive whole number") as caught:
        parse_mlp(text)
    assert named in str(caught.value)


def test_the_default_bottom_mlp_ends_with_the_width() -> None:
    assert DLRMConfig().bottom_mlp == (64, 16)
    assert DLRMConfig(embedding_dim=32).bottom_mlp == (64, 32)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bottom_mlp": "64-32"}, "expected bottom_mlp to end with embedding_dim = 16, got 64-32"),
        ({"top_mlp": "64-2"}, r"expected top_mlp to end with 1 \(the logit\), got 64-2"),
        ({"top_mlp": []}, "at least 1 item"),
        ({"bottom_mlp": "a-16"}, "'a' at position 1"),
        ({"bottom_mlp": [0, 16]}, "greater than or equal to 1"),
        ({"interaction": "product"}, "'dot' or 'cat'"),
        ({"dropout": 1.0}, "less than 1"),
        ({"experts": 2}, "experts: unknown key"),
    ],
)
def test_config_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DLRMConfig(**settings)


@pytest.mark.parametrize("num_dense", [0, 1, 13])
@pytest.mark.parametrize(
    ("interaction", "num_features"), [("dot", 2), ("dot", 26), ("cat", 1), ("cat", 2), ("cat", 26)]
)
def test_shapes(num_dense: int, num_features: int, interaction: str) -> None:
    model = make_model(num_dense=num_dense, num_features=num_features, interaction=interaction)
    dense, pooled = make_inputs(model, 7)
    pooled.requires_grad_()
    logits = model(dense, pooled)
    assert logits.shape == (7,)
    assert logits.dtype == torch.float32
    logits.sum().backward()
    assert pooled.grad is not None
    assert pooled.grad.shape == pooled.shape
    assert all(weight.grad is not None for weight in model.parameters())
    assert model(dense[:0], pooled[:0]).shape == (0,)


def test_nothing_to_interact() -> None:
    with pytest.raises(ValueError, match="got one feature and no dense inputs"):
        make_model(num_dense=0, num_features=1)
    model = make_model(num_dense=1, num_features=1)
    assert model(*make_inputs(model, 2)).shape == (2,)


def paper_logits(model: DLRM, dense: Tensor, pooled: Tensor) -> Tensor:
    """The model without padding, without fusion, in float64, from the same weights."""
    copy = make_model(**model.config.model_dump()).double()
    copy.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    assert copy.bottom is not None
    joined = plain_dot_interaction(copy.bottom(dense.double()), pooled.double())[:, : 16 + 351]
    first = copy.top[0]
    hidden = joined @ first.weight[:, : 16 + 351].T + first.bias
    return copy.top[1:](hidden).squeeze(1)


def test_equals_the_model_without_padding() -> None:
    model = make_model()
    dense, pooled = make_inputs(model)
    torch.testing.assert_close(model(dense, pooled).double(), paper_logits(model, dense, pooled), rtol=1e-4, atol=1e-4)


def test_padding_stays_zero_while_training() -> None:
    model = make_model()
    width = NUM_FEATURES * (NUM_FEATURES + 1) // 2 + 16
    first = linears(model.top)[0]
    assert first.weight.shape[1] == width + 1
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    before = first.weight.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        model(*make_inputs(model)).square().mean().backward()
        optimizer.step()
    assert not first.weight[:, width:].any()
    assert (first.weight[:, :width] != before[:, :width]).any()


def test_initial_values_have_dlrms_deviations() -> None:
    model = make_model(bottom_mlp="512-256-16", top_mlp="512-256-1")
    for layer in linears(model):
        num_outputs, num_inputs = layer.weight.shape
        if layer is model.top[0]:
            num_inputs -= 1  # padding
            assert not layer.weight[:, num_inputs:].any()
        weight = layer.weight[:, :num_inputs]
        expected = (2 / (num_inputs + num_outputs)) ** 0.5
        # five standard errors of a deviation from so many draws
        assert abs(weight.std() / expected - 1) < 5 / (2 * weight.numel()) ** 0.5
        if num_outputs > 100:
            assert abs(layer.bias.std() * num_outputs**0.5 - 1) < 5 / (2 * num_outputs) ** 0.5


def test_compiles_in_one_graph() -> None:
    model = make_model()
    inputs = make_inputs(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-4, atol=1e-4)
