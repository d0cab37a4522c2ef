"""From a model's name and settings to the model, behind matrices for tables of other widths.

Matrices as the mixed dimensions of Ginart et al. (arXiv 1909.11810): v' = P v, with P (D, width) for each table that
has another width than the model wants, no bias. Tables of the model's own width go past it.

Letters: B samples, F features, D the model's width.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from .base import CheckedModel, Inputs, Tasks
from .crosses import DCN, DeepFM
from .dlrm import DLRM, TBSM
from .multi_task import MultiTask
from .two_tower import TwoTower

CHECKED: dict[str, Callable[..., CheckedModel]] = {
    "dcn": DCN,
    "deepfm": DeepFM,
    "two-tower": TwoTower,
    "multi-task": MultiTask,
}


def build_model(name: str, config: Any, inputs: Inputs, *, seed: int = 0) -> nn.Module:
    """The model `name`, on the CPU, of pooled vectors (B, F, `embedding_dim`).

    Args:
        config: the model's settings as attributes, of `adaptive.models.model_settings` or as an export has them.

    Raises:
        ValueError: if it does not fit the samples.
    """
    if name == "tbsm":
        return TBSM(config, num_dense=inputs.num_dense, num_features=inputs.num_features, steps=inputs.steps, seed=seed)
    if name == "dlrm":
        return DLRM(config, num_dense=inputs.num_dense, num_features=inputs.num_features, seed=seed)
    return CHECKED[name](config, inputs, seed=seed)


def widened(model: nn.Module, config: Any, inputs: Inputs, *, seed: int = 0) -> nn.Module:
    """The model; behind matrices, if a table has another width than `config.embedding_dim`."""
    if all(width == config.embedding_dim for width in config.widths.values()):
        return model
    return Widened(model, inputs.tables, config.widths, config.embedding_dim, seed=seed)


def offered(inputs: Inputs, embedding_dim: int, seed: int) -> dict[str, object]:
    """What the `__init__` of a user-defined model may ask for by name."""
    sizes = {"num_dense": inputs.num_dense, "num_features": inputs.num_features, "embedding_dim": embedding_dim}
    return {**sizes, "inputs": inputs, "seed": seed}


class Widened(nn.Module):
    """A model behind the matrices of its tables.

    Args:
        tables: (F,) table of each feature.
        widths: table -> width of its rows, where it is not `width`.
        width: that the model wants.
        seed: of the matrices' initial values: uniform, such that vectors keep their size.
    """

    takes_widths = True
    """Vectors are given side by side, (B, sum of widths), and not stacked."""

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
            self.matrices[str(number)] = nn.Parameter(values)  # by number: names of tables may hold dots
        ends = list(accumulate(widths.get(table, width) for table in tables))
        self.spans = [slice(end - widths.get(table, width), end) for table, end in zip(tables, ends, strict=True)]

    def set_output_bias(self, logits: Tensor) -> None:
        """Start at log odds (T,), if the model can; see `adaptive.models.tasks.start_at_base_rate`."""
        set_output_bias = getattr(self.model, "set_output_bias", None)
        if set_output_bias is not None:
            set_output_bias(logits)

    @property
    def tasks(self) -> Tasks | None:
        tasks = getattr(self.model, "tasks", None)
        return tasks if isinstance(tasks, Tasks) else None

    def forward(self, dense: Tensor, vectors: Tensor) -> Tensor:
        """What the model gives of `dense` and of `vectors` (B, sum of widths), feature by feature."""
        parts = [self._widened(vectors[:, span], table) for table, span in zip(self.tables, self.spans, strict=True)]
        logits: Tensor = self.model(dense, torch.stack(parts, dim=1))
        return logits

    def _widened(self, vectors: Tensor, table: str) -> Tensor:
        return vectors @ self.matrices[str(self.numbers[table])].T if table in self.numbers else vectors
