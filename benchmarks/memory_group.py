"""A limit on the memory of one child process, page cache included: a memory control group of Linux, v1 or v2.

`RLIMIT_AS` is no help here: it counts a mapped file as if it were memory, and leaves the page cache alone.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from benchmarks.variants import NotAvailable

ROOT = Path("/sys/fs/cgroup")
REMOVE_SECONDS = 5.0


class MemoryGroup:
    """A group below this process's own; `enter` a child, then `limit` it. Removed on leaving, once it is empty.

    Raises:
        NotAvailable: if no memory group can be made here (no permission, no controller).
    """

    def __init__(self, name: str) -> None:
        parent, self._limit_file = _own_group()
        self._folder = parent / f"{name}-{os.getpid()}"
        try:
            self._folder.mkdir()
            self.limit(1 << 50)
        except OSError as error:
            self.close()
            raise NotAvailable(f"no memory control group can be made in {parent}: {error}") from error

    def enter(self, pid: int) -> None:
        """Move a process into the group; what it takes from now on counts."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def limit(self, size: int) -> None:
        """Bytes that the group may hold, page cache included."""
        (self._folder / self._limit_file).write_text(str(size))

    def close(self) -> None:
        """Remove the group; its process must have ended."""
        deadline = time.monotonic() + REMOVE_SECONDS
        while self._folder.exists() and time.monotonic() < deadline:
            with suppress(OSError):
                self._folder.rmdir()
                return
            time.sleep(0.05)  # the kernel lets go of an ended process a little later

    def __enter__(self) -> "MemoryGroup":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _own_group() -> tuple[Path, str]:
    """This process's memory group and the name of the file with its limit."""
    groups = Path("/proc/self/cgroup")
    for line in groups.read_text().splitlines() if groups.is_file() else ():
        _, controllers, place = line.split(":", 2)
        if "memory" in controllers.split(","):
            return ROOT / "memory" / place.lstrip("/"), "memory.limit_in_bytes"
        if not controllers and (ROOT / "cgroup.controllers").is_file():
            return ROOT / place.lstrip("/"), "memory.max"
    raise NotAvailable("no memory control groups on this system")
