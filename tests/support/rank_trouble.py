"""Trouble on one of several ranks: `python rank_trouble.py RANK STAGE AFTER HOW WORD...` runs `adaptive-train WORD...`,
and on that rank, from the AFTER-th call of a stage on, something goes wrong.

HOW: kill, stand-N (still, for N seconds), term, full (disk), drift (of dense weights), code-N (an error
with exit code N), errno-N (of the system), bug (an error of no class of ours). Nothing goes wrong when torchrun starts
the processes again.
"""

import functools
import importlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from adaptive.cli.app import main as command_line
from adaptive.distributed.peers import _error_class

STAGES = {
    "reading": ("adaptive.distributed.requests", "Requester.prepare"),
    "requesting": ("adaptive.distributed.requests", "Requester._swap_numbers"),
    "serving": ("adaptive.distributed.requests", "Requester._batch"),
    "forward": ("adaptive.training.trainer", "vectors_of"),
    "backward": ("adaptive.training.sharded_trainer", "ShardedTrainer._combine"),
    "update": ("adaptive.distributed.sharded_embedding_bag", "ShardedEmbeddingBag._send_gradients"),
    "saving": ("adaptive.storage.checkpoint", "write_array"),
    "writing": ("adaptive.training.runs.distributed", "write_together"),
    "creating": ("adaptive.storage.durable", "Disk.create"),
    "filling": ("adaptive.storage.durable", "Disk.write"),
    "syncing": ("adaptive.storage.durable", "Disk.sync"),
    "renaming": ("adaptive.storage.durable", "Disk.rename"),
    "evaluating": ("adaptive.training.evaluation", "_logits_of_ranks"),
}


def happen(how: str, arguments: tuple[Any, ...]) -> None:
    """Go wrong."""
    match how.split("-"):
        case ["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["stand", seconds]:
            time.sleep(float(seconds))
        case ["term"]:
            os.kill(os.getpid(), signal.SIGTERM)
        case ["full"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        case ["drift"]:
            with torch.no_grad():
                arguments[0]._weights[0].add_(1.0)
        case ["code", code]:
            raise _error_class(int(code))(f"trouble {code}")
        case ["errno", number]:
            raise OSError(int(number), os.strerror(int(number)))
        case ["bug"]:
            raise KeyError("a bug")


def trouble(stage: str, after: int, how: str) -> Callable[[], None]:
    """Replace the stage; returns what puts it back."""
    module, path = STAGES[stage]
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    whole, calls = getattr(owner, name), []

    @functools.wraps(whole)
    def replaced(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == after:
            happen(how, arguments)
        return whole(*arguments, **named)

    setattr(owner, name, replaced)
    return lambda: setattr(owner, name, whole)


def main(rank: str, stage: str, after: str, how: str, *words: str) -> None:
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    back = trouble(stage, int(after), how) if os.environ["RANK"] == rank and first else lambda: None
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        command_line(words)
    finally:
        back()
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


if __name__ == "__main__":
    main(*sys.argv[1:])
