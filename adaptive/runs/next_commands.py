"""What somebody whose run has ended may want to type next."""

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from adaptive.config import TrainConfig

RIVALS = ("lru", "lfu", "slipstream")


def next_commands(directory: Path, config: TrainConfig, *, which: Callable[[str], str | None] = shutil.which) -> str:
    """A line for each command, with the paths of the run in `directory`. The first makes the others work, where their
    programs are not on the path; `which` finds programs there."""
    run = shlex.quote(str(directory))
    policies = ",".join(dict.fromkeys((*RIVALS, config.policy)))
    lines = [] if which("adaptive-train") else [f"source {shlex.quote(f'{sys.prefix}/bin/activate')}"]
    if config.tensorboard:
        lines.append(f"tensorboard --logdir {shlex.quote(str(directory.parent))}")
    if config.save:
        lines.append(f"adaptive-train eval {run}")
    lines.append(f"adaptive-train compare --config {run}/run.json --policies {shlex.quote(policies)}")
    return "".join(f"\n  {line}" for line in lines)
