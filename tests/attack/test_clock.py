"""Clocks, time zones and locales: they change no number."""

import itertools
import locale
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.attacks import Campaign, attack
from support.interrupted import assert_equal, numbers, run

from adaptive.config import TrainConfig
from adaptive.training.telemetry import events

pytestmark = attack

ZONES = ("XXX-14", "NST3:30", "CET-1CEST,M3.5.0,M10.5.0/3", "YYY11:59")


@contextmanager
def elsewhere(zone: str, locales: str, jump: float) -> Iterator[None]:
    """Inside, this process is in a time zone, in a locale with decimal commas if there is a folder of locales, and its
    clock jumps by so many seconds forth and back whenever somebody looks."""
    now, jumps, before = time.time, itertools.cycle((0.0, jump, -jump)), locale.setlocale(locale.LC_ALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        if locales:
            patch.setenv("LOCPATH", locales)
            locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
            assert locale.localeconv()["decimal_point"] == ","
        patch.setattr(time, "time", lambda: now() + next(jumps))
        try:
            yield
        finally:
            locale.setlocale(locale.LC_ALL, before)
    time.tzset()


def of_times(folder: Path) -> TrainConfig:
    """Settings of a run on lines with times, split within the hour that summer time skips in Europe."""
    rng, folder = np.random.default_rng(0), folder / "data"
    folder.mkdir()
    (folder / "s.toml").write_text(
        'label = { column = "y" }\ndense = [{ columns = ["price"] }]\ntime = { column = "t", kind = "iso" }\n'
        '[[categorical]]\ncolumns = ["user"]\nhash_rows = 50\n'
    )
    lines = [
        f"{n % 2},{rng.random() * 9:.3f},u{rng.integers(40)},2024-03-{27 + n // 24} {n % 24:02}:{n % 60:02}:00"
        for n in range(120)
    ]
    (folder / "d.csv").write_text("\n".join(["y,price,user,t", *lines]) + "\n")
    split = {"schema_path": str(folder / "s.toml"), "time_split": "2024-03-31 02:30:00"}
    return TrainConfig(
        data=f"csv:{folder / 'd.csv'}", data_options=split, batch_size=16, save_every=2, log_every=2, tensorboard=False,
        model_options={"embedding_dim": 4, "bottom_mlp": (8, 4), "top_mlp": (8, 1)},
    )  # fmt: skip


def comma_locale(folder: Path) -> str:
    """A folder with a locale of decimal commas, or nothing where none can be made."""
    command = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(folder / "de_DE.UTF-8")]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no locale with decimal commas: {error}", file=sys.stderr)
        return ""
    return str(folder)


def test_time_zone_locale_and_clock_change_no_number(tmp_path: Path) -> None:
    campaign, config, locales = Campaign("zones, locales, clocks", 1), of_times(tmp_path), comma_locale(tmp_path)
    with elsewhere("UTC0", "", 0):
        run(tmp_path / "whole", config)
    for _, rng in campaign.tries():
        zone, jump = ZONES[int(rng.integers(len(ZONES)))], float(rng.choice([0, 3600, 86400, 1e8]))
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        with elsewhere(zone, locales, jump):
            run(tmp_path / "run", config)
        campaign.came(zone)
        assert_equal(numbers(tmp_path / "run"), numbers(tmp_path / "whole"))


def test_event_files_are_in_order_though_the_clock_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, made = time.time(), list[str]()
    for number, at in enumerate((now, now - 3600, now - 7200, now + 5)):
        monkeypatch.setattr(time, "time", lambda at=at: at)
        monkeypatch.setattr("os.getpid", lambda number=number: 90_000 - number)
        file = events.EventFile(tmp_path, purge_from=number)
        file.add(events.scalars({"a": 1.0}), step=number, wall_time=at)
        file.close()
        made += [path.name for path in tmp_path.iterdir() if path.name not in made]
    assert made == sorted(made) and len(made) == 4
