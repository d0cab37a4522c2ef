"""FAE's shuffle scheduler: the number of cold mini-batches between two swaps to hot ones.

https://arxiv.org/abs/2103.00686 (PVLDB 15(1), 2022). Many swaps mix hot and cold inputs well, and each costs a copy of
the hot rows; few swaps cost little and may hurt the model.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from adaptive import Batch, concatenate
from adaptive.policies.samples import check_range

START, LEAST, MOST = 50, 1, 100  # percent of an epoch's cold mini-batches
PATIENCE = 4  # swaps in a row with a lower test loss


class ShuffleScheduler:
    """R(r): trains r percent of an epoch's cold mini-batches, then r percent of its hot ones.

    The clamps are those of the paper's text; its equation has them the wrong way round.
    """

    def __init__(self, rate: int = START) -> None:
        check_range(LEAST, MOST, rate=rate)
        self.rate = rate
        self._latest: float | None = None
        self._falls = 0

    def observe(self, test_loss: float) -> int:
        """Halve the rate if the loss rose; double it if it fell 4 times in a row; return it."""
        previous, self._latest = self._latest, test_loss
        if previous is None or test_loss == previous:
            self._falls = 0
        elif test_loss > previous:
            self._falls = 0
            self.rate = max(self.rate // 2, LEAST)
        else:
            self._falls += 1
            if self._falls == PATIENCE:
                self._falls = 0
                self.rate = min(self.rate * 2, MOST)
        return self.rate

    def phases(self, epoch: int) -> Iterator[int]:
        """Yield the mini-batches to read for each phase, until all `epoch` ones are read.

        The rate may change meanwhile.
        """
        share = done = 0
        while share < 100:
            share = min(share + self.rate, 100)
            until = -(-epoch * share // 100)
            if until > done:
                number, done = until - done, until
                yield number

    def state(self) -> list[float]:
        """Numbers for `restored`."""
        return [self.rate, self._falls, np.nan if self._latest is None else self._latest]

    @classmethod
    def restored(cls, state: Sequence[float]) -> "ShuffleScheduler":
        """Create a scheduler from the state of another one."""
        rate, falls, latest = state
        scheduler = cls(int(rate))
        scheduler._falls, scheduler._latest = int(falls), None if np.isnan(latest) else float(latest)
        return scheduler


def hold_back(batches: Sequence[Batch], one_in: int) -> tuple[list[Batch], Batch | None]:
    """Split batches into the rest and a batch of one in `one_in` samples (0: none)."""
    if not one_in:
        return list(batches), None
    rest, held = list[Batch](), list[Batch]()
    num_seen = 0
    for batch in batches:
        chosen = (num_seen + np.arange(batch.num_samples)) % one_in == one_in - 1
        num_seen += batch.num_samples
        for samples, pile in ((np.flatnonzero(chosen), held), (np.flatnonzero(~chosen), rest)):
            if len(samples):
                pile.append(batch.take(samples))
    return rest, concatenate(held) if held else None
