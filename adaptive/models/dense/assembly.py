"""Build a model from its name and settings, with projections for tables of other widths.

Projections are the mixed dimensions of Ginart et al. (arXiv 1909.11810): v' = P v, with P (D, width) and no bias for
each table whose width differs from the model's.

Letters: B samples, F features, D the model's width.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from .attention import DIN
from .base import Inputs
from .crosses import DCN, DeepFM
from .dlrm import DLRM, TBSM

MODELS: dict[str, Callable[..., nn.Module]] = {
    "dcn": DCN,
    "deepfm": DeepFM,
    "din": DIN,
}


def build_model(name: str, config: Any, inputs: Inputs, *, seed: int = 0) -> nn.Module:
    """Return the model `name`, on the CPU, for pooled vectors (B, F, `embedding_dim`).

    Args:
        config: the model's settings as attributes: a class of `adaptive.models.model_settings`, or that of an export.

    Raises:
        ValueError: if it does not fit the samples.
    """
    model: nn.Module
    sizes = {"num_dense": inputs.num_dense, "num_features": inputs.num_features}
    if name == "tbsm":
        model = TBSM(config, **sizes, steps=inputs.steps, seed=seed)
    elif name == "dlrm":
        model = DLRM(config, **sizes, seed=seed)
    else:
        model = MODELS[name](config, inputs, seed=seed)
    return model


def widened(model: nn.Module, config: Any, inputs: Inputs, *, seed: int = 0) -> nn.Module:
    """Return the model, with projections if a table's width is not `config.embedding_dim`."""
    if all(width == config.embedding_dim for width in config.widths.values()):
        return model
    return Widened(model, inputs.tables, config.widths, config.embedding_dim, seed=seed)


def offered(inputs: Inputs, embedding_dim: int, seed: int) -> dict[str, object]:
    """Return the arguments that the `__init__` of a user-defined model may have."""
    sizes = {"num_dense": inputs.num_dense, "num_features": inputs.num_features, "embedding_dim": embedding_dim}
    return {**sizes, "inputs": inputs, "seed": seed}


class Widened(nn.Module):
    """A model with projections of its tables.

    Args:
        tables: (F,) table of each feature.
        widths: table -> width of its rows, if it is not `width`.
        width: of the model's vectors.
        seed: of the projections' initial values, which are uniform and preserve the size of vectors.
    """

    takes_widths = True
    """True: vectors are concatenated, (B, sum of widths), not stacked."""

    def __init__(
        self, model: nn.Module, tables: Sequence[str], widths: Mapping[str, int], width: int, *, seed: int
    ) -> None:
        super().__init__()
        self.model, self.width = model, width
        self.tables = tuple(tables)
        numbered = enumerate(dict.fromkeys(tables))
        self.numbers = {table: number for number, table in numbered if widths.get(table, width) != width}
        generator = torch.Generator().manual_seed(seed ^ 2**62)
        self.matrices = nn.ParameterDict()
        for table, number in self.numbers.items():
            bound = (3 / widths[table]) ** 0.5
            values = torch.empty(width, widths[table]).uniform_(-bound, bound, generator=generator)
            self.matrices[str(number)] = nn.Parameter(values)  # by number: names of tables may contain dots
        ends = list(accumulate(widths.get(table, width) for table in tables))
        self.spans = [slice(end - widths.get(table, width), end) for table, end in zip(tables, ends, strict=True)]

    def set_output_bias(self, logits: Tensor) -> None:
        """Set the bias to log odds (1,), if the model can; see `start_at_base_rate`."""
        set_output_bias = getattr(self.model, "set_output_bias", None)
        if set_output_bias is not None:
            set_output_bias(logits)

    def forward(self, dense: Tensor, vectors: Tensor) -> Tensor:
        """Return the logits for `dense` and `vectors` (B, sum of widths), feature by feature."""
        parts = [self._widened(vectors[:, span], table) for table, span in zip(self.tables, self.spans, strict=True)]
        logits: Tensor = self.model(dense, torch.stack(parts, dim=1))
        return logits

    def _widened(self, vectors: Tensor, table: str) -> Tensor:
        return vectors @ self.matrices[str(self.numbers[table])].T if table in self.numbers else vectors
