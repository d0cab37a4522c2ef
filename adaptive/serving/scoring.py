"""Score samples with an exported model, with torch and numpy only.

Each export has a copy of this file.

    import scoring
    model = scoring.load("DIR")                                    # the folder of the export
    model.score([{"user": "4711", "price": 3.5, "tags": ["a"]}])   # the probability that the label is 1
    model(dense, bags)                                             # logits from rows

As a program: `python DIR/scoring.py < samples.jsonl` prints a score per line.

Letters: B samples, F features, D width of an embedding vector, N lookups of one feature.
"""

import importlib
import importlib.util
import math
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from adaptive.serving.sample_values import ExportFacts, Sample, Values

TENSORS = "model.pt"
REMEDY = "The file is damaged or belongs to another model. Export the run again."


def load(folder: str | Path) -> "Model":
    """Load the model in the folder of an export; its tables are memory-mapped.

    Raises:
        ValueError: for an array that does not fit `model.json`.
    """
    folder = Path(folder)
    sample_values = code_of(folder, "sample_values.py")
    facts = sample_values.read_facts(folder)
    model = Model(facts, folder)
    path = folder / TENSORS
    state = torch.load(path, weights_only=True, mmap=True)
    check_arrays(path, state, model)
    model.load_state_dict(state, assign=True)
    model.values = sample_values.Values(facts, folder)
    return model.eval()


def code_of(folder: Path, file: str) -> ModuleType:
    """Import the export's own copy of a file, or of `PACKAGE/__init__.py`."""
    path = folder / file
    spec = importlib.util.spec_from_file_location(f"export_{uuid.uuid4().hex}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # so that imports, dataclasses and annotations inside the file resolve
    spec.loader.exec_module(module)
    return module


def check_arrays(path: Path, state: Mapping[str, Tensor], model: "Model") -> None:
    """Raise ValueError unless arrays fit the model and dense values are finite.

    Rows of tables are checked when they are looked up; buffers of a custom model may hold any values.
    """
    expected = model.state_dict()
    for name in sorted(expected.keys() | state.keys()):
        form, got = (_form(arrays.get(name)) for arrays in (expected, state))
        if form != got:
            raise ValueError(f"expected {form}, got {got} ({path}: {name}). {REMEDY}")
    names = dict(model.named_parameters()) if model.facts.model["name"] == "custom" else expected
    for name in names:
        if name.startswith("dense.") and not state[name].isfinite().all():
            raise ValueError(f"expected finite values, got NaN or infinity ({path}: {name}). {REMEDY}")


def _form(array: Tensor | None) -> str:
    return "no array" if array is None else f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape)}"


class Model(nn.Module):
    """Plain tables and the dense part; created by `load`."""

    values: "Values"
    """Converts samples to inputs; set by `load`."""

    def __init__(self, facts: "ExportFacts", folder: Path) -> None:
        super().__init__()
        self.facts = facts
        with torch.device("meta"):
            self.tables = nn.ModuleList(
                nn.EmbeddingBag(table.rows, table.width, mode="sum")
                if facts.row_dtype == "float32"
                else Table(table.rows, table.width)
                for table in facts.tables
            )
        self.dense: Any = dense_part(facts, folder)  # a module of the export's own code

    def forward(self, dense: Tensor, bags: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return logits (B,).

        Args:
            dense: transformed dense inputs (B, dense inputs) float32.
            bags: for each feature the rows of all lookups (N,) and the first lookup of each sample (B,), both int64.

        Raises:
            ValueError: for another number of features, or a row with NaN or infinity.
        """
        logits: Tensor = self.dense(dense, self._vectors(bags))
        return logits + math.log(self.facts.keep_negatives) if self.facts.keep_negatives < 1 else logits

    def pooled(self, bags: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Return the vectors of each feature: (B, D), or (N, D) of the steps of a sequence that the model takes."""
        return [
            self.tables[feature.table](rows, torch.arange(len(rows)) if steps else offsets)
            for feature, (rows, offsets), steps in zip(self.facts.features, bags, self._takes_steps(), strict=True)
        ]

    def _takes_steps(self) -> list[bool]:
        takes_sequences = getattr(self.dense, "takes_sequences", False)
        return [takes_sequences and bool(feature.max_length) for feature in self.facts.features]

    def _vectors(self, bags: Sequence[tuple[Tensor, Tensor]]) -> Any:
        """Return the vectors of all features, as the dense part takes them."""
        features = self.facts.features
        if len(bags) != len(features):
            raise ValueError(f"expected bags of {len(features)} features, got {len(bags)}")
        pooled, takes_steps = self.pooled(bags), self._takes_steps()
        for feature, vectors in zip(features, pooled, strict=True):
            if not torch.compiler.is_exporting() and not vectors.isfinite().all():
                place = f"{TENSORS}: tables.{feature.table}.weight"
                raise ValueError(f"expected finite values, got NaN or infinity ({place}). {REMEDY}")
        if any(takes_steps):
            ends = [torch.cat([offsets, offsets.new_tensor([len(rows)])]) for rows, offsets in bags]
            lengths = [end.diff() for end, steps in zip(ends, takes_steps, strict=True) if steps]
            return self.dense.gather(pooled, lengths)
        return torch.cat(pooled, dim=1) if self.facts.is_widened else torch.stack(pooled, dim=1)

    @torch.no_grad()
    def score(self, samples: "Sequence[Sample]") -> list[float]:
        """Return the probability of label 1 for each sample.

        A sample maps names of features and dense inputs to values as in the data; a bag is a list of values, or a text
        with the data's separator between them. Absent and empty values are missing.

        Raises:
            ValueError: for an unknown name, or a value of the wrong kind.
        """
        if not samples:
            return []
        outputs = self(*self.inputs(samples)).double()
        scores: list[float] = torch.sigmoid(outputs).tolist()
        return scores

    def inputs(self, samples: "Sequence[Sample]") -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Return the arguments of `forward` for samples as `score` takes them; ValueError as there."""
        dense, bags = self.values.inputs(samples)
        return torch.from_numpy(dense), [(torch.from_numpy(rows), torch.from_numpy(starts)) for rows, starts in bags]


class Table(nn.Module):
    """Rows in bfloat16, pooled by sum in float32."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty((rows, width), dtype=torch.bfloat16), requires_grad=False)

    def forward(self, rows: Tensor, offsets: Tensor) -> Tensor:
        vectors = self.weight[rows].float()
        return nn.functional.embedding_bag(torch.arange(len(vectors)), vectors, offsets, mode="sum")


def dense_part(facts: "ExportFacts", folder: Path) -> nn.Module:
    """Build the dense part, with random weights, from the export's copies of the model code."""
    assembly = importlib.import_module(f"{code_of(folder, 'dense/__init__.py').__name__}.assembly")
    config = SimpleNamespace(**facts.model)
    inputs = assembly.Inputs(
        tables=tuple(facts.tables[feature.table].name for feature in facts.features),
        num_dense=len(facts.dense),
        dense_names=tuple(dense.name for dense in facts.dense),
        steps=facts.steps,
        sequences={n: feature.max_length for n, feature in enumerate(facts.features) if feature.max_length},
    )
    if config.name == "custom":
        values = assembly.offered(inputs, config.embedding_dim, seed=0)
        arguments = {name: values[name] for name in config.offered} | config.settings
        model: nn.Module = getattr(code_of(folder, config.file), config.class_name)(**arguments)
    else:
        model = assembly.build_model(config.name, config, inputs)
    whole: nn.Module = assembly.widened(model, config, inputs)
    return whole


if __name__ == "__main__":
    try:
        loaded = load(Path(__file__).parent)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(3) from None
    loaded.values.score_lines(loaded.score, sys.stdin.buffer)
