"""DIN and HSTU against the papers' formulas, written out sample by sample and step by step."""

from typing import Any

import pytest
import torch
from support.formulas import WIDTH, assert_is_formula, mlp, shift_weights
from torch import Tensor, nn

from adaptive.errors import ConfigError
from adaptive.models.dense.attention import DIN, HSTU, SequenceModel
from adaptive.models.dense.base import Inputs
from adaptive.models.factory import make_model, model_config
from adaptive.models.model_settings import DINConfig, HSTUConfig

STEPS = 4
INPUTS = Inputs(tuple(table for table in ("user", "item") for _ in range(STEPS)), 2 * STEPS, steps=STEPS)


def make(name: str, **settings: Any) -> SequenceModel:
    config = model_config(name, {"embedding_dim": WIDTH, "deep_mlp": (6,), **settings}, INPUTS)
    model = make_model(name, config, INPUTS, seed=0)
    assert isinstance(model, SequenceModel)
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


def normalized(values: Tensor) -> Tensor:
    return (values - values.mean()) / (values.var(correction=0) + 0.1).sqrt()


def hstu_by_hand(model: HSTU, vectors: Tensor, histories: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """What all layers add to the candidate, and the candidate: equations (1) to (3) of the paper, for every token."""
    tokens = [torch.stack(steps).sum(0) for steps in zip(*histories, strict=True)]
    candidate = torch.stack([vectors[place] for place in model.candidates]).sum(0)
    tokens.append(candidate)
    size = WIDTH // model.units[0].heads
    for unit in model.units:
        parts = [unit.projection.weight @ normalized(x) + unit.projection.bias for x in tokens]
        u, v, q, k = zip(*[(y * y.sigmoid()).chunk(4) for y in parts], strict=True)
        changed = []
        for i, token in enumerate(tokens):
            mixed = []
            for head in range(unit.heads):
                part = slice(head * size, (head + 1) * size)
                total = torch.zeros(size).double()
                for j in range(i + 1):
                    score = q[i][part] @ k[j][part] + unit.distance[head, i - j]
                    total = total + score * score.sigmoid() / (model.max_steps + 1) * v[j][part]
                mixed.append(total)
            gated = normalized(torch.cat(mixed)) * u[i]
            changed.append(token + unit.output.weight @ gated + unit.output.bias)
        tokens = changed
    return [tokens[-1] - candidate], [candidate]


@pytest.mark.parametrize(
    ("name", "settings", "by_hand"),
    [
        ("din", {"attention_mlp": (5, 3)}, din_by_hand),
        ("hstu", {"heads": 2, "attention_layers": 3}, hstu_by_hand),
        ("hstu", {"heads": 1, "attention_layers": 1}, hstu_by_hand),
    ],
)
def test_logits_and_gradients_are_those_of_the_formula(name: str, settings: dict[str, Any], by_hand: Any) -> None:
    model = make(name, **settings)

    def sample_by_hand(dense: Tensor, vectors: Tensor) -> Tensor:
        steps = vectors.view(2, STEPS, WIDTH)
        attended, candidates = by_hand(model, steps[:, -1], [table[:-1] for table in steps])
        attended += [table[:-1].sum(0) for table in steps]
        candidates += list(steps[:, -1])
        products = [part * candidate for part, candidate in zip(attended, candidates, strict=True)]
        dots = [product.sum()[None] for product in products]
        return mlp(model.deep, torch.cat([dense, *steps[:, -1], *attended, *products, *dots]))[0]

    assert_is_formula(model, sample_by_hand, INPUTS)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected heads that divide embedding_dim = 6, got 4"):
        HSTUConfig(embedding_dim=6, heads=4)
    with pytest.raises(ConfigError, match="expected feature_norm = none for models of sequences, got layer"):
        DINConfig(feature_norm="layer")
    for name in ("din", "hstu"):
        single = Inputs(("user", "item"), 1)
        with pytest.raises(ConfigError, match=f"model {name}: expected samples that are sequences, got none"):
            make_model(name, model_config(name, {}, single), single, seed=0)
