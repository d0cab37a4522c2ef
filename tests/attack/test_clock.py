"""A clock that is put back while a run is interrupted."""

import time
from pathlib import Path

import pytest
from attacks import attack

from adaptive.telemetry import events

pytestmark = attack


def test_event_files_are_read_in_the_order_of_their_making_though_the_clock_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, made = time.time(), list[str]()
    for number, at in enumerate((now, now - 3600, now - 7200, now + 5)):
        monkeypatch.setattr(time, "time", lambda at=at: at)
        monkeypatch.setattr("os.getpid", lambda number=number: 90_000 - number)
        file = events.EventFile(tmp_path, purge_from=number)
        file.add(events.scalars({"a": 1.0}), step=number, wall_time=at)
        file.close()
        made += [path.name for path in tmp_path.iterdir() if path.name not in made]
    assert made == sorted(made) and len(made) == 4
