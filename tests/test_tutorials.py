"""Tutorials: every block runs, in order, and prints what the page shows."""

import csv
from pathlib import Path
from statistics import mean

import pytest
from support.pages import ROOT, assert_shown, run_page

TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))


@pytest.mark.nightly
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    assert run_page(page, tmp_path) >= 3
    if page.stem == "thirty-days":
        check_thirty_days(tmp_path)


def check_thirty_days(folder: Path) -> None:
    """From day 8 on, live keys neither grow nor shrink, are as good as a table that never forgets, and beat hashing."""
    days = {}
    for kind in ("live", "forever", "hashed"):
        with (folder / f"{kind}.csv").open(newline="") as file:
            days[kind] = list(csv.DictReader(file))[8:]
    auc = {kind: mean(float(day["auc"]) for day in rows) for kind, rows in days.items()}
    assert abs(auc["live"] - auc["forever"]) <= 0.0005 and auc["live"] - auc["hashed"] >= 0.002, auc
    rows = [int(day["rows"]) for day in days["live"]]
    assert len(rows) == 22 and mean(rows) * 0.9 <= min(rows) <= max(rows) <= mean(rows) * 1.1, rows
    assert float(days["live"][-1]["mib"]) <= float(days["hashed"][-1]["mib"]) * 1.1


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("auc 0.7512, 100 samples\n", "auc 0.7513, 100 samples\n"),
        ("first\n...\nlast 5\n", "first\nother\nmore\nlast 5\n"),
        ("12.5 ms per step, loss 0.639\n", "80.1 ms per step, loss 0.638\n"),
        ("hit  rate 5%\n", "hit rate 5%\n"),
        ("one\n...\n", "one\ntwo\n"),
    ],
)
def test_outputs_that_match(shown: str, printed: str) -> None:
    assert_shown(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("auc 0.7512\n", "auc 0.7112\n"),
        ("auc 0.7512\n", "AUC 0.7512\n"),
        ("100 samples\n", "104 samples\n"),
        ("first\nlast\n", "first\nother\nlast\n"),
        ("first\n", "first\nlast\n"),
        ("first\nlast\n", "first\n"),
        ("first\n...\nlast\n", "first\nother\n"),
    ],
)
def test_outputs_that_differ(shown: str, printed: str) -> None:
    with pytest.raises(AssertionError):
        assert_shown(shown, printed)
