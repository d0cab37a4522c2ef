"""How many processor cores there are for this process."""

import os


def usable_cores() -> int:
    """Cores that this process may run on: fewer than the machine has where it is confined to some."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
