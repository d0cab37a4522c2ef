"""A disk that fails at operation N: for tests that let every operation fail in turn."""

from collections.abc import Callable
from typing import Any, BinaryIO

from adaptive.storage.durable import Disk


class FailingDisk(Disk):
    """Fails at operation `fail_at` (from 1), torn writes included. `lasting`: and at every later one."""

    def __init__(self, fail_at: int, *, lasting: bool = False, error: type[BaseException] = OSError) -> None:
        self.fail_at, self.lasting, self.error, self.count = fail_at, lasting, error, 0

    def _fails(self) -> bool:
        self.count += 1
        return self.count >= self.fail_at if self.lasting else self.count == self.fail_at

    def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
        if self._fails():
            file.write(data[: len(data) // 2])  # a torn write
            raise self.error("disk full")
        super().write(file, data)

    def __getattribute__(self, name: str) -> Any:
        operation = super().__getattribute__(name)
        if name not in ("create", "sync", "make_directory", "sync_directory", "rename", "remove"):
            return operation

        def maybe_fail(*arguments: Any) -> Any:
            if self._fails():
                raise self.error("input/output error")
            return operation(*arguments)

        return maybe_fail


def fails_at_each(attempt: Callable[[FailingDisk], None], **options: Any) -> int:
    """Run `attempt` with a failure at operation 1, 2, 3, ... until it passes; how many operations it took."""
    for number in range(1, 100):
        disk = FailingDisk(number, **options)
        attempt(disk)
        if disk.count < number:
            return number - 1
    raise AssertionError("never passed")
