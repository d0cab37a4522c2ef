"""`RowsOptimizer`: the optimizer of rows as torch's schedulers, loops and loss scalers know one.

A rate belongs to the step that uses it: rows are updated by the training thread with the rate that stands in
`param_groups` then, however far ahead their batch was planned. Gradients that wait (deferral) are applied with the rate
of the batch at which they are.

Rows are no parameters. What `torch.amp.GradScaler` asks of parameters it asks of a stand-in for them: whether gradients
are finite, and it divides that answer, a 1, by its scale, as it would divide gradients. By that number the gradients of
rows are multiplied before they are used. So `unscale_` and `step` of the scaler work, and no number has to be fetched
from a device. Nobody who does without a scaler pays for it.
"""

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from adaptive.errors import ConfigError
from adaptive.optim import RowOptimizer


class _StandIn(torch.Tensor):
    """(1,) in the place of all rows. Its gradient is a 1, NaN if a gradient of theirs is not finite; made when somebody
    asks for it, and None where there are no gradients."""

    find: Callable[[], Tensor | None]
    found: Tensor | None
    asked: bool

    @property
    def grad(self) -> Tensor | None:
        self.asked = True
        if self.found is None:
            self.found = self.find()
        return self.found

    @grad.setter
    def grad(self, value: Tensor | None) -> None:  # `zero_grad` of whoever goes through parameters
        return


def _stand_in(find: Callable[[], Tensor | None]) -> _StandIn:
    made = torch.zeros(1).as_subclass(_StandIn)
    made.find, made.found, made.asked = find, None, False
    return made


class RowsOptimizer(torch.optim.Optimizer):
    """One parameter group for all tables: its `lr` may be changed, by a scheduler or by hand.

    `step()` is that of the embeddings; `zero_grad()` does nothing, as each batch's gradients go with it. `state_dict()`
    holds the rate; the state of rows is in the embeddings' own.

    Args:
        optimizer: with the first rate.
        step: a method, updates rows; given by what the loss was scaled.
        finite: a method, gives a 1 (1,) on the device, NaN if a gradient is not finite; None if there is none.
    """

    def __init__(
        self, optimizer: RowOptimizer, step: Callable[[float], None], finite: Callable[[], Tensor | None]
    ) -> None:
        self._update = weakref.WeakMethod(step)  # no circle: embeddings go when nobody uses them any more
        asked = weakref.WeakMethod(finite)

        def find() -> Tensor | None:
            method = asked()
            return None if method is None else method()

        self._stand_in = _stand_in(find)
        super().__init__([self._stand_in], {"lr": optimizer.lr})

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

    @property
    def factor(self) -> Tensor | None:
        """By what gradients are still to be multiplied, (1,); None if no scaler has asked about them."""
        return self._stand_in.found

    @property
    def was_skipped(self) -> bool:
        """Whether a scaler has asked about these gradients, which are not finite, so that it took no step. Waits for
        the device."""
        found = self._stand_in.find() if self._stand_in.asked else None
        return found is not None and bool(torch.isnan(found).any())

    def multiplied(self) -> None:
        """Gradients have been multiplied by `factor`."""
        self._stand_in.found = None

    def forget(self) -> None:
        """There are no gradients any more."""
        self._stand_in.found, self._stand_in.asked = None, False

    def zero_grad(self, set_to_none: bool = True) -> None:
        return

    def step(self, closure: Any = None, *, grad_scale: float = 1.0) -> None:  # type: ignore[override]
        """Update the rows of the batch whose backward pass has run; see `TieredEmbeddingBag.step`."""
        if closure is not None:
            raise ConfigError("the rows' optimizer takes no closure: their gradients come from one backward pass")
        update = self._update()
        assert update is not None, "the embeddings are gone"
        update(grad_scale)
