"""`Alarm`: the log loss of training has risen, so the data have changed and what was judged before may not hold.

It watches predictions that the run makes anyway, each before its batch is learnt, and costs nothing. It only asks for a
check: a loss that rises says that the data have changed, not what skipping costs.
"""

import math
from collections import deque
from typing import Final

import numpy as np

BEFORE: Final = 400  # batches with which the latest are compared, at most
LEAST_BEFORE: Final = 100
LATEST: Final = 50
SIGNS: Final = 5.0  # standard errors; one false alarm in 3 million looks, were batches independent


class Alarm:
    """Compares the mean loss of the latest 50 batches with that of the 400 before them."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=BEFORE + LATEST)

    def hear(self, loss: float) -> None:
        """The mean log loss of a batch, predicted before it was learnt."""
        self._losses.append(loss)

    def forget(self) -> None:
        """Begin anew: what came before has been judged."""
        self._losses.clear()

    def rings(self) -> bool:
        """The loss has risen by more than chance explains."""
        if len(self._losses) < LEAST_BEFORE + LATEST:
            return False
        losses = np.array(self._losses)
        before, latest = losses[:-LATEST], losses[-LATEST:]
        error = before.std(ddof=1) * math.sqrt(1 / len(before) + 1 / LATEST)
        return bool(latest.mean() - before.mean() > SIGNS * error)
