"""The dense parts of exported models in plain torch, but for DLRM and TBSM, which are in `scoring.py`. A copy of this
file lies beside it in each export that needs it.

Letters: B samples, F features, D width of an embedding vector, T labels.
"""

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

Shape = Mapping[str, Any]
Layers = Callable[[Sequence[int]], list[nn.Module]]


def side_by_side(dense: Tensor, pooled: Tensor) -> Tensor:
    return torch.cat([dense, pooled.flatten(1)], dim=1)


class Dense(nn.Module):
    """A dense part behind the normalisation of its vectors."""

    def __init__(self, norm: nn.Module, shape: Shape) -> None:
        super().__init__()
        self.feature_norm, self.is_rounded = norm, bool(shape.get("bf16"))

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Logits (B,), of several labels (B, T), of dense (B, dense inputs) and pooled (B, F, D)."""
        vectors = self.feature_norm(pooled)
        if not self.is_rounded:
            return self.logits(dense, vectors)
        with torch.autocast(dense.device.type, dtype=torch.bfloat16):
            return self.logits(dense, vectors).to(pooled.dtype)

    def logits(self, dense: Tensor, pooled: Tensor) -> Tensor:
        raise NotImplementedError


class Cross(nn.Module):
    """A layer of a cross network."""

    def __init__(self, width: int, rank: int | None) -> None:
        super().__init__()
        self.down = None if rank is None else nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank or width, width)

    def forward(self, first: Tensor, values: Tensor) -> Tensor:
        found: Tensor = self.up(values if self.down is None else self.down(values))
        return first * found + values


class DCN(Dense):
    """A cross network beside an MLP."""

    def __init__(self, shape: Shape, inputs: Shape, norm: nn.Module, layers: Layers) -> None:
        super().__init__(norm, shape)
        width = inputs["num_dense"] + len(inputs["tables"]) * shape["embedding_dim"]
        self.cross = nn.ModuleList(Cross(width, shape["cross_rank"]) for _ in range(shape["cross_layers"]))
        self.deep = nn.Sequential(*layers([width, *shape["deep_mlp"]]), nn.ReLU())
        self.last = nn.Linear(width + shape["deep_mlp"][-1], 1)

    def logits(self, dense: Tensor, pooled: Tensor) -> Tensor:
        first = crossed = side_by_side(dense, pooled)
        for layer in self.cross:
            crossed = layer(first, crossed)
        logits: Tensor = self.last(torch.cat([crossed, self.deep(first)], dim=1))
        return logits.squeeze(1)


class DeepFM(Dense):
    """A factorisation machine and an MLP. The first value of a vector is its first-order weight."""

    def __init__(self, shape: Shape, inputs: Shape, norm: nn.Module, layers: Layers) -> None:
        super().__init__(norm, shape)
        dense, factors = inputs["num_dense"], shape["embedding_dim"] - 1
        self.bias = nn.Parameter(torch.empty(()))
        self.dense_weights = nn.Parameter(torch.empty(dense))
        self.dense_factors = nn.Parameter(torch.empty(dense, factors))
        self.deep = nn.Sequential(*layers([dense + len(inputs["tables"]) * factors, *shape["deep_mlp"], 1]))

    def logits(self, dense: Tensor, pooled: Tensor) -> Tensor:
        weights, factors = pooled[:, :, 0], pooled[:, :, 1:]
        total = factors.sum(dim=1) + dense @ self.dense_factors
        squares = factors.square().sum(dim=(1, 2)) + dense.square() @ self.dense_factors.square().sum(dim=1)
        pairs = (total.square().sum(dim=1) - squares) / 2
        deep: Tensor = self.deep(side_by_side(dense, factors)).squeeze(1)
        return self.bias + weights.sum(dim=1) + dense @ self.dense_weights + pairs + deep


class TwoTower(Dense):
    """An MLP for the user, one for the item, and the dot product of both."""

    def __init__(self, shape: Shape, inputs: Shape, norm: nn.Module, layers: Layers) -> None:
        super().__init__(norm, shape)
        self.shape, users = shape, set(shape["user_tables"])
        names = inputs["dense_names"]
        self.features = [[n for n, t in enumerate(inputs["tables"]) if (t in users) == user] for user in (True, False)]
        items = set(shape["item_dense"])
        self.inputs = [[n for n, name in enumerate(names) if (name in items) != user] for user in (True, False)]
        widths = [
            len(own) * shape["embedding_dim"] + len(dense)
            for own, dense in zip(self.features, self.inputs, strict=True)
        ]
        self.user, self.item = (nn.Sequential(*layers([width, *shape["tower_mlp"]])) for width in widths)
        self.bias = nn.Parameter(torch.empty(()))

    def logits(self, dense: Tensor, pooled: Tensor) -> Tensor:
        user, item = self.vectors(dense, pooled)
        return (user * item).sum(dim=1) / float(self.shape["temperature"]) + self.bias

    def vectors(self, dense: Tensor, pooled: Tensor) -> list[Tensor]:
        """(B, E) of the user, (B, E) of the item."""
        found = [
            tower(side_by_side(dense[:, inputs], pooled[:, features]))
            for tower, inputs, features in zip((self.user, self.item), self.inputs, self.features, strict=True)
        ]
        return [normalize(one, dim=1) for one in found] if self.shape["unit_vectors"] else found


class MultiTask(Dense):
    """Several labels from a shared MLP, or from mixtures of experts."""

    def __init__(self, shape: Shape, inputs: Shape, norm: nn.Module, layers: Layers) -> None:
        super().__init__(norm, shape)
        width = inputs["num_dense"] + len(inputs["tables"]) * shape["embedding_dim"]
        mixed, count = shape["sharing"] == "mmoe", len(inputs["labels"])
        experts = shape["experts"] if mixed else 1
        self.shared = nn.ModuleList(
            nn.Sequential(*layers([width, *shape["shared_mlp"]]), nn.ReLU()) for _ in range(experts)
        )
        self.gates = nn.ModuleList(nn.Linear(width, experts) for _ in range(count if mixed else 0))
        sizes = [shape["shared_mlp"][-1], *shape["task_mlp"], 1]
        self.heads = nn.ModuleList(nn.Sequential(*layers(sizes)) for _ in range(count))

    def logits(self, dense: Tensor, pooled: Tensor) -> Tensor:
        values = side_by_side(dense, pooled)
        shared = torch.stack([part(values) for part in self.shared], dim=1)
        logits = []
        for task, head in enumerate(self.heads):
            mixed = shared[:, 0]
            if len(self.gates):
                mixed = torch.bmm(torch.softmax(self.gates[task](values), dim=1)[:, None], shared).squeeze(1)
            logits.append(head(mixed))
        return torch.cat(logits, dim=1)


class Widened(nn.Module):
    """A model behind the matrices of tables that have another width than it wants."""

    def __init__(self, model: nn.Module, shape: Shape, inputs: Shape) -> None:
        super().__init__()
        self.model, width, widths = model, shape["embedding_dim"], shape["widths"]
        numbered = enumerate(dict.fromkeys(inputs["tables"]))
        numbers = {table: str(number) for number, table in numbered if widths.get(table, width) != width}
        self.names = [numbers.get(table) for table in inputs["tables"]]
        self.matrices = nn.ParameterDict(
            {number: nn.Parameter(torch.empty(width, widths[table])) for table, number in numbers.items()}
        )
        self.ends = list(accumulate(widths.get(table, width) for table in inputs["tables"]))

    def forward(self, dense: Tensor, vectors: Tensor) -> Tensor:
        """Of vectors side by side, (B, sum of widths)."""
        parts = torch.tensor_split(vectors, self.ends[:-1], dim=1)
        pooled = [
            part if name is None else part @ self.matrices[name].T for part, name in zip(parts, self.names, strict=True)
        ]
        found: Tensor = self.model(dense, torch.stack(pooled, dim=1))
        return found


def own(shape: Shape, inputs: Shape, folder: Path) -> nn.Module:
    """The user's own model, from the copy of its file."""
    path = folder / shape["file"]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # so that dataclasses and annotations inside the file resolve
    spec.loader.exec_module(module)
    given = {
        "num_dense": inputs["num_dense"],
        "num_features": len(inputs["tables"]),
        "embedding_dim": shape["embedding_dim"],
        "inputs": SimpleNamespace(**inputs, num_features=len(inputs["tables"])),
        "seed": 0,
    }
    made: nn.Module = getattr(module, shape["class"])(**{name: given[name] for name in shape["given"]}, **shape["own"])
    return made


MODELS: dict[str, type[Dense]] = {"dcn": DCN, "deepfm": DeepFM, "two-tower": TwoTower, "multi-task": MultiTask}
