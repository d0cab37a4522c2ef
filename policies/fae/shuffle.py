"""FAE's shuffle scheduler: how many cold mini-batches are trained between two swaps to hot ones.

https://arxiv.org/abs/2103.00686 (PVLDB 15(1), 2022). Many swaps mix hot and cold inputs well and cost a copy of the hot
rows each; few swaps cost little and may hurt the model.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from adaptive import Batch, concatenate
from adaptive.policies.samples import check_range

START, LEAST, MOST = 50, 1, 100  # per cent of an epoch's cold mini-batches
PATIENCE = 4  # swaps in a row at which the test loss fell


class ShuffleScheduler:
    """R(r): r per cent of the cold mini-batches are trained before the next hot ones.

    The cold mini-batches are those of an epoch, and so is the same per cent of the hot ones trained at every swap.
    The paper's equation prints its clamps the wrong way round; these are those of its text.
    """

    def __init__(self, rate: int = START) -> None:
        check_range(LEAST, MOST, rate=rate)
        self.rate = rate
        self._latest: float | None = None
        self._falls = 0

    def observe(self, test_loss: float) -> int:
        """After a swap: half the rate if the loss rose, double it if the loss fell 4 times in a row; the new rate."""
        before, self._latest = self._latest, test_loss
        if before is None or test_loss == before:
            self._falls = 0
        elif test_loss > before:
            self._falls = 0
            self.rate = max(self.rate // 2, LEAST)
        else:
            self._falls += 1
            if self._falls == PATIENCE:
                self._falls = 0
                self.rate = min(self.rate * 2, MOST)
        return self.rate

    def phases(self, epoch: int) -> Iterator[int]:
        """Mini-batches of the data whose cold inputs, and then whose hot ones, are trained in turn, until the `epoch`
        mini-batches are used up. The rate may change on the way."""
        share = done = 0
        while share < 100:
            share = min(share + self.rate, 100)
            until = -(-epoch * share // 100)
            if until > done:
                number, done = until - done, until
                yield number

    def state(self) -> list[float]:
        """Numbers from which `restored` makes this scheduler again."""
        return [self.rate, self._falls, np.nan if self._latest is None else self._latest]

    @classmethod
    def restored(cls, state: Sequence[float]) -> "ShuffleScheduler":
        """The scheduler that gave this state."""
        rate, falls, latest = state
        scheduler = cls(int(rate))
        scheduler._falls, scheduler._latest = int(falls), None if np.isnan(latest) else float(latest)
        return scheduler


def hold_back(batches: Sequence[Batch], one_in: int) -> tuple[list[Batch], Batch | None]:
    """The batches without one in `one_in` of their samples, 0: none, and those samples as a batch, if there are any."""
    if not one_in:
        return list(batches), None
    rest, held = list[Batch](), list[Batch]()
    before = 0
    for batch in batches:
        chosen = (before + np.arange(batch.num_samples)) % one_in == one_in - 1
        before += batch.num_samples
        for samples, pile in ((np.flatnonzero(chosen), held), (np.flatnonzero(~chosen), rest)):
            if len(samples):
                pile.append(batch.take(samples))
    return rest, concatenate(held) if held else None
