"""Do less work for saturated rows and predictable inputs, after Slipstream (https://arxiv.org/abs/2404.04270).

The paper compares popular rows with snapshots of themselves. Rows that hardly moved are stale, and inputs all of whose
rows are stale are dropped (`examples/papers/slipstream_rule.py`). This policy carries the rules that do better
(docs/explanation/skipping.md):

- Updates of saturated rows are postponed and applied together (`defer`). Nothing is lost. On one machine this costs a
  few percent of the time, so it stops where the other rule does not pay.
- Inputs that a cheap prediction gets right are dropped, and the others weighted (`predicted`). This saves the dense
  part's work, too.
"""

import numpy as np
from numpy.typing import NDArray

from adaptive import Policy, RowStats, SkipRule
from adaptive.policies.rules.defer import Defer
from adaptive.policies.rules.predicted import Predicted


class Slipstream(Policy):
    """A row is worth its lookups so far. Updates of saturated rows wait, and predictable inputs are dropped.

    Skipping must be switched on (`SkipConfig`). `--skip RULE` replaces both rules by another one, `--skip off` removes
    them.
    """

    order = ("accesses",)

    def __init__(self) -> None:
        self.rule = DeferAndPredict()

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.accesses


class DeferAndPredict(Predicted):
    """The rules `defer` and `predicted` together, with their defaults."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: SkipRule = Defer()
        self.begin("adagrad")

    def begin(self, optimizer: str) -> None:
        self.rows.begin(optimizer)
        self.most = self.rows.most

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        return self.rows.visits(rows)
