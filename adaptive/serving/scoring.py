"""Score samples with an exported model: torch and numpy are all it takes. A copy of this file lies in each export.

    import scoring
    model = scoring.load("DIR")                                    # the folder of the export
    model.score([{"user": "4711", "price": 3.5, "tags": ["a"]}])   # probabilities that labels are 1
    model(dense, bags)                                             # logits of rows that are known already

As a program: `python DIR/scoring.py < samples.jsonl` prints a score a line.

Letters: B samples, F features, D width of an embedding vector, S steps of a sample that is a sequence.
"""

import importlib.util
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize

EPSILON = 1e-5  # of normalised features
REMEDY = "The file is damaged or of another model. Export the run again."


def load(folder: str | Path) -> "Model":
    """The model in the folder of an export. Its tables are mapped into memory: they are read as they are looked up.

    Raises:
        ValueError: for an array that is not what `model.json` says; names it.
    """
    folder = Path(folder)
    facts = json.loads((folder / "model.json").read_text("utf-8"))
    with torch.device("meta"):
        model = Model(facts, folder)
    tensors = folder / facts["tensors"]
    mapped = tensors.suffix == ".pt"
    state = torch.load(tensors, weights_only=True, mmap=True) if mapped else read_safetensors(tensors)
    check_arrays(tensors, state, model)
    model.load_state_dict(state, assign=True)
    model.values = beside("values").Values(facts, folder)
    return model.eval()


def check_arrays(path: Path, state: Mapping[str, Tensor], model: "Model") -> None:
    """Raise ValueError unless names, dtypes and shapes are those of the model, and values of the dense part finite.
    Rows of tables are checked as they are looked up; buffers of a user-defined model may hold anything."""
    expected = model.state_dict()
    for name in sorted(expected.keys() | state.keys()):
        wanted, got = (form(arrays.get(name)) for arrays in (expected, state))
        if wanted != got:
            raise ValueError(f"expected {wanted}, got {got} ({path}: {name}). {REMEDY}")
    names = dict(model.named_parameters()) if model.facts["model"]["name"] == "own" else expected
    for name in names:
        if name.startswith("dense.") and not state[name].isfinite().all():
            raise ValueError(f"expected finite values, got NaN or infinity ({path}: {name}). {REMEDY}")


def form(array: Tensor | None) -> str:
    return "no array" if array is None else f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape)}"


class Model(nn.Module):
    """Plain tables and the dense part. `load` makes one."""

    values: Any
    """How values become rows: `values.Values`."""

    def __init__(self, facts: Mapping[str, Any], folder: Path) -> None:
        super().__init__()
        self.facts = facts
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(table["rows"], table["width"], mode="sum") for table in facts["tables"]
        )
        self.dense = dense_part(facts, folder)

    def forward(self, dense: Tensor, bags: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Logits (B,), of several labels (B, T), of dense inputs (B, dense), float32, as they are after their
        transformation; and for each feature in order the rows of all its look-ups (N,) and where the look-ups of each
        sample begin (B,), both int64.

        Raises:
            ValueError: for another number of features, or a row with NaN or infinity; names its table.
        """
        features = self.facts["features"]
        if len(bags) != len(features):
            raise ValueError(f"{len(features)} features are needed, found {len(bags)}")
        pooled = [
            self.tables[feature["table"]](rows, offsets)
            for feature, (rows, offsets) in zip(features, bags, strict=True)
        ]
        for feature, one in zip(features, pooled, strict=True):
            if not one.isfinite().all():
                place = f"{self.facts['tensors']}: tables.{feature['table']}.weight"
                raise ValueError(f"expected finite values, got NaN or infinity ({place}). {REMEDY}")
        vectors = torch.cat(pooled, dim=1) if is_widened(self.facts) else torch.stack(pooled, dim=1)
        logits: Tensor = self.dense(dense, vectors)
        return logits

    @torch.no_grad()
    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The probability that its label is 1, of each sample; where there are several labels, a list of theirs in the
        order of `facts["labels"]`. A sample: name of a feature or dense input -> its value, as it
        stands in the data; of a bag a list of values, or one text with the data's separator between them. What is not
        given, or empty, is missing.

        Raises:
            ValueError: for a name that the model does not have, or a value that its column cannot hold; names both.
        """
        if not samples:
            return []
        dense, bags = self.values.inputs(samples)
        tensors = [(torch.from_numpy(rows), torch.from_numpy(starts)) for rows, starts in bags]
        found: list[Any] = torch.sigmoid(self(torch.from_numpy(dense), tensors).double()).tolist()
        return found


# -- the dense part, and which one it is ---------------------------------------------------------------------------


def dense_part(facts: Mapping[str, Any], folder: Path) -> nn.Module:
    """The dense part of a model."""
    shape = facts["model"]
    sizes = {"num_dense": len(facts["dense"]), "num_features": len(facts["features"])}
    model: nn.Module
    if shape["name"] == "tbsm":
        model = TBSM(shape, **sizes, steps=facts["steps"])
    elif shape["name"] == "dlrm":
        model = DLRM(shape, **sizes)
    elif shape["name"] == "own":
        with torch.device("cpu"):
            model = beside("dense_models").own(shape, inputs_of(facts), folder)
    else:
        norm = FEATURE_NORMS[shape["feature_norm"]](sizes["num_features"], shape["embedding_dim"])
        model = beside("dense_models").MODELS[shape["name"]](shape, inputs_of(facts), norm, layers)
    return beside("dense_models").Widened(model, shape, inputs_of(facts)) if is_widened(facts) else model


def inputs_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    tables = [facts["tables"][feature["table"]]["name"] for feature in facts["features"]]
    names = [one["name"] for one in facts["dense"]]
    labels, steps = facts.get("labels", []), facts["steps"]
    return {"tables": tables, "num_dense": len(names), "dense_names": names, "labels": labels, "steps": steps}


def is_widened(facts: Mapping[str, Any]) -> bool:
    """Whether tables have other widths than the model wants."""
    return any(table["width"] != facts["model"]["embedding_dim"] for table in facts["tables"])


def beside(name: str) -> Any:
    """The module `name.py`, which lies beside this file."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class DLRM(nn.Module):
    """Bottom MLP, interaction, top MLP. The top MLP's input is padded with zeros to a multiple of 16."""

    def __init__(self, shape: Mapping[str, Any], *, num_dense: int, num_features: int) -> None:
        super().__init__()
        self.shape = shape
        width, vectors = shape["embedding_dim"], num_features + (num_dense > 0)
        self.bottom = nn.Sequential(*layers([num_dense, *shape["bottom_mlp"]]), nn.ReLU()) if num_dense else None
        self.feature_norm = FEATURE_NORMS[shape["feature_norm"]](num_features, width)
        if shape["interaction"] == "cat":
            inputs = vectors * width
        else:
            inputs = (width if num_dense else 0) + vectors * (vectors + (1 if shape["interaction_self"] else -1)) // 2
        self.inputs = max(1, -(-inputs // 16)) * 16
        self.top = nn.Sequential(*layers([self.inputs, *shape["top_mlp"]]))

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Logits (B,) of dense (B, dense inputs) and pooled (B, F, D)."""
        return self.outputs(dense, pooled).squeeze(1)

    def outputs(self, dense: Tensor, pooled: Tensor) -> Tensor:
        pooled = self.feature_norm(pooled)
        with self.precision(dense):
            bottom = pooled.new_empty((pooled.shape[0], 0)) if self.bottom is None else self.bottom(dense)
        joined = self._interact(bottom.to(pooled.dtype), pooled)
        padding = joined.new_zeros((joined.shape[0], self.inputs - joined.shape[1]))
        with self.precision(dense):
            outputs: Tensor = self.top(torch.cat([joined, padding], dim=1))
        return outputs.to(pooled.dtype)

    def _interact(self, bottom: Tensor, pooled: Tensor) -> Tensor:
        if self.shape["interaction"] == "cat":
            return torch.cat([bottom, pooled.flatten(1)], dim=1)
        vectors = pooled if self.bottom is None else torch.cat([bottom[:, None], pooled], dim=1)
        products, n = torch.bmm(vectors, vectors.transpose(1, 2)), vectors.shape[1]
        i, j = torch.tril_indices(n, n, offset=0 if self.shape["interaction_self"] else -1)
        return torch.cat([bottom, products[:, i, j]], dim=1)

    def precision(self, dense: Tensor) -> AbstractContextManager[object]:
        return torch.autocast(dense.device.type, dtype=torch.bfloat16) if self.shape["bf16"] else nullcontext()


class TBSM(nn.Module):
    """A DLRM at every step of a history and at a candidate, an attention of the candidate to the history."""

    def __init__(self, shape: Mapping[str, Any], *, num_dense: int, num_features: int, steps: int) -> None:
        super().__init__()
        self.steps, self.num_features = steps, num_features // steps
        self.dlrm = DLRM(shape, num_dense=num_dense // steps, num_features=self.num_features)
        width = shape["top_mlp"][-1]
        self.inner = nn.Parameter(torch.empty(width, width))
        self.attention = nn.Sequential(*layers([steps - 1, *shape["attention_mlp"], steps - 1]))
        self.final = nn.Sequential(*layers([2 * width, *shape["final_mlp"]]))

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Logits (B,) of dense (B, S * dense inputs of a step) and pooled (B, F * S, D)."""
        samples, steps = pooled.shape[0], self.steps
        by_step = pooled.view(samples, self.num_features, steps, pooled.shape[2]).transpose(1, 2)
        found = self.dlrm.outputs(dense.reshape(samples * steps, -1), by_step.flatten(0, 1))
        vectors = normalize(torch.relu(found), dim=1).view(samples, steps, found.shape[1])
        history, candidate = vectors[:, :-1], vectors[:, -1]
        nearness = torch.bmm(history, (candidate @ self.inner.T @ self.inner)[:, :, None]).squeeze(2)
        with self.dlrm.precision(dense):
            weights = self.attention(nearness)
        context = torch.bmm(torch.sigmoid(weights.to(history.dtype))[:, None], history).squeeze(1)
        with self.dlrm.precision(dense):
            logits: Tensor = self.final(torch.cat([context, candidate], dim=1))
        return logits.to(pooled.dtype).squeeze(1)


class LayerNorm(nn.Module):
    def __init__(self, num_features: int, width: int) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.empty(num_features, width)) for _ in range(2))

    def forward(self, pooled: Tensor) -> Tensor:
        return layer_norm(pooled, pooled.shape[-1:], eps=EPSILON) * self.scale + self.shift


class BatchNorm(LayerNorm):
    """By the statistics of training."""

    mean: Tensor
    variance: Tensor

    def __init__(self, num_features: int, width: int) -> None:
        super().__init__(num_features, width)
        for name in ("mean", "variance"):
            self.register_buffer(name, torch.empty(num_features, width))
        self.register_buffer("batches", torch.empty((), dtype=torch.int64))

    def forward(self, pooled: Tensor) -> Tensor:
        return (pooled - self.mean) / torch.sqrt(self.variance + EPSILON) * self.scale + self.shift


FEATURE_NORMS: dict[str, Callable[[int, int], nn.Module]] = {
    "none": lambda *_: nn.Identity(),
    "layer": LayerNorm,
    "batch": BatchNorm,
}


def layers(sizes: Sequence[int]) -> list[nn.Module]:
    """Linear layers with ReLU between them."""
    found: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        found += [nn.ReLU()] if found else []
        found.append(nn.Linear(inputs, outputs))
    return found


# -- files ---------------------------------------------------------------------------------------------------------


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Name -> tensor, mapped into memory. ValueError for a dtype that no export has."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            dtype = {"F32": np.float32, "I64": np.int64}.get(entry["dtype"])
            if dtype is None:
                raise ValueError(f"expected F32 or I64, got {entry['dtype']} ({path}: {name}). {REMEDY}")
            offset, shape = 8 + size + entry["data_offsets"][0], tuple(entry["shape"])
            if math.prod(shape) < 2**16:
                array = np.fromfile(path, dtype, math.prod(shape), offset=offset).reshape(shape)
            else:
                array = np.memmap(path, dtype, mode="c", offset=offset, shape=shape)
            found[name] = torch.from_numpy(array)
    return found


if __name__ == "__main__":
    try:
        here = load(Path(__file__).parent)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(3) from None
    here.values.score_lines(here.score, sys.stdin.buffer)
