"""Progress of a run: a line updated in place on a terminal, a plain line every few seconds elsewhere."""

import math
import os
import shutil
import time
from collections.abc import Callable
from typing import TextIO

from adaptive.training.telemetry.formatting import (
    accuracy_text,
    count_text,
    duration_text,
    percent_text,
    score_text,
)
from adaptive.training.telemetry.record import EvalRecord, IntervalRecord, Record, RunTotals, sum_tables

EVERY = 5.0  # seconds between two lines


class Countdown:
    """Prints every few seconds `120,000 of 400,000 samples counted, about 0:00:07 left`.

    Args:
        write: called with each line.
        what: unit of the count, such as `samples counted`.
        total: the count at the end. None: not known yet, and no remaining time is shown.
        text: formats a count.
        now: clock in seconds; tests pass their own.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        what: str,
        total: int | None = None,
        *,
        text: Callable[[int], str] = count_text,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._what, self._total, self._text, self._now = write, what, total, text, now
        self._started = self._latest = now()

    def __call__(self, done: int, total: int | None = None) -> None:
        """Print a line for `done` of `total` if the latest line is old enough."""
        now = self._now()
        self._total = self._total if total is None else total
        if now - self._latest < EVERY:
            return
        self._latest = now
        if self._total is None or not done:
            self._write(f"{self._text(done)} {self._what}")
            return
        left = max((now - self._started) * (self._total - done) / done, 0.0)
        self._write(f"{self._text(done)} of {self._text(self._total)} {self._what}, about {duration_text(left)} left")


class Progress:
    """Prints the intervals of a run to a stream, until the stream fails.

    A terminal has one line that each interval replaces (`TERM=dumb`: plain lines). Elsewhere there are plain lines: of
    the first and the last interval, and of one about every five seconds.
    """

    def __init__(self, stream: TextIO, total_samples: int | None = None, totals: RunTotals | None = None) -> None:
        """
        Args:
            stream: where to write.
            total_samples: that the whole run reads; None: not known, so no remaining time is shown. Steps would
                mislead: a rule that leaves samples out trains the same data in fewer of them.
            totals: of the run, which the recorder adds to before it writes a record.
        """
        self._now: Callable[[], float] = time.monotonic  # tests set their own
        self._next_line = -math.inf
        self._stream: TextIO | None = stream
        self._total_samples = total_samples
        self._totals = totals or RunTotals()
        self._replaces = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = ""  # the line that the next one replaces

    def write(self, record: Record) -> None:
        """Show a record."""
        if isinstance(record, IntervalRecord):
            self._interval(record)
        elif isinstance(record, EvalRecord):
            quality = f"AUC {score_text(record.auc)}, log loss {score_text(record.log_loss)}, "
            quality += f"accuracy {accuracy_text(record.accuracy)}"
            what = "evaluation" if record.file is None else f"{record.file}, not trained yet,"
            line = f"{what} after step {record.step}: {quality}, {count_text(record.samples)} samples"
            self._put(f"{line}\n{self._shown}")

    def close(self) -> None:
        """End the line that is replaced."""
        if self._shown:
            self._put(f"{self._shown}\n")

    def _interval(self, record: IntervalRecord) -> None:
        text, read, total = self._interval_text(record), self._totals.read, self._total_samples
        if total is not None:
            text = f"{min(read / total, 1):4.0%} | {text}"
        if self._replaces:
            self._shown = text[: shutil.get_terminal_size().columns - 1]  # a longer line would not be replaced
            self._put(self._shown)
        elif (now := self._now()) >= self._next_line or (total is not None and read >= total):
            self._next_line = now + EVERY
            self._put(f"{text}\n")

    def _put(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(f"\r\x1b[K{text}" if self._replaces else text)
            self._stream.flush()
        except OSError:  # a closed pipe stops no training
            self._stream = None

    def _interval_text(self, record: IntervalRecord) -> str:
        counts = sum_tables(list(record.tables.values()))
        return (
            f"step {record.step} | {count_text(record.samples_per_s)} samples/s | loss {score_text(record.loss)} | "
            f"hit rate {percent_text(record.hit_rate)} | skipped {percent_text(counts.skipped_update_share)} | "
            f"{duration_text(self._remaining())} left"
        )

    def _remaining(self) -> float | None:
        """Seconds left at the mean speed so far."""
        if self._total_samples is None or not self._totals.read:
            return None
        return max(self._total_samples - self._totals.read, 0) * self._totals.seconds / self._totals.read
