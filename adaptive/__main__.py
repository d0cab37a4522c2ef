"""`adaptive-train`, also as `python -m adaptive`.

A signal ends it quietly from its first moment on, while libraries are still loading.
"""

import os
import signal
import threading
from types import FrameType
from typing import NoReturn

from adaptive.system import STOPPED, limit_spinning


def main() -> NoReturn:
    """Run the command line and exit."""
    limit_spinning()  # before torch loads OpenMP
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, end_at_once)
    from adaptive.cli.app import main as run

    run()


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Exit without cleanup: libraries being imported might swallow an exception."""
    os.write(2, f"adaptive-train: {STOPPED[128 + number]}\n".encode())
    os._exit(128 + number)


if __name__ == "__main__":
    main()
