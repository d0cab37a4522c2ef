"""Write and read `metrics.jsonl`: the record of a run, one JSON object per line.

Each line has a `kind`: "run" (the first line), "interval", "eval", "resume". Numbers that are not finite are
written as null.
"""

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from adaptive.errors import InputError
from adaptive.storage.durable import write_atomic
from adaptive.training.telemetry.record import (
    EvalRecord,
    IntervalRecord,
    Record,
    ResumeRecord,
    RunRecord,
    TableCounts,
)

SCHEMA: Final = 1

_KINDS: Final[dict[str, type[Record]]] = {
    "run": RunRecord,
    "interval": IntervalRecord,
    "eval": EvalRecord,
    "resume": ResumeRecord,
}

logger = logging.getLogger(__name__)


class MetricsFile:
    """Appends records to a file. A failing disk never stops training.

    The first failed write logs a warning; a record that could not be written is lost. The next write removes what a
    failed one left, so the file has complete lines only.

    Attributes:
        lost: number of records that are not in the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = 0
        self._size: int | None = None  # bytes of complete lines in the file; unknown before the first write

    def write(self, record: Record) -> None:
        """Append a record."""
        try:
            self._append(to_line(record))
        except OSError as error:
            self.lost += 1
            self._size = None
            if self.lost == 1:
                logger.warning("%s: %s; training continues, without this record", self.path, error)

    def close(self) -> None:
        """Log the number of lost records as a warning."""
        if self.lost:
            logger.warning("%s: lost %d record(s) that could not be written", self.path, self.lost)

    def _append(self, line: bytes) -> None:
        if self._size is None or not self.path.exists():
            content = self.path.read_bytes() if self.path.exists() else b""
            self._size = content.rfind(b"\n") + 1
        with open(self.path, "ab") as file:
            file.truncate(self._size)
            file.write(line)
        self._size += len(line)


def to_line(record: Record) -> bytes:
    """One record as a line of JSON, newline included."""
    kind = next(kind for kind, made in _KINDS.items() if isinstance(record, made))
    schema = {"schema": SCHEMA} if kind == "run" else {}
    values = plain({"kind": kind, **asdict(record), **schema})
    return json.dumps(values, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def plain(value: Any) -> Any:
    """Return the value in JSON's types; numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_metrics(path: Path) -> list[Record]:
    """Return the records of a `metrics.jsonl` without an incomplete last line.

    Raises:
        InputError: if the file cannot be read, or a line is not a record; names file and line.
    """
    return [record for record, _ in _read(path)]


def _read(path: Path) -> Iterator[tuple[Record, bytes]]:
    """Yield the records, each with its line."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                yield _record(line, f"{path}:{number}"), line
    except OSError as error:
        raise InputError(f"{path}: expected a regular file, got {error.strerror}") from error


def _record(line: bytes, where: str) -> Record:
    """Return the record of a line of `to_line`."""
    try:
        values = json.loads(line)
        kind = values.pop("kind")
        if kind == "run" and values.pop("schema") != SCHEMA:
            raise ValueError(f"expected {SCHEMA}, got another value (schema)")
        if kind == "interval":
            values["tables"] = {name: TableCounts(**counts) for name, counts in values["tables"].items()}
            values |= {name: _number(values[name]) for name in ("loss", "samples_per_s")}
            for name in ("time_ms", "policy"):
                values[name] = {key: _number(value) for key, value in values[name].items()}
        return _KINDS[kind](**values)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(
            f"expected a JSON object per line as written by adaptive-train, got another line ({where}): "
            f"{type(error).__name__}: {error}"
        ) from error


def drop_after(path: Path, step: int, *, evaluation: bool) -> int:
    """Remove records after a step from a `metrics.jsonl`; return their number.

    Args:
        step: records of later steps are removed.
        evaluation: also remove the evaluation of this step, which the run repeats.

    Raises:
        InputError: if the file cannot be read, or a line is not a record; names file and line.
        OSError: if it cannot be written.
    """
    if not os.path.lexists(path):
        return 0
    remaining, dropped = list[bytes](), 0
    for record, line in _read(path):
        is_repeated = evaluation and isinstance(record, EvalRecord) and record.step == step
        if not isinstance(record, RunRecord) and (record.step > step or is_repeated):
            dropped += 1
        else:
            remaining.append(line)
    if sum(map(len, remaining)) != path.stat().st_size:
        write_atomic(path, b"".join(remaining))
    return dropped


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
