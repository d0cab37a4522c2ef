"""DIN against the paper's formulas, written out sample by sample and step by step."""

from typing import Any

import pytest
import torch
from support.formulas import WIDTH, assert_is_formula, mlp, shift_weights
from torch import Tensor, nn

from adaptive.errors import ConfigError
from adaptive.models.dense.attention import DIN
from adaptive.models.dense.base import Inputs
from adaptive.models.factory import make_model, model_config

STEPS = 4
INPUTS = Inputs(tuple(table for table in ("user", "item") for _ in range(STEPS)), 2 * STEPS, steps=STEPS)


def make(**settings: Any) -> DIN:
    config = model_config("din", {"embedding_dim": WIDTH, "deep_mlp": (6,), **settings}, INPUTS)
    model = make_model("din", config, INPUTS, seed=0)
    assert isinstance(model, DIN)
    shift_weights(model)
    return model


def din_by_hand(model: DIN, vectors: Tensor, histories: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Sums of each history (L, D), and the candidates, which are among `vectors` (P, D)."""
    sums = []
    for net, place, history in zip(model.attentions, model.candidates, histories, strict=True):
        total, candidate = torch.zeros(WIDTH).double(), vectors[place]
        for step in history:
            assert isinstance(net, nn.Sequential)
            weight = mlp(net, torch.cat([step, candidate, step - candidate, step * candidate]))
            total = total + weight * step
        sums.append(total)
    return sums, [vectors[place] for place in model.candidates]


def test_logits_and_gradients_are_those_of_the_formula() -> None:
    model = make(attention_mlp=(5, 3))

    def sample_by_hand(dense: Tensor, vectors: Tensor) -> Tensor:
        steps = vectors.view(2, STEPS, WIDTH)
        attended, candidates = din_by_hand(model, steps[:, -1], [table[:-1] for table in steps])
        attended += [table[:-1].sum(0) for table in steps]
        candidates += list(steps[:, -1])
        products = [part * candidate for part, candidate in zip(attended, candidates, strict=True)]
        dots = [product.sum()[None] for product in products]
        return mlp(model.deep, torch.cat([dense, *steps[:, -1], *attended, *products, *dots]))[0]

    assert_is_formula(model, sample_by_hand, INPUTS)


def test_samples_without_sequences_are_refused() -> None:
    single = Inputs(("user", "item"), 1)
    with pytest.raises(ConfigError, match="model din: expected samples that are sequences, got none"):
        make_model("din", model_config("din", {}, single), single, seed=0)
