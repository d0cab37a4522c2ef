"""What keeps values from being read, saved or trained on where a step was not finite, or is not known to be.

*Unchecked* is a step that has updated rows before its loss and gradients were looked at (`Trainer` with
`finite_check="a_step_later"`). If they turn out not to be finite, the tables are *spoiled*: nobody sees their values.
"""

from collections.abc import Callable

from torch import Tensor

from adaptive.embedding.base import Base
from adaptive.errors import NonFiniteError


class Unspoiled(Base):
    """The part that looks first."""

    def bring(self, numbers: Tensor) -> Callable[[], list[float]]:
        """Start to bring numbers (n,) from the device; the result waits for them. One set at a time."""
        return self._brought.start(numbers)

    def check_before_use(self, check: Callable[[], None] | None) -> None:
        """Call `check` before anybody sees values of rows: the latest step is unchecked. It raises where a number is
        not finite. None: the step is checked."""
        self._check = check

    def spoil(self, why: str) -> None:
        """A step that was not finite has updated rows: from now on values are refused, until others are loaded."""
        self._spoiled, self._check = why, None

    def refuse_spoiled(self, what: str) -> None:
        """To be called before values are used; looks at the numbers of an unchecked step.

        Raises:
            NonFiniteError: if they are not finite; if the tables are spoiled: `what` cannot be done.
        """
        if self._check is not None:
            self._check()
        self.refuse_known_spoiled(what)

    def refuse_known_spoiled(self, what: str) -> None:
        """The same without a look at an unchecked step, for which one may have to wait.

        Raises:
            NonFiniteError: if the tables are spoiled.
        """
        if self._spoiled is not None:
            raise NonFiniteError(f"{what}: the tables are spoiled by a step that was not finite. {self._spoiled}")
