"""Where a run is in its data, and its batches on their way to the look-ahead, in stretches."""

from collections.abc import Iterator
from itertools import count

from pydantic import BaseModel, ConfigDict, Field

from adaptive.batch import Batch


class Place(BaseModel):
    """Between two stretches: no batch is on its way. Numbers count batches of the data, which a policy may regroup or
    drop; a checkpoint keeps them."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_assignment=False)

    epoch: int = Field(default=0, ge=0)
    taken: int = Field(default=0, ge=0)  # of this epoch, and done with
    total: int = Field(default=0, ge=0)  # of all epochs
    before: int = Field(default=0, ge=0)  # steps trained in earlier epochs
    over: bool = False  # this epoch has no more

    def left(self, steps: int | None) -> int | None:
        """Batches that this epoch may still take where `steps` are wanted in all; None: as many as there are."""
        return None if steps is None else max(steps - self.before - self.taken, 0)

    def advance(self, number: int) -> None:
        self.taken += number
        self.total += number

    def next_epoch(self, steps: int) -> None:
        """The next epoch begins after so many steps."""
        self.epoch, self.taken, self.before, self.over = self.epoch + 1, 0, steps, False


class Source:
    """The batches of an epoch, handed out in stretches.

    Attributes:
        taken: handed out so far.
    """

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.taken = 0
        self._batches = batches
        self._coming: Batch | None = None
        self._ended = False

    def more(self) -> bool:
        """Whether there is another batch, which is read for that. While no stretch is being read."""
        if self._coming is None and not self._ended:
            self._coming = next(self._batches, None)
        return self._coming is not None

    def end(self) -> None:
        """Hand out no more, from now on."""
        self._ended = True

    def stretch(self, length: int | None) -> Iterator[Batch]:
        """The next `length` batches, or all there are."""
        for _ in count() if length is None else range(length):
            if self._ended or not self.more():
                return
            batch, self._coming = self._coming, None
            assert batch is not None
            self.taken += 1
            yield batch
