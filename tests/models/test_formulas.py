"""DCN-v2 and DeepFM against the formulas, written out sample by sample."""

import re
from itertools import combinations
from typing import Any

import pytest
import torch
from support.formulas import WIDTH, arguments, assert_is_formula, mlp, shift_weights
from torch import Tensor, nn

from adaptive.errors import ConfigError
from adaptive.models.dense.base import Inputs
from adaptive.models.dense.crosses import DCN, DeepFM
from adaptive.models.factory import make_model, model_config
from adaptive.models.model_settings import OPTIONS, DCNConfig, DeepFMConfig

INPUTS = Inputs(tables=("user", "item", "item", "site"), num_dense=2, dense_names=("age", "price"))
SETTINGS: dict[str, dict[str, Any]] = {
    "dcn": {"deep_mlp": (6, 3)},
    "deepfm": {"deep_mlp": (6,)},
    "dlrm": {"bottom_mlp": (5, WIDTH), "top_mlp": (6, 1)},
}
OF_SEQUENCES = ("tbsm", "din")


def check(model: nn.Module, by_hand: Any) -> None:
    shift_weights(model)
    assert_is_formula(model, by_hand, INPUTS)


@pytest.mark.parametrize("rank", [None, 1, 3])
@pytest.mark.parametrize("depth", [1, 3])
def test_dcn_is_the_paper_s(rank: int | None, depth: int) -> None:
    """Equation (1): x_{l+1} = x_0 * (W_l x_l + b_l) + x_l, with W_l = U_l V_l' of low rank in equation (2)."""
    model = DCN(DCNConfig(embedding_dim=WIDTH, cross_layers=depth, cross_rank=rank, deep_mlp=(6, 3)), INPUTS)

    def by_hand(dense: Tensor, vectors: Tensor) -> Tensor:
        first = crossed = torch.cat([dense, *vectors])
        for layer in model.cross:
            matrix = layer.up.weight if layer.down is None else layer.up.weight @ layer.down.weight
            crossed = first * (matrix @ crossed + layer.up.bias) + crossed
        joined = torch.cat([crossed, mlp(model.deep, first)])
        return (model.last.weight @ joined + model.last.bias)[0]

    check(model, by_hand)
    assert rank is None or model.cross[0].up.weight.shape == (18, rank)


def test_the_pairs_of_deepfm_are_the_pairwise_sum() -> None:
    """Rendle's identity against the sum over all pairs, of features and of dense inputs with their values."""
    model = DeepFM(DeepFMConfig(embedding_dim=WIDTH, deep_mlp=(6,)), INPUTS)

    def by_hand(dense: Tensor, vectors: Tensor) -> Tensor:
        fields = [*vectors[:, 1:], *(x * v for x, v in zip(dense, model.dense_factors, strict=True))]
        pairs = sum(torch.dot(one, other) for one, other in combinations(fields, 2))
        first = model.bias + vectors[:, 0].sum() + torch.dot(dense, model.dense_weights)
        return first + pairs + mlp(model.deep, torch.cat([dense, *vectors[:, 1:]]))[0]

    check(model, by_hand)


# --- what all have in common -----------------------------------------------------------------------------------------

SEQUENCES = Inputs(tuple(table for table in ("user", "item") for _ in range(3)), 6, steps=3)
EVERY = {**{name: (SETTINGS[name], INPUTS) for name in SETTINGS}, **{name: ({}, SEQUENCES) for name in OF_SEQUENCES}}


def made(name: str, seed: int = 0, **more: Any) -> nn.Module:
    settings, inputs = EVERY[name]
    return make_model(name, model_config(name, {"embedding_dim": WIDTH, **settings, **more}, inputs), inputs, seed=seed)


@pytest.mark.parametrize("name", EVERY)
def test_weights_follow_from_the_seed_alone(name: str) -> None:
    widths = {} if name in OF_SEQUENCES else {"widths": {"item": 2}}
    before = torch.get_rng_state()
    one, same, other = (made(name, seed, **widths) for seed in (7, 7, 8))
    assert torch.equal(torch.get_rng_state(), before)
    for (key, value), (_, equal) in zip(one.state_dict().items(), same.state_dict().items(), strict=True):
        assert torch.equal(value, equal), key
    assert any(not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", EVERY)
def test_wrong_shapes_are_refused(name: str) -> None:
    model, (dense, pooled) = made(name), (tensor.float() for tensor in arguments(EVERY[name][1]))
    assert model(dense, pooled).shape == (5,)
    expected = f"expected dense {tuple(dense.shape)} and pooled {tuple(pooled.shape)}, got"
    for wrong in ((dense, pooled[:, :, 1:]), (dense, pooled[:, 1:]), (dense[:, 1:], pooled)):
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor in wrong)
        with pytest.raises(ValueError, match=re.escape(f"{expected} {shapes}")):
            model(*wrong)


@pytest.mark.parametrize("name", EVERY)
def test_bf16_rounds_matrix_products_and_gives_float32(name: str) -> None:
    exact, rounded = (made(name, bf16=bf16) for bf16 in (False, True))
    dense, pooled = (tensor.float() for tensor in arguments(EVERY[name][1]))
    pooled.requires_grad_()
    logits = rounded(dense, pooled)
    logits.sum().backward()
    assert logits.dtype == pooled.grad.dtype == torch.float32
    assert all(weight.dtype == torch.float32 for weight in rounded.parameters())
    torch.testing.assert_close(logits, exact(dense, pooled), rtol=0.05, atol=0.05)
    assert not torch.equal(logits, exact(dense, pooled))


@pytest.mark.parametrize("name", SETTINGS)
def test_tables_of_other_widths_pass_their_matrix(name: str) -> None:
    model, plain = made(name, widths={"item": 3, "site": 4}), made(name)
    dense, pooled = (tensor.float() for tensor in arguments(INPUTS))
    (matrix,) = model.matrices.values()
    assert matrix.shape == (WIDTH, 3)
    narrow = pooled[:, 1:3, :3]
    wide = torch.stack([pooled[:, 0], narrow[:, 0] @ matrix.T, narrow[:, 1] @ matrix.T, pooled[:, 3]], dim=1)
    side_by_side = torch.cat([pooled[:, 0], narrow[:, 0], narrow[:, 1], pooled[:, 3]], dim=1)
    torch.testing.assert_close(model(dense, side_by_side), plain(dense, wide))


REFUSED: list[tuple[str, dict[str, Any], Inputs, str]] = [
    ("dcn", {"widths": {"you": 3}}, INPUTS, "model.widths: expected tables among user, item, site, got you"),
    ("dcn", {"widths": {"user": 0}}, INPUTS, "expected widths from 1 to 4096, got user=0"),
    ("dcnn", {}, INPUTS, "expected one of dlrm, dcn, .*file.py:Class, got 'dcnn'; did you mean dcn"),
]


@pytest.mark.parametrize(("name", "settings", "inputs", "message"), REFUSED)
def test_wrong_settings_are_refused(name: str, settings: dict[str, Any], inputs: Inputs, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_model(name, model_config(name, settings, inputs), inputs, seed=0)


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="embedding_dim of 2 or more"):
        DeepFMConfig(embedding_dim=1)
    assert set(EVERY) == set(OPTIONS)
