"""`Countdown`: lines that say how far long work is and how long it will still take."""

import time
from collections.abc import Callable

from adaptive.training.telemetry.formatting import count_text, duration_text

EVERY = 5.0  # seconds between two lines


class Countdown:
    """Tells now and then how much is done: `120,000 of 400,000 samples counted, about 0:00:07 left`.

    Args:
        told: called with each line.
        what: what is counted, such as `samples counted`.
        total: of it; None: unknown, unless it is told later. Then nothing is said of the time left.
        text: of a number of what is counted.
        now: seconds; tests give their own clock.
    """

    def __init__(
        self,
        told: Callable[[str], None],
        what: str,
        total: int | None = None,
        *,
        text: Callable[[int], str] = count_text,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._told, self._what, self._total, self._text, self._now = told, what, total, text, now
        self._started = self._latest = now()

    def __call__(self, done: int, total: int | None = None) -> None:
        """So much is done, of so much; says so if the latest line is old enough."""
        now = self._now()
        self._total = self._total if total is None else total
        if now - self._latest < EVERY:
            return
        self._latest = now
        if self._total is None or not done:
            self._told(f"{self._text(done)} {self._what}")
            return
        left = max((now - self._started) * (self._total - done) / done, 0.0)
        self._told(f"{self._text(done)} of {self._text(self._total)} {self._what}, about {duration_text(left)} left")
