"""The environment of a rank, as torchrun and `--ranks` set it."""

import os
from typing import Final

NEEDED: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def is_rank() -> bool:
    """True if this process was started as one of several ranks."""
    return all(name in os.environ for name in NEEDED)
