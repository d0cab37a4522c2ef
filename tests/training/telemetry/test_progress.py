"""What a run says while it goes: exact lines without a terminal, one kept line on one."""

import io
import re
import sys
import threading
from dataclasses import replace

import pytest

from adaptive.training.telemetry.progress import Progress
from adaptive.training.telemetry.record import EvalRecord, IntervalRecord, RunRecord, TableCounts

TABLES = {
    "site": TableCounts(unique_rows=100, skipped_updates=40, bytes_h2d=3 << 20, bytes_d2h=1 << 20),
    "user": TableCounts(unique_rows=100),
}
EVAL = EvalRecord(step=30, samples=4096, auc=0.71236, log_loss=0.4, accuracy=0.788649)


def interval(step: int, **changes) -> IntervalRecord:
    """2,048 samples a step at 20,480 samples/s: ten steps a second."""
    record = IntervalRecord(
        step=step,
        samples=step * 2048,
        loss=0.45211,
        auc=0.73125,
        log_loss=0.5,
        samples_per_s=20480.0,
        time_ms={"plan": 0.25},
        hit_rate=0.912,
        row_hit_rate=0.8,
        tables=TABLES,
    )
    return replace(record, **changes)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    return Terminal()


def test_plain_lines_without_a_terminal():
    """4 MiB in 2 seconds are 2 MiB/s; 980 steps are left at ten a second."""
    stream = io.StringIO()
    progress = Progress(stream, 1000)
    progress.write(RunRecord(policy="lru", table_rows={}))
    progress.write(interval(20))
    progress.write(interval(30, auc=None, hit_rate=None, tables={}))
    progress.write(EVAL)
    progress.close()
    assert stream.getvalue() == (
        "step 20/1000 | 20,480 samples/s | loss 0.4521 | auc so far 0.7312 | hit 91.2 % | moved 2.0 MiB/s | "
        "not written 20.0 % | eta 0:01:38\n"
        "step 30/1000 | 20,480 samples/s | loss 0.4521 | auc so far - | hit - | moved 0 B/s | "
        "not written - | eta 0:01:37\n"
        "evaluation after step 30: auc 0.7124, log loss 0.4000, accuracy 78.86 %, 4,096 samples\n"
    )


def test_a_continued_run_counts_from_where_it_was():
    stream = io.StringIO()
    Progress(stream, 1000, first_step=500, first_samples=500 * 2048).write(interval(520))
    assert "step 520/1000" in stream.getvalue()
    assert "moved 2.0 MiB/s" in stream.getvalue()
    assert stream.getvalue().endswith("eta 0:00:48\n")


def test_without_a_known_end_there_is_no_eta():
    stream = io.StringIO()
    Progress(stream, None).write(interval(20))
    assert stream.getvalue().startswith("step 20 | ")
    assert stream.getvalue().endswith("| eta -\n")


def test_an_unknown_speed_breaks_nothing():
    stream = io.StringIO()
    Progress(stream, 1000).write(interval(20, samples_per_s=float("nan")))
    assert "- samples/s" in stream.getvalue()
    assert "moved -/s" in stream.getvalue()


def test_a_terminal_shows_one_line_with_the_same_fields(terminal):
    threads = threading.active_count()
    progress = Progress(terminal, 1000)
    progress.write(interval(20))
    assert threading.active_count() == threads
    progress.write(EVAL)
    progress.close()
    text = terminal.getvalue()
    assert "20,480 samples/s | loss 0.4521 | auc so far 0.7312 | hit 91.2 % | moved 2.0 MiB/s | not written" in text
    assert "20/1000" in re.sub(r"\x1b\[[0-9;]*m| ", "", text)
    assert "evaluation after step 30: auc 0.7124, log loss 0.4000, accuracy 78.86 %, 4,096 samples" in text
    assert re.search(r"\x1b\[[0-9;]*3[0-9]", text)  # colours
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_no_color_is_obeyed(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    progress = Progress(terminal, 1000)
    progress.write(interval(20))
    progress.close()
    assert "20,480 samples/s" in terminal.getvalue()
    assert not re.search(r"\x1b\[[0-9;]*m", terminal.getvalue())


def test_a_dumb_terminal_gets_plain_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    progress = Progress(terminal, 1000)
    progress.write(interval(20))
    progress.close()
    assert terminal.getvalue().startswith("step 20/1000 | 20,480 samples/s")
    assert "\x1b" not in terminal.getvalue()


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "terminal hung up"), OSError("no number")])
def test_a_stream_that_fails_stops_nothing(terminal, kind, error):
    """rich alone would end the process on a closed pipe."""

    class Failing(kind):
        writes = 0

        def write(self, _text):
            self.writes += 1
            raise error

    stderr = sys.stderr
    stream = Failing()
    progress = Progress(stream, 1000)
    for step in (10, 20, 30):
        progress.write(interval(step))
    assert stream.writes == 1
    progress.close()
    assert stream.writes == 1
    assert sys.stderr is stderr


def test_closing_before_anything_was_shown(terminal):
    Progress(terminal, 1000).close()
    assert terminal.getvalue() == ""
