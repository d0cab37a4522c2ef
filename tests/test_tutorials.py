"""Tutorials: every block runs, in order, and prints what the page shows."""

from pathlib import Path

import pytest
from support.pages import ROOT, assert_shown, run_page

TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))


@pytest.mark.nightly
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    assert run_page(page, tmp_path) >= 3


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
