"""FAE's shuffle scheduler: how many cold mini-batches are trained between two swaps to hot ones.

https://arxiv.org/abs/2103.00686 (PVLDB 15(1), 2022). Many swaps mix hot and cold inputs well and cost a copy of the hot
rows each; few swaps cost little and may hurt the model.
"""

from itertools import count

START, LEAST, MOST = 50, 1, 100  # per cent of the cold mini-batches
PATIENCE = 4  # swaps in a row at which the test loss fell


class ShuffleScheduler:
    """R(r): r per cent of the cold mini-batches are trained before the next hot ones.

    The paper's equation prints its clamps the wrong way round; these are those of its text.
    """

    def __init__(self, rate: int = START) -> None:
        if not LEAST <= rate <= MOST:
            raise ValueError(f"rate={rate}: needed {LEAST} to {MOST} per cent")
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

    def phases(self, cold: int, hot: int) -> list[tuple[bool, int]]:
        """(is hot, mini-batches) in turn, cold first, until `cold` and `hot` mini-batches are used up.

        Every swap to hot trains the same per cent of the hot ones.
        """
        phases: list[tuple[bool, int]] = []
        done = {False: 0, True: 0}
        for turn in count(1):
            for is_hot, total in ((False, cold), (True, hot)):
                until = min(-(-total * self.rate * turn // 100), total)
                if until > done[is_hot]:
                    phases.append((is_hot, until - done[is_hot]))
                    done[is_hot] = until
            if done == {False: cold, True: hot}:
                return phases
        raise AssertionError
