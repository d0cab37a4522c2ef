"""`RowsOptimizer`: the optimizer of rows as torch's schedulers and loops know one.

A rate belongs to the step that uses it: rows are updated by the training thread with the rate that stands in
`param_groups` then, however far ahead their batch was planned. Gradients that wait (deferral) are applied with the rate
of the batch at which they are.
"""

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch

from adaptive.errors import ConfigError
from adaptive.optim import RowOptimizer


class RowsOptimizer(torch.optim.Optimizer):
    """One parameter group for all tables: its `lr` may be changed, by a scheduler or by hand.

    `step()` is that of the embeddings; `zero_grad()` does nothing, as each batch's gradients go with it. `state_dict()`
    holds the rate; the state of rows is in the embeddings' own.
    """

    def __init__(self, optimizer: RowOptimizer, step: Callable[[float], None]) -> None:
        self._update = weakref.WeakMethod(step)  # no circle: embeddings go when nobody uses them any more
        super().__init__([torch.zeros(1)], {"lr": optimizer.lr})  # a stand-in: rows are no parameters

    @property
    def lr(self) -> float:
        """The rate of the next step.

        Raises:
            ConfigError: if it is no finite number from 0 on.
        """
        found = float(self.param_groups[0]["lr"])
        if not 0 <= found < math.inf:
            raise ConfigError(f"the rows' learning rate: a number from 0 on is needed, found {found}")
        return found

    def step(self, closure: Any = None, *, grad_scale: float = 1.0) -> None:  # type: ignore[override]
        """Update the rows of the batch whose backward pass has run; see `TieredEmbeddingBag.step`."""
        if closure is not None:
            raise ConfigError("the rows' optimizer takes no closure: their gradients come from one backward pass")
        update = self._update()
        assert update is not None, "the embeddings are gone"
        update(grad_scale)
