"""Bad lines: counted by cause, the first ones shown, all written down, and how many are too many.

Every line counts once, the first time it is read, however many passes are made over a file: lines of a file
without its header = rows read + rejected lines.
"""

import json
import logging
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from adaptive.data.data_options import DataOptions
from adaptive.errors import InputError, printable

logger = logging.getLogger("adaptive.data")

MOST_WRITTEN = 1_000_000
_SHOWN = 20
_TEXT_BYTES = 200
_SHOWN_CHARACTERS = 60
_MEANINGS = {
    "empty": "nothing stands in it",
    "overlong": "it is longer than max_line_bytes",
    "nul": "it holds a NUL byte",
    "utf8": "it is not UTF-8",
    "quote": "a quoted field does not end, or something stands behind its end",
    "columns": "it has more or fewer columns than the format",
    "label": "it is not 0 or 1, nor what the schema's rule for labels takes (threshold = NUMBER, positive = [TEXTS])",
    "number": "it is not a finite number of the column's kind, or too large "
    "(as text 68.0, which pandas writes for integers with gaps, is no 'int')",
    "hex": "it is not 1 to 16 hex digits",
    "time": "it is not a time as the schema says",
    "missing": "it is empty, and the schema says missing = 'reject'",
}
_CREDIT_LINES = 1_000_000


@dataclass(frozen=True)
class Limits:
    """Which shares of the lines read may be bad, for labels and for all other causes together.

    While reading, the shares are taken of the lines so far, but of a million lines at least: a few bad lines at
    the start of a long file do not stop a run that may still come below the limit, while a wrong separator
    does within the first lines. At the end of a pass they are taken of the lines that were read. Empty lines are
    counted and written down like the others but are no reason to stop.
    """

    max_bad_fraction: float = 1e-4
    max_bad_label_fraction: float = 0.0


@dataclass(frozen=True)
class BadLine:
    """One rejected line: `column` is the name of the column at fault, or empty; `text` its first bytes."""

    line: int
    cause: str
    column: str
    text: bytes

    def described(self, file: str) -> str:
        where = f" in column {self.column}" if self.column else ""
        text = self.text.decode("utf-8", errors="backslashreplace")[:_SHOWN_CHARACTERS]
        shown = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
        more = " ..." if len(self.text) > _SHOWN_CHARACTERS else ""
        return f"{file}:{self.line}: {self.cause}{where}" + (f": {shown}{more}" if self.text else "")


class RejectLog:
    """Counts lines and bad lines of some files. May be used from several threads.

    Args:
        files: names by which lines are reported.
        path: `rejects.jsonl`, to which bad lines are appended, a million at most: {"file", "line", "cause", "column",
            "text"}, the text cut after 200 bytes; or None.
        header_lines: lines at the start of each file that are no data.
        unit: what is counted, in messages.
    """

    def __init__(
        self, files: tuple[str, ...], limits: Limits, path: Path | None, *, header_lines: int = 0, unit: str = "lines"
    ) -> None:
        self._files = files
        self._limits = limits
        self._path = path
        self._header_lines, self._unit = header_lines, unit
        self._seen = [header_lines] * len(files)  # lines of each file that have been counted, headers too
        self._first: list[str] = []
        self._first_line = False  # whether the first line of a file is bad
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls,
        files: tuple[str, ...],
        options: DataOptions,
        run_dir: Path | None,
        *,
        header_lines: int = 0,
        unit: str = "lines",
    ) -> "RejectLog":
        """The log of a data set with these options; `rejects.jsonl` goes into the run directory, if there is one."""
        limits = Limits(options.max_bad_fraction, options.max_bad_label_fraction)
        return cls(files, limits, run_dir and run_dir / "rejects.jsonl", header_lines=header_lines, unit=unit)

    @property
    def num_lines(self) -> int:
        """Lines read so far, without headers."""
        return sum(self._seen) - self._header_lines * len(self._files)

    @property
    def counts(self) -> dict[str, int]:
        """Bad lines by cause."""
        return dict(self._counts)

    def causes_text(self) -> str:
        """`5 label, 2 columns`; empty if no line is bad."""
        return ", ".join(f"{count:,} {cause}" for cause, count in self._counts.most_common())

    def count(self, file: int, last_line: int, bad: list[BadLine]) -> None:
        """Take note that a file was read up to `last_line`, where `bad` are the bad lines of what was just read.

        Raises:
            InputError: if so many lines are bad that the run must stop.
        """
        with self._lock:
            before = self._seen[file]
            self._seen[file] = max(before, last_line)
            new = [entry for entry in bad if entry.line > before]
            self._note(file, new)
        if new:
            self._check(max(self.num_lines, _CREDIT_LINES))

    def check(self) -> None:
        """Check the shares of bad lines at the end of a pass.

        Raises:
            InputError: if the share of bad lines is above a limit.
        """
        self._check(self.num_lines)

    def _note(self, file: int, bad: list[BadLine]) -> None:
        """Count and show bad lines, and write down all but those that no reader would look through."""
        name, before = self._files[file], self._counts.total()
        for entry in bad:
            self._counts[entry.cause] += 1
            self._first_line |= entry.line == 1 and bool(entry.column)
            if len(self._first) < _SHOWN:
                self._first.append(entry.described(printable(name)))
                logger.warning("bad line %s", self._first[-1])
                if len(self._first) == _SHOWN:
                    logger.warning("further bad lines are not shown; see %s", self._path or "the counts at the end")
        if self._path is None:
            return
        if kept := bad[: max(MOST_WRITTEN - before, 0)]:
            with open(self._path, "a", encoding="utf-8", errors="backslashreplace") as out:
                out.writelines(_record(name, entry) for entry in kept)
        if before <= MOST_WRITTEN < before + len(bad):
            logger.warning("%s has the first %d bad lines; the others are counted", self._path, MOST_WRITTEN)

    def _check(self, num_lines: int) -> None:
        num_labels = self._counts["label"]
        num_others = self._counts.total() - num_labels - self._counts["empty"]
        for number, setting, limit in (
            (num_labels, "max_bad_label_fraction", self._limits.max_bad_label_fraction),
            (num_others, "max_bad_fraction", self._limits.max_bad_fraction),
        ):
            if number > limit * num_lines:
                raise InputError(self._too_many(number, setting, limit))

    def _too_many(self, number: int, setting: str, limit: float) -> str:
        where = f"\nall of them: {printable(str(self._path))}" if self._path else ""
        meanings = "".join(f"\n{cause}: {_MEANINGS[cause]}" for cause, _ in self._counts.most_common())
        header = "\nline 1 may be a header: remove it, or have header = true in a schema"
        header = header if self._first_line and self._unit == "lines" else ""
        return (
            f"{number:,} of {self.num_lines:,} {self._unit} read are bad, {setting} = {limit:g} allows fewer "
            f"({self.causes_text()}):\n  " + "\n  ".join(self._first) + f"{where}{meanings}{header}\n"
            "correct the file or its description (format, separator, schema), or allow more: "
            f"--set data.{setting}=SHARE"
        )


def _record(file: str, entry: BadLine) -> str:
    text = entry.text[:_TEXT_BYTES].decode("utf-8", errors="backslashreplace")
    record = {"file": file, "line": entry.line, "cause": entry.cause, "column": entry.column, "text": text}
    return json.dumps(record, ensure_ascii=False) + "\n"
