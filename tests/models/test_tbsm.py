"""TBSM against its slow twin, and its shapes, settings and initial values."""

from typing import Any

import pytest
import torch
from support.tbsm_twin import twin_logits
from torch import Tensor

from adaptive.errors import ConfigError
from adaptive.models.dense.dlrm import TBSM
from adaptive.models.model_settings import BUILT_IN_DATA, OPTIONS, TBSMConfig


def make_model(*, inputs: int = 1, features: int = 3, steps: int = 21, seed: int = 0, **settings: Any) -> TBSM:
    config = TBSMConfig(**settings)
    return TBSM(config, num_dense=inputs * steps, num_features=features * steps, steps=steps, seed=seed)


def make_inputs(model: TBSM, num_samples: int = 9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    dense = torch.rand((num_samples, model.num_dense), generator=generator)
    shape = (num_samples, model.num_features, model.config.embedding_dim)
    return dense, torch.randn(shape, generator=generator)


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ({}, {}),  # RMC1
        ({"steps": 2}, {}),
        ({"inputs": 3, "features": 2, "steps": 5}, {"attention_mlp": "7", "final_mlp": "1", "top_mlp": "4"}),
        ({"inputs": 0, "features": 4, "steps": 3}, {"embedding_dim": 5, "bottom_mlp": "5"}),
    ],
)
def test_logits_and_gradients_are_those_of_the_twin(shape: dict[str, int], settings: dict[str, Any]) -> None:
    model = make_model(**shape, **settings).double()
    actual, expected = [], []
    for forward, grads in ((model, actual), (lambda d, p: twin_logits(model, d, p), expected)):
        dense, pooled = (tensor.double() for tensor in make_inputs(model))
        pooled.requires_grad_()
        model.zero_grad()
        logits = forward(dense, pooled)
        (logits * torch.arange(1, len(logits) + 1)).sum().backward()
        grads += [logits, pooled.grad, *(weight.grad for weight in model.parameters())]
    for ours, twins in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, twins, rtol=1e-9, atol=1e-11)
    assert all(bool(gradient.any()) for gradient in actual)


def test_vectors_have_length_1_or_0() -> None:
    model = make_model()
    lengths = model._vectors(*make_inputs(model)).norm(dim=2)
    assert bool(((lengths - 1).abs() < 1e-5).logical_or(lengths == 0).all())
    with torch.no_grad():
        model.dlrm.top[-1].bias.fill_(-1e6)  # every output is cut to 0, and no gradient is lost to a division by it
    dense, pooled = make_inputs(model)
    pooled.requires_grad_()
    logits = model(dense, pooled)
    logits.sum().backward()
    assert torch.isfinite(logits).all() and pooled.grad is not None and not pooled.grad.any()


def test_sizes_of_rmc1() -> None:
    """DLRM 1-16 and 22-15-15 (22 padded to 32), attention 20-15-15-20, 30-60-1."""
    shapes = {name: tuple(weight.shape) for name, weight in make_model().named_parameters() if weight.ndim == 2}
    assert list(shapes.values()) == [
        (15, 15),
        (16, 1),
        (15, 32),
        (15, 15),
        (15, 20),
        (15, 15),
        (20, 15),
        (60, 30),
        (1, 60),
    ]


def test_initial_values_are_drawn_by_the_seed() -> None:
    other = make_model(seed=2**63 - 1).state_dict()
    assert not any(torch.equal(value, other[name]) for name, value in make_model().state_dict().items())
    wide = make_model(top_mlp="400")
    assert abs(wide.inner.std() * 400**0.5 - 1) < 0.02


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"final_mlp": "60-2"}, r"expected final_mlp to end with 1 \(the logit\), got 60-2"),
        ({"bottom_mlp": "64-8"}, "expected bottom_mlp to end with embedding_dim = 16"),
        ({"attention_mlp": "15-x"}, "'x' at position 2"),
        ({"attention": "15"}, "attention"),
    ],
)
def test_wrong_settings_of_the_model_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TBSMConfig(**settings)


def test_samples_must_be_sequences() -> None:
    with pytest.raises(ValueError, match=r"expected samples that are sequences.*--data sequences or taobao:PATH"):
        TBSM(TBSMConfig(), num_dense=13, num_features=26, steps=1)


def test_every_model_has_described_settings() -> None:
    assert set(BUILT_IN_DATA) <= set(OPTIONS)
    assert all(field.description for config in OPTIONS.values() for field in config.model_fields.values())


@pytest.mark.parametrize(("dense", "features", "named"), [(4, 3, "num_features"), (3, 4, "num_dense")])
def test_inputs_must_divide_by_the_steps(dense: int, features: int, named: str) -> None:
    with pytest.raises(ValueError, match=f"{named}: expected a multiple of the 2 steps, got 3"):
        TBSM(TBSMConfig(), num_dense=dense, num_features=features, steps=2)
