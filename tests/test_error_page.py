"""docs/how-to/errors.md: the messages that it explains are those of the package."""

import re
from pathlib import Path

import adaptive

PACKAGE = Path(adaptive.__file__).parent
PAGE = PACKAGE.parent / "docs/how-to/errors.md"


def test_every_message_is_one_of_the_package() -> None:
    joined = re.sub(r'"\s*f?"', "", "".join(path.read_text() for path in PACKAGE.rglob("*.py")))
    messages = re.findall(r"^### `(.*)`$", PAGE.read_text(), re.M)
    assert len(messages) > 15
    assert [message for message in messages if message not in joined] == []
