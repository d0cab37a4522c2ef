"""`Alarm`: predictions have become worse, so the data have changed and what was judged before may not hold.

It watches predictions that the run makes anyway, each before its batch is learnt, and costs nothing. It only asks for a
check: that predictions are worse says that the data have changed, not what skipping costs.

A log loss rises and falls with the share of positive labels, whatever the model knows. So it is measured in units of
the log loss of always predicting that share, as the normalized entropy of He et al. (Practical Lessons from Predicting
Clicks on Ads at Facebook, ADKDD 2014, section 2).
"""

import math
from collections import deque
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

BEFORE: Final = 400  # batches with which the latest are compared, at most
LEAST_BEFORE: Final = 100
LATEST: Final = 25
ERRORS: Final = 5.0  # by which the loss must rise; a false alarm in some 10^6 batches, were they independent


class Alarm:
    """Compares the latest 25 batches with the 400 before them."""

    def __init__(self) -> None:
        self._heard: deque[tuple[float, float]] = deque(maxlen=BEFORE + LATEST)

    def hear(self, loss: float, positive: float) -> None:
        """Of a batch: the mean log loss, predicted before it was learnt, and the share of positive labels."""
        self._heard.append((loss, positive))

    def forget(self) -> None:
        """Begin anew."""
        self._heard.clear()

    def rings(self) -> bool:
        """The loss has risen by more than the share of positives and chance explain."""
        if len(self._heard) < LEAST_BEFORE + LATEST:
            return False
        losses, positives = np.array(self._heard).T
        share, latest_share = positives[:-LATEST].mean(), positives[-LATEST:].mean()
        if not (0 < share < 1 and 0 < latest_share < 1):
            return False  # nothing to compare with
        part = losses[:-LATEST].mean() / _uninformed(share, share)
        rise = losses[-LATEST:].mean() - part * _uninformed(latest_share, latest_share)
        unexplained = losses[:-LATEST] - part * _uninformed(positives[:-LATEST], share)
        return bool(rise > ERRORS * unexplained.std(ddof=1) * math.sqrt(1 / len(unexplained) + 1 / LATEST))


def _uninformed(positives: Any, share: float) -> NDArray[np.float64]:
    """Mean log loss of always predicting `share`, of batches with such shares of positive labels."""
    losses: NDArray[np.float64] = -(positives * np.log(share) + (1 - positives) * np.log1p(-share))
    return losses
