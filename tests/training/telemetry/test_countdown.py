"""Lines of progress with an estimate."""

from adaptive.training.telemetry.formatting import bytes_text
from adaptive.training.telemetry.progress import Countdown


def test_it_tells_every_five_seconds_how_long_is_left() -> None:
    lines: list[str] = []
    seconds = iter([0.0, 1.0, 6.0, 7.0, 12.0])
    countdown = Countdown(lines.append, "steps", 40, now=lambda: next(seconds))
    for done in (1, 10, 12, 20):
        countdown(done)
    assert lines == ["10 of 40 steps, about 0:00:18 left", "20 of 40 steps, about 0:00:12 left"]


def test_without_a_total_it_estimates_nothing_and_a_total_may_come_later() -> None:
    lines: list[str] = []
    seconds = iter([0.0, 6.0, 12.0])
    countdown = Countdown(lines.append, "batches", now=lambda: next(seconds))
    countdown(3)
    countdown(4, 8)
    assert lines == ["3 batches", "4 of 8 batches, about 0:00:12 left"]


def test_sizes_are_told_in_units() -> None:
    lines: list[str] = []
    seconds = iter([0.0, 6.0])
    countdown = Countdown(lines.append, "read", text=bytes_text, now=lambda: next(seconds))
    countdown(1 << 20, 3 << 20)
    assert lines == ["1.0 MiB of 3.0 MiB read, about 0:00:12 left"]
