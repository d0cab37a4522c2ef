"""Slow twins of TBSM and of its samples: one sample, one step, one event at a time, for reading."""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adaptive.data.sampling import numbers
from adaptive.models.dense.dlrm import TBSM


def twin_logits(model: TBSM, dense: Tensor, pooled: Tensor) -> Tensor:
    """Logits (B,) of dense inputs (B, steps * inputs) and vectors (B, features * steps, D)."""
    return torch.stack([_logit(model, inputs, vectors) for inputs, vectors in zip(dense, pooled, strict=True)])


def _logit(model: TBSM, dense: Tensor, pooled: Tensor) -> Tensor:
    steps, inputs, features = model.steps, model.dlrm.num_dense, model.dlrm.num_features
    vectors = []
    for t in range(steps):
        own = [pooled[f * steps + t] for f in range(features)]
        vectors.append(_step(model, dense[t * inputs : (t + 1) * inputs], own))
    *history, candidate = vectors
    asked = model.inner.T @ (model.inner @ candidate)
    weights = torch.sigmoid(_mlp(model.attention, torch.stack([asked @ v for v in history])))
    context = torch.zeros_like(candidate)
    for weight, vector in zip(weights, history, strict=True):
        context = context + weight * vector
    return _mlp(model.final, torch.cat([context, candidate]))[0]


def _step(model: TBSM, dense: Tensor, features: list[Tensor]) -> Tensor:
    """The vector of one step: DLRM's outputs without what is negative, of length 1."""
    bottom = [] if model.dlrm.bottom is None else [torch.relu(_mlp(model.dlrm.bottom, dense))]
    vectors = [*bottom, *features]
    dots = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]
    found = torch.relu(_mlp(model.dlrm.top, torch.cat([*bottom, torch.stack(dots)])))
    length = torch.sqrt((found * found).sum())
    return found / length if length > 0 else found


def _mlp(layers: nn.Sequential, x: Tensor) -> Tensor:
    """Linear layers with ReLU between them; weights behind the inputs are padding."""
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    for number, layer in enumerate(linear):
        x = layer.weight[:, : len(x)] @ x + layer.bias
        if number < len(linear) - 1:
            x = torch.relu(x)
    return x


@dataclass(frozen=True)
class TwinSample:
    users: list[int]
    items: list[int]
    categories: list[int]
    label: int
    line: int


def twin_samples(text: str, *, history: int, most: int, seed: int) -> list[TwinSample]:
    """All samples of a text of events, in order; rows by ascending id."""
    rows = [line.split(",") for line in text.splitlines()]
    logs: dict[int, list[tuple[float, int, int, int]]] = defaultdict(list)
    for line, (user, item, category, _, time) in enumerate(rows, start=1):
        logs[int(user)].append((float(time), line, int(item), int(category)))
    users = sorted(logs)
    items, categories = sorted({int(row[1]) for row in rows}), sorted({int(row[2]) for row in rows})
    pairs = sorted({(int(row[1]), int(row[2])) for row in rows})
    draws = numbers(0, len(rows), 2 * seed)

    chosen, first = [], 0
    for user in users:
        log = logs[user] = sorted(logs[user])
        possible = list(range(history, len(log))) or [len(log) - 1]
        few = [0, 1, 3, 6]
        wanted = min(few[(len(log) - 1) // 10] if len(log) <= 40 else most, most)
        taken = sorted(possible, key=lambda place: draws[first + place])[:wanted]
        chosen += [(user, place) for place in sorted(taken)]
        first += len(log)

    found = []
    for k, (user, place) in enumerate(chosen):
        known = {item for _, _, item, _ in logs[user]}
        draw = 0
        while True:
            (u,) = numbers(draw * len(chosen) + k, 1, 2 * seed + 1)
            other = pairs[int(u * len(pairs))]
            if other[0] not in known:
                break
            draw += 1
        time, line, item, category = logs[user][place]
        before = [(item, category) for _, _, item, category in logs[user][max(0, place - history) : place]]
        for candidate, label in (((item, category), 1), (other, 0)):
            steps = [*before, candidate]
            absent = history + 1 - len(steps)
            sample = TwinSample(
                [users.index(user)] * (history + 1),
                [len(items) + 1] * absent + [items.index(one) for one, _ in steps],
                [len(categories) + 1] * absent + [categories.index(one) for _, one in steps],
                label,
                line,
            )
            found.append((time, sample))
    return [sample for _, sample in sorted(found, key=lambda one: one[0])]
