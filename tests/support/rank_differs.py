"""`python rank_differs.py WORD... -- COMMAND...`: `adaptive-train COMMAND...`, on rank 1 with more words; VERSION in
their place: of another version there."""

import os
import sys
from unittest.mock import patch

from adaptive.cli.app import main as command_line

place = sys.argv.index("--")
more, words = sys.argv[1:place], sys.argv[place + 1 :]
differs = os.environ["RANK"] == "1"
if differs and more == ["VERSION"]:
    with patch("adaptive.training.runs.distributed.version", lambda name: "99.0"):
        command_line(words)
command_line([*words, *(more if differs and more != ["VERSION"] else [])])
