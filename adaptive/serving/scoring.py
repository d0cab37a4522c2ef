"""Score samples with an exported model: torch and numpy are all it takes. A copy of this file lies in each export.

    import scoring
    model = scoring.load("DIR")                                    # the folder of the export
    model.score([{"user": "4711", "price": 3.5, "tags": ["a"]}])   # probabilities that labels are 1
    model(dense, bags)                                             # logits of rows that are known already

As a program: `python DIR/scoring.py < samples.jsonl` prints a score a line.

Letters: B samples, F features, D width of an embedding vector, S steps of a sample that is a sequence.
"""

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
WORD = 2**64 - 1


def load(folder: str | Path) -> "Model":
    """The model in the folder of an export. Its tables are mapped into memory: they are read as they are looked up."""
    folder = Path(folder)
    facts = json.loads((folder / "model.json").read_text("utf-8"))
    with torch.device("meta"):
        model = Model(facts)
    tensors = folder / facts["tensors"]
    mapped = tensors.suffix == ".pt"
    state = torch.load(tensors, weights_only=True, mmap=True) if mapped else read_safetensors(tensors)
    model.load_state_dict(state, assign=True)
    model.ids = [IdMap(feature, folder) for feature in facts["features"]]
    return model.eval()


class Model(nn.Module):
    """Plain tables and the dense part. `load` makes one."""

    ids: "list[IdMap]"

    def __init__(self, facts: Mapping[str, Any]) -> None:
        super().__init__()
        self.facts = facts
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(table["rows"], table["width"], mode="sum") for table in facts["tables"]
        )
        shape = facts["model"]
        sizes = {"num_dense": len(facts["dense"]), "num_features": len(facts["features"])}
        self.dense: nn.Module
        if shape["name"] == "tbsm":
            self.dense = TBSM(shape, **sizes, steps=facts["steps"])
        else:
            self.dense = DLRM(shape, **sizes)

    def forward(self, dense: Tensor, bags: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Logits (B,) of dense inputs (B, dense), float32, as they are after their transformation; and for each feature
        in order the rows of all its look-ups (N,) and where the look-ups of each sample begin (B,), both int64."""
        features = self.facts["features"]
        if len(bags) != len(features):
            raise ValueError(f"{len(features)} features are needed, found {len(bags)}")
        pooled = [
            self.tables[feature["table"]](rows, offsets)
            for feature, (rows, offsets) in zip(features, bags, strict=True)
        ]
        logits: Tensor = self.dense(dense, torch.stack(pooled, dim=1))
        return logits

    @torch.no_grad()
    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float]:
        """The probability that its label is 1, of each sample: name of a feature or dense input -> its value, as it
        stands in the data; of a bag a list of values. What is not given, or empty, is missing."""
        if not samples:
            return []
        bags = []
        for ids in self.ids:
            rows = [ids.rows(sample.get(ids.name)) for sample in samples]
            starts = np.cumsum([0, *map(len, rows)])[:-1]
            bags.append((torch.tensor([r for one in rows for r in one], dtype=torch.int64), torch.from_numpy(starts)))
        dense = torch.tensor([[dense_input(sample, one) for one in self.facts["dense"]] for sample in samples])
        found: list[float] = torch.sigmoid(self(dense.float(), bags).double()).tolist()
        return found


def dense_input(sample: Mapping[str, Any], facts: Mapping[str, Any]) -> float:
    value = sample.get(facts["name"])
    if value is None or value == "":
        return 0.0
    return math.log1p(max(float(value), 0.0)) if facts["transform"] == "log" else float(value)


# -- from ids to rows ----------------------------------------------------------------------------------------------


class IdMap:
    """Which row of its table a value of a feature looks up."""

    def __init__(self, facts: Mapping[str, Any], folder: Path) -> None:
        self.facts, self.name = facts, facts["name"]
        if facts["rule"] == "vocabulary":
            keys = np.load(folder / facts["vocabulary"], allow_pickle=False)
            self._order = np.argsort(keys)
            self._keys = keys[self._order]

    def rows(self, value: Any) -> list[int]:
        """The rows of one sample: one, or of a bag any number."""
        if not self.facts["bag"]:
            return [self.row(value)]
        return [self.row(one) for one in value or () if one is not None and one != ""]

    def row(self, value: Any) -> int:
        """The row of one value; None or an empty text: it is missing.

        Raises:
            ValueError: for a value that has no row.
        """
        facts = self.facts
        if value is None or value == "":
            return self._special("missing", value)
        if facts["rule"] == "hash":
            return mixed(key_of(value, facts["key"])) * int(facts["rows"]) >> 64
        key = key_of(value, facts["key"])
        if facts["rule"] == "row":
            return key if 0 <= key < facts["rows"] else self._special("unknown", value)
        place = int(np.searchsorted(self._keys, key))
        if place < len(self._keys) and self._keys[place] == key:
            return int(self._order[place])
        return self._special("unknown", value)

    def _special(self, name: str, value: Any) -> int:
        row = self.facts[name]
        if row is None:
            raise ValueError(f"feature {self.name}: {value!r} has no row, and the table has none for {name} values")
        return int(row)


def key_of(value: Any, kind: str) -> int:
    """The 64-bit key of a value: a whole number itself, hex digits as a number, of a text its FNV-1a hash."""
    if kind == "int":
        return int(value)
    if kind == "hex":
        key = int(str(value), 16)
    else:
        key = 0xCBF29CE484222325
        for byte in str(value).encode():
            key = (key ^ byte) * 0x100000001B3 & WORD
    return key - 2**64 if key >= 2**63 else key


def mixed(key: int) -> int:
    """The hash of a key: the finaliser of SplitMix64."""
    x = key & WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)


# -- the dense part ------------------------------------------------------------------------------------------------


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
            bottom = pooled.new_empty((len(pooled), 0)) if self.bottom is None else self.bottom(dense)
        joined = self._interact(bottom.to(pooled.dtype), pooled)
        padding = joined.new_zeros((len(joined), self.inputs - joined.shape[1]))
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
        samples, steps = len(pooled), self.steps
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
    """Name -> tensor, mapped into memory."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            dtype = {"F32": np.float32, "I64": np.int64}[entry["dtype"]]
            offset, shape = 8 + size + entry["data_offsets"][0], tuple(entry["shape"])
            if math.prod(shape) < 2**16:
                array = np.fromfile(path, dtype, math.prod(shape), offset=offset).reshape(shape)
            else:
                array = np.memmap(path, dtype, mode="c", offset=offset, shape=shape)
            found[name] = torch.from_numpy(array)
    return found


if __name__ == "__main__":
    here = load(Path(__file__).parent)
    for text in sys.stdin:
        print(here.score([json.loads(text)])[0])
