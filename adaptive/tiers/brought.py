"""`Brought`: a few numbers from the device to the host, looked at later."""

from collections.abc import Callable

from torch import Tensor

from adaptive.tiers.mover import Mover


class Brought:
    """Copies numbers into pinned memory of its own behind the work of the compute stream, one set at a time."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._memory = mover.pinned(0)

    def start(self, numbers: Tensor) -> Callable[[], list[float]]:
        """Ask for a copy of numbers (n,) on the device, without a wait. The result waits until they have come, and
        gives them, until the next `start`; the set before must have been looked at."""
        if len(self._memory) < numbers.nbytes:
            self._memory = self._mover.pinned(2 * numbers.nbytes)
        here = self._memory[: numbers.nbytes].view(numbers.dtype)
        self._mover.compute.copy(here, numbers)
        come = self._mover.compute.record()

        def look() -> list[float]:
            self._mover.await_brought(come)
            found: list[float] = here.tolist()
            return found

        return look
