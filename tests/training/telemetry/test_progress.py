"""Progress of a run: exact lines without a terminal, one updated line on a terminal."""

import io

import pytest
from support.records import interval_record

from adaptive.training.telemetry.formatting import bytes_text
from adaptive.training.telemetry.progress import Countdown, Progress
from adaptive.training.telemetry.record import EvalRecord, IntervalRecord, RunRecord, RunTotals, TableCounts

TABLES = {
    "site": TableCounts(unique_rows=100, skipped_updates=40, bytes_h2d=3 << 20, bytes_d2h=1 << 20),
    "user": TableCounts(unique_rows=100),
}
HALF = {"steps": 500, "samples": 500 * 2048, "read": 500 * 2048, "seconds": 50.0}
EVAL = EvalRecord(step=30, samples=4096, auc=0.71236, log_loss=0.4, accuracy=0.788649)


def interval(step: int, **changes) -> IntervalRecord:
    """2,048 samples a step at 20,480 samples/s: ten steps a second."""
    fields = {"samples": step * 2048, "samples_per_s": 20480.0, "loss": 0.45211, "auc": 0.73125, "hit_rate": 0.912}
    return interval_record(step, **fields | {"tables": TABLES} | changes)


class Run:
    """What the recorder does: it adds an interval to the totals before it writes it."""

    def __init__(self, stream, total=1000 * 2048, **so_far):
        self.totals = RunTotals(**so_far)
        self.progress = Progress(stream, total, self.totals)
        self.close = self.progress.close

    def write(self, record):
        if isinstance(record, IntervalRecord):
            self.totals.add(record)
        self.progress.write(record)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    return Terminal()


def test_plain_lines_without_a_terminal():
    """The first line comes at once, the next after five seconds, one at the end; ten steps a second are left."""
    stream, seconds = io.StringIO(), iter([0.0, 4.9, 5.0, 9.9, 9.95])
    progress = Run(stream)
    progress.progress._now = lambda: next(seconds)
    progress.write(RunRecord(policy="lru", table_rows={}))
    progress.write(interval(20))
    progress.write(interval(29))
    progress.write(interval(30, auc=None, hit_rate=None, tables={}))
    progress.write(EVAL)
    progress.write(interval(990))
    progress.write(interval(1000))
    progress.close()
    assert stream.getvalue() == (
        "  2% | step 20 | 20,480 samples/s | loss 0.4521 | hit rate 91.2% | skipped 20.0% | 0:01:38 left\n"
        "  3% | step 30 | 20,480 samples/s | loss 0.4521 | hit rate - | skipped - | 0:01:37 left\n"
        "evaluation after step 30: AUC 0.7124, log loss 0.4000, accuracy 78.86%, 4,096 samples\n"
        "100% | step 1000 | 20,480 samples/s | loss 0.4521 | hit rate 91.2% | skipped 20.0% | 0:00:00 left\n"
    )


@pytest.mark.parametrize(
    ("total", "start", "record", "shown"),
    [
        (1000 * 2048, HALF, interval(520), [" 52% | step 520 | ", "0:00:48 left\n"]),
        (None, {}, interval(20), ["step 20 | ", "| - left\n"]),
        (1000 * 2048, {}, interval(20, samples_per_s=float("nan")), ["- samples/s"]),
        (1000 * 2048, {}, interval(20, samples_read=200 * 2048), [" 20% | step 20 | ", "0:01:20 left\n"]),
    ],
    ids=["continued", "no known end", "no known speed", "left out"],
)
def test_lines_of_other_runs(total, start, record, shown):
    stream = io.StringIO()
    Run(stream, total, **start).write(record)
    assert all(text in stream.getvalue() for text in shown)


def test_a_terminal_shows_one_line_that_is_replaced(terminal):
    progress = Run(terminal)
    for record in (interval(20), EVAL, interval(40)):
        progress.write(record)
    progress.close()
    _, first, evaluation, second, last = terminal.getvalue().split("\r\x1b[K")
    assert first.startswith("  2% | step 20 | 20,480 samples/s | loss 0.4521 | hit rate 91.2% | skipped")
    assert evaluation.startswith("evaluation after step 30: AUC 0.7124") and evaluation.endswith(f"samples\n{first}")
    assert second.startswith("  4% | step 40 | ") and last == f"{second}\n"


def test_a_dumb_terminal_has_plain_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    progress = Run(terminal)
    progress.write(interval(20))
    progress.close()
    assert terminal.getvalue().startswith("  2% | step 20") and "\x1b" not in terminal.getvalue()


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "terminal hung up"), OSError("no number")])
def test_a_stream_that_fails_stops_nothing(terminal, kind, error):
    class Failing(kind):
        writes = 0

        def write(self, _text):
            self.writes += 1
            raise error

    stream = Failing()
    progress = Run(stream)
    for step in (10, 20, 30):
        progress.write(interval(step))
    assert stream.writes == 1
    progress.close()
    assert stream.writes == 1


@pytest.mark.parametrize(
    ("what", "total", "calls", "options", "lines"),
    [
        (
            "steps", 40, [(1.0, 1), (6.0, 10), (7.0, 12), (12.0, 20)], {},
            ["10 of 40 steps, about 0:00:18 left", "20 of 40 steps, about 0:00:12 left"],
        ),
        ("batches", None, [(6.0, 3), (12.0, 4, 8)], {}, ["3 batches", "4 of 8 batches, about 0:00:12 left"]),
        ("read", 3 << 20, [(6.0, 1 << 20)], {"text": bytes_text}, ["1.0 MiB of 3.0 MiB read, about 0:00:12 left"]),
    ],
)  # fmt: skip
def test_a_countdown_shows_every_five_seconds_how_long_is_left(what, total, calls, options, lines) -> None:
    """Without a total it estimates nothing, and a total may come later; sizes are shown in units."""
    shown: list[str] = []
    seconds = iter([0.0, *(call[0] for call in calls)])
    countdown = Countdown(shown.append, what, total, now=lambda: next(seconds), **options)
    for _, *done in calls:
        countdown(*done)
    assert shown == lines
