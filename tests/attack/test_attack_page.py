"""Every test that `README.md` here names exists."""

import re
from pathlib import Path

from support.attacks import attack

pytestmark = attack

HERE = Path(__file__).parent
PAGE = (HERE / "README.md").read_text(encoding="utf-8")


def names_in(folder: Path) -> set[str]:
    texts = [path.read_text(encoding="utf-8") for path in folder.rglob("test_*.py")]
    return {name for text in texts for name in re.findall(r"^def (test_\w+)\(", text, re.M)}


def test_every_promise_names_a_test_that_is_there() -> None:
    rows = re.findall(r"^\| (?!Promise|---)(.*?) \| (.*) \|$", PAGE, re.M)
    assert len(rows) > 40
    there = names_in(HERE.parent)
    for promise, named in rows:
        names = re.findall(r"`(test_\w+)`", named)
        assert names and set(names) <= there, promise
