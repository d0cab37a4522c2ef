"""When a check is due, and how long things take, in batches of the run's data.

An `Alarm` watches predictions that the run makes anyway, each before its batch is learnt, and costs nothing. It only
asks for a check: that predictions have become worse says that the data have changed, not what skipping costs. A log
loss rises and falls with the share of positive labels, whatever the model knows. So it is measured in units of the log
loss of always predicting that share, as the normalized entropy of He et al. (Practical Lessons from Predicting Clicks
on Ads at Facebook, ADKDD 2014, section 2).
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.config import GuardConfig, TrainConfig
from adaptive.policy import Policy, drops_inputs
from adaptive.training.guard.account import GuardState, SkipCounts

READ_PER_TRAINED: Final = 10  # batches that a policy which drops inputs reads for each one trained, at most as a rule


@dataclass(frozen=True)
class Timing:
    """Lengths of a guard's stages, in batches. They follow from the settings alone, not from the timing of threads."""

    warmup: int  # before anything is skipped
    steps: int  # of a check
    held_back: int  # judged at the end of a check
    margin: int  # until what is decided can count: the look-ahead may have planned so many
    window: int  # read before the batch that is planned
    total: int | None  # of the run, or None if not known

    @classmethod
    def of(cls, settings: GuardConfig, config: TrainConfig, policy: Policy, total: int | None) -> "Timing":
        """The timing of a run."""
        planned = max(config.depth, config.skip.feedback_delay if config.skip is not None else 0) + 2
        return cls(
            warmup=max(settings.warmup, *_warmups(policy)),
            steps=settings.steps,
            held_back=-(-settings.holdout // config.batch_size),
            margin=planned * READ_PER_TRAINED if drops_inputs(policy) else planned,
            window=0 if drops_inputs(policy) else policy.window,
            total=total,
        )

    def left(self, place: int) -> int | None:
        """Batches from `place` to the end of the run."""
        return None if self.total is None else max(self.total - place, 0)

    @property
    def check(self) -> int:
        """The fewest batches a check can do with: it holds back half of what it wants to."""
        return self.steps + self.held_back // 2

    def too_late(self, place: int) -> bool:
        """Whether the run ends before a check that begins at batch `place` would."""
        left = self.left(place)
        return left is not None and left < self.check


BEFORE: Final = 400  # batches with which the latest are compared, at most
LEAST_BEFORE: Final = 100
LATEST: Final = 25
ERRORS: Final = 5.0  # by which the loss must rise; a false alarm in some 10^6 batches, were they independent


def _warmups(policy: Policy) -> list[int]:
    """Batches before a policy, its deferral or its rule leaves anything out."""
    parts = (policy, policy.deferral, policy.rule)
    return [part.warmup for part in parts if part is not None]


class Alarm:
    """Compares the latest 25 batches with the 400 before them."""

    def __init__(self) -> None:
        self._heard: deque[tuple[float, float]] = deque(maxlen=BEFORE + LATEST)

    def hear(self, loss: float, positive: float) -> None:
        """Take in a batch: its mean log loss, predicted before it was learnt, and its share of positive labels."""
        self._heard.append((loss, positive))

    def forget(self) -> None:
        """Begin anew."""
        self._heard.clear()

    def rings(self) -> bool:
        """Whether the loss has risen by more than the share of positives and chance explain."""
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


LOOK: Final = 50  # batches between two looks at how much is skipped
MORE: Final = 1.5  # what was judged at a share s stands for shares up to MORE * s + SOME
SOME: Final = 0.01


class Triggers:
    """Decides when the next check is due. Hears of every batch; is asked while no check is under way."""

    def __init__(self) -> None:
        self._alarm = Alarm()
        self._at = 0  # batch of the latest look
        self._before = SkipCounts()

    def hear(self, loss: float, positive: float) -> None:
        """Take in a batch; see `Alarm.hear`."""
        self._alarm.hear(loss, positive)

    def opened(self) -> None:
        """A check has begun that judges what has happened so far; later changes may come too late for it."""
        self._alarm.forget()

    def passed(self, place: int, left_out: SkipCounts) -> None:
        """A check was passed at batch `place`."""
        self._at, self._before = place, left_out

    def due(self, standing: GuardState, left_out: SkipCounts) -> str:
        """Why a check is due, or nothing if none is."""
        if standing.passed is None:
            return "the warm-up is over" if standing.place >= standing.due else ""
        if standing.place >= standing.due:
            return "the time has come"
        if self._alarm.rings():
            return "predictions have become worse"
        if standing.place < self._at + LOOK:
            return ""
        share = left_out.share_since(self._before)
        self._at, self._before = standing.place, left_out
        more = share > MORE * standing.passed + SOME
        return f"{share:.1%} is skipped, {standing.passed:.1%} was when it was judged" if more else ""
