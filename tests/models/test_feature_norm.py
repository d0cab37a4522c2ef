"""Normalisation of pooled vectors: the two modules against slow twins, and their place in a DLRM."""

from typing import Any

import numpy as np
import pytest
import reference
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive.models.dense.base import BatchFeatureNorm, LayerFeatureNorm, feature_norm
from adaptive.models.dense.dlrm import DLRM
from adaptive.models.model_settings import DLRMConfig

FEATURES, WIDTH = 3, 4


def vectors(samples: int, seed: int, spread: float = 1.0) -> NDArray[np.float64]:
    random = np.random.default_rng(seed)
    shift = random.normal(size=(FEATURES, WIDTH))
    return spread * (random.normal(size=(samples, FEATURES, WIDTH)) + shift)


def randomised(module: nn.Module) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scale and shift, drawn."""
    random = np.random.default_rng(9)
    for weight in module.parameters():
        weight.data = torch.from_numpy(random.normal(size=(FEATURES, WIDTH)))
    scale, shift = (weight.detach().numpy() for weight in module.parameters())
    return scale, shift


@pytest.mark.parametrize("samples", [0, 1, 7])
@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_layer_is_its_twin(samples: int, spread: float) -> None:
    module = LayerFeatureNorm(FEATURES, WIDTH).double()
    pooled = vectors(samples, 1, spread)
    expected = reference.layer_feature_norm(pooled, *randomised(module))
    np.testing.assert_allclose(module(torch.from_numpy(pooled)).detach().numpy(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_batch_is_its_twin_in_training_and_evaluation(spread: float) -> None:
    """Over 14 batches, the last of one sample; then the running statistics weigh a new batch as a tenth."""
    module = BatchFeatureNorm(FEATURES, WIDTH).double()
    scale, shift = randomised(module)
    known = reference.RunningStatistics(np.zeros((FEATURES, WIDTH)), np.ones((FEATURES, WIDTH)))
    for number, samples in enumerate([1, 5, 2, 9, 3, 4, 5, 6, 7, 8, 9, 2, 3, 1]):
        for training in (True, False):
            module.train(training)
            pooled = vectors(samples, number, spread)
            actual = module(torch.from_numpy(pooled)).detach().numpy()
            expected = reference.batch_feature_norm(pooled, scale, shift, known, training=training)
            np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(module.mean.numpy(), known.mean, rtol=1e-9)
        np.testing.assert_allclose(module.variance.numpy(), known.variance, rtol=1e-9)
    assert int(module.batches) == known.batches == 12


@pytest.mark.parametrize("kind", ["batch", "layer"])
@pytest.mark.parametrize("samples", [1, 5])
def test_gradients(kind: Any, samples: int) -> None:
    module = feature_norm(kind, num_features=FEATURES, width=WIDTH).double()
    randomised(module)
    pooled = torch.from_numpy(vectors(samples, 3)).requires_grad_()
    assert torch.autograd.gradcheck(module, (pooled,))
    module(pooled).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in module.parameters())


# --- in a DLRM -------------------------------------------------------------------------------------------------------


def dlrm(**settings: Any) -> DLRM:
    config = DLRMConfig(embedding_dim=WIDTH, bottom_mlp="8-4", top_mlp="8-1", **settings)
    return DLRM(config, num_dense=2, num_features=FEATURES)


def inputs(samples: int = 6) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(np.random.default_rng(2).normal(size=(samples, 2)).astype(np.float32)), torch.from_numpy(
        vectors(samples, 4).astype(np.float32)
    )


@pytest.mark.parametrize("kind", ["batch", "layer"])
def test_normalization_changes_only_the_interacting_vectors(kind: str) -> None:
    plain, model = dlrm(), dlrm(feature_norm=kind)
    for name, weight in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight)
    dense, pooled = inputs()
    expected = plain(dense, feature_norm(kind, num_features=FEATURES, width=WIDTH)(pooled))  # type: ignore[arg-type]
    assert torch.equal(model(dense, pooled), expected)
    assert not torch.equal(expected, plain(dense, pooled))


@pytest.mark.parametrize("kind", ["batch", "layer"])
def test_bfloat16_is_for_the_mlps_only(kind: str) -> None:
    model = dlrm(feature_norm=kind, bf16=True)
    seen: list[torch.dtype] = []
    model.feature_norm.register_forward_hook(lambda module, given, result: seen.append(result.dtype))
    model(*inputs())
    assert seen == [torch.float32]
