"""`Triggers`: when what is skipped has to be judged again."""

from typing import Final

from adaptive.guard.alarm import Alarm
from adaptive.guard.share import LeftOut
from adaptive.guard.standing import Standing

LOOK: Final = 50  # batches between two looks at how much is skipped
MORE: Final = 1.5  # what was judged at a share s stands for shares up to MORE * s + SOME
SOME: Final = 0.01


class Triggers:
    """Told of every batch, and asked when a check is due while none is under way."""

    def __init__(self) -> None:
        self._alarm = Alarm()
        self._at = 0  # batch of the latest look
        self._before = LeftOut()

    def hear(self, loss: float, positive: float) -> None:
        """See `Alarm.hear`."""
        self._alarm.hear(loss, positive)

    def opened(self) -> None:
        """A check has begun, and judges what has happened so far. What happens meanwhile may come too late for it."""
        self._alarm.forget()

    def passed(self, place: int, left_out: LeftOut) -> None:
        """A check was passed at batch `place`."""
        self._at, self._before = place, left_out

    def due(self, standing: Standing, left_out: LeftOut) -> str:
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
