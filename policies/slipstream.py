"""Do less work for popular rows and for inputs that teach little (Slipstream, https://arxiv.org/abs/2404.04270).

The paper compares popular rows with snapshots of themselves. It calls those that hardly moved stale, and skips their
updates, or inputs all of whose rows are stale. The skip rules `updates` and `inputs` do this, as far as the paper's
abstract and summaries tell; its body could not be read. Both cost accuracy, and neither saves time
(docs/explanation/skipping.md). So this policy carries the rules that do better there:

- Updates of popular rows wait, and are applied at every k-th visit (`defer`). Nothing is lost. The movement of the most
  popular rows is measured, so reports show how many are at rest.
- Inputs that a cheap prediction gets right are dropped, and the others weighted (`predicted`). This saves the dense
  part's work, too.
"""

import numpy as np
from numpy.typing import NDArray

from adaptive import Policy, RowStats
from adaptive.policies.rules.defer import Defer
from adaptive.policies.rules.predicted import Predicted


class Slipstream(Policy):
    """A row is worth its lookups so far. Updates of popular rows wait, and predictable inputs are dropped.

    Skipping must be switched on (`SkipConfig`). `--skip RULE` replaces both rules by another one, `--skip off` removes
    them.
    """

    order = ("accesses",)

    def __init__(self) -> None:
        self.rule = RowsAndInputs()

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.accesses


class RowsAndInputs(Predicted):
    """The rules `defer` and `predicted` together, with their defaults."""

    def __init__(self) -> None:
        super().__init__()
        self._rows = Defer()
        self.begin("adagrad")

    def begin(self, optimizer: str) -> None:
        self._rows.begin(optimizer)
        self.every, self.at_most = self._rows.every, self._rows.at_most
