"""`TableLock`: which thread may touch the tables, and whether an exception has left them half changed.

Books and rows of a batch change in many statements. An exception between two of them, such as the KeyboardInterrupt of
Ctrl-C or a MemoryError, would leave rows in slots that never got their values, and reading, saving and training would
go on with them. So every such change is one `changing` block:

    deferred   signal handlers of Python run after the block, so Ctrl-C never splits a change. Blocks contain no code of
               users and wait for nothing that may hang, so Ctrl-C is late by milliseconds.
    marked     any other exception, at any line, leaves the tables marked. From then on, each use of the lock refuses
               by name what would read or train rows without their values. Loading a checkpoint clears the mark.
"""

import os
import threading
from collections.abc import Callable
from typing import Literal

from adaptive.errors import AdaptiveError, ConfigError
from adaptive.system import Uninterrupted, release_leaked


class TableLock:
    """Lock of one module's tables: held while a thread plans, moves or reads rows. A thread may take it repeatedly."""

    def __init__(self, describe: Callable[[], str]) -> None:
        """`describe` returns the names of the tables, for messages."""
        self._describe = describe
        self.held = threading.RLock()  # use it directly to enter within a change, or to repair or close broken tables
        self._process = os.getpid()
        self._broken = ""  # the change that an exception has ended; empty: none
        self._changes: dict[int, str] = {}  # thread -> the change in which it is

    def __enter__(self) -> None:
        self.refuse_in_child()  # before it waits: in a child nobody would release the lock
        self.held.acquire()
        try:
            self.refuse_broken()
        except BaseException:
            self.held.release()
            raise

    def __exit__(self, *exc: object) -> None:
        self.held.release()

    @property
    def is_forked(self) -> bool:
        """True in a forked child of the process that created the tables, which must not use them."""
        return os.getpid() != self._process

    def refuse_in_child(self) -> None:
        """Raise ConfigError if this process is a fork of the one that created the tables."""
        if self.is_forked:
            raise ConfigError(
                f"tables {self._describe()}: expected the process that created them, got a fork of it (process "
                f"{os.getpid()}). The threads that move rows run in the parent only: use DataLoader workers to make "
                "batches (Batch.of), and look rows up in the process that trains."
            )

    def refuse_broken(self) -> None:
        """Raise AdaptiveError if an exception has ended a change; for threads that are in none."""
        if change := self._interrupted_change():
            raise AdaptiveError(
                f"tables {self._describe()}: expected rows with their values, got rows that an error left without "
                f"them while {change}. They are not read, saved or trained any more: load a checkpoint "
                "(load_state_dict or rows.load_state_arrays), or create the tables again."
            )

    def changing(self, change: str) -> "Change":
        """Return a block in which the tables change, such as "batch 7 was planned"."""
        return Change(self, change)

    def mark_repaired(self) -> None:
        """Clear the mark: every row has been replaced."""
        self._broken = ""
        self._changes.clear()

    def release_leaked(self) -> None:
        """Release what an exception has left to this thread, which holds nothing now."""
        release_leaked(self.held)

    def _interrupted_change(self) -> str:
        if self._broken or not self._changes:
            return self._broken
        # An exception within `Change` itself: its thread is here, or has ended, and is not changing anything.
        alive = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        return next((change for thread, change in list(self._changes.items()) if thread not in alive), "")


class Change:
    """A block in which tables change; see `TableLock.changing`."""

    def __init__(self, lock: TableLock, change: str) -> None:
        self._lock, self._change, self._done = lock, change, False
        self._uninterrupted = Uninterrupted()
        self._outer: str | None = None

    def __enter__(self) -> "Change":
        self._uninterrupted.__enter__()
        try:
            changes, thread = self._lock._changes, threading.get_ident()
            self._outer = changes.get(thread)
            changes[thread] = self._change
        except BaseException:
            self._uninterrupted.__exit__()
            raise
        return self

    def outside(self, wait: Callable[[int], None]) -> Callable[[int], None]:
        """Return a function during which other work may use the tables: the change is where it does not matter."""

        def waiting(number: int) -> None:
            changes, thread = self._lock._changes, threading.get_ident()
            change = changes.pop(thread)
            try:
                wait(number)
            finally:
                changes[thread] = change

        return waiting

    def complete(self) -> None:
        """Declare the change complete, although an exception may end the block."""
        self._done = True

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> Literal[False]:
        try:
            if kind is None or self._done:
                changes, thread = self._lock._changes, threading.get_ident()
                if self._outer is None:
                    del changes[thread]
                else:
                    changes[thread] = self._outer
            else:
                self._lock._broken = self._lock._broken or f"{self._change} ({kind.__name__})"
        finally:
            self._uninterrupted.__exit__()
        return False
