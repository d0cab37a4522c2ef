"""Tables of several widths before a model that wants one: a learnt matrix for each table that has another width.

As the mixed dimensions of Ginart et al. (arXiv 1909.11810): v' = P v, with P (D, width) for each table, no bias. Tables
of the model's own width go past it.

Letters: B samples, F features, D the model's width.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from adaptive.models.tasks import Tasks, tasks_of


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
        return tasks_of(self.model)

    def forward(self, dense: Tensor, vectors: Tensor) -> Tensor:
        """What the model gives of `dense` and of `vectors` (B, sum of widths), feature by feature."""
        parts = [self._widened(vectors[:, span], table) for table, span in zip(self.tables, self.spans, strict=True)]
        found: Tensor = self.model(dense, torch.stack(parts, dim=1))
        return found

    def _widened(self, vectors: Tensor, table: str) -> Tensor:
        return vectors @ self.matrices[str(self.numbers[table])].T if table in self.numbers else vectors
