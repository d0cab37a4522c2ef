"""Bad lines: count, show and write them, and stop the run if there are too many.

Every line counts once, the first time it is read, however many passes are made over a file. So the lines of a file
without its header are the rows read plus the rejected lines.
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

_SHOWN = 20
_TEXT_BYTES = 200
_SHOWN_CHARACTERS = 60
MEANINGS = {
    "empty": "the line is empty. Empty lines never stop a run.",
    "overlong": "the line is longer than max_line_bytes. Raise data.max_line_bytes, or check the line ends.",
    "nul": "the line holds a NUL byte. Write the file again, as UTF-8 text; ids in bytes, such as UUIDs, as texts.",
    "utf8": "the line is not UTF-8. If it is text in another encoding, convert it, for example with iconv -f latin1 -t "
    "utf-8; write ids in bytes, such as UUIDs, as texts.",
    "quote": "a quoted field does not end, or text follows its closing quote. Double quotes inside quoted fields, or "
    'set quote = "" in the schema.',
    "columns": "the line has more or fewer columns than the format. Check separator and quote in the schema.",
    "label": "expected 0 or 1, or a value for the schema's rule (threshold = NUMBER or positive = [TEXTS]). Add a rule "
    "to [label] in the schema.",
    "number": "expected a finite number of the column's kind. The text 68.0, which pandas writes for integers with "
    "gaps, is no 'int'. Set kind = 'float' for dense inputs; write categories as whole numbers, in pandas by "
    "frame.astype({'user': 'Int64'}). Numbers of more than 64 bits are ids of kind = 'string'. Name texts for "
    "missing values in the schema: null = [TEXTS].",
    "hex": "expected 1 to 16 hex digits. For other ids set kind = 'string' in the schema.",
    "time": "expected a time of the schema's kind: number, or iso (YYYY-MM-DD HH:MM:SS, then perhaps Z, UTC or an "
    "offset such as +01:00; convert other zones to UTC). Set kind in [time].",
    "missing": "the field is empty, and the schema says missing = 'reject'. Use missing = 'row' to accept it.",
    "float": "floats from 2^53 on (float32: 2^24) stand for several whole numbers, so ids merge. Store the column as "
    "integers or texts; pandas keeps integers with gaps as Int64: frame.astype({'user': 'Int64'}).",
}
_EXPECTED = {
    "empty": "fields",
    "overlong": "a line of at most data.max_line_bytes bytes",
    "nul": "text without NUL bytes",
    "utf8": "UTF-8 text",
    "quote": "a closing quote at the end of a quoted field",
    "columns": "the columns of the format",
    "label": "a valid label",
    "number": "a number",
    "hex": "hex digits",
    "time": "a time",
    "missing": "a value",
    "float": "whole numbers that floats can tell apart (below 2^53, in float32 2^24, in float16 2^11)",
}
_CREDIT_LINES = 1_000_000


@dataclass(frozen=True)
class BadLine:
    """A rejected line.

    Attributes:
        line: its number in the file, from 1.
        column: name of the column at fault, or empty.
        text: first bytes of the line, or of the value in data without lines.
        value: the bad value of that column, if it is known.
        num_columns: expected and actual number of columns, if they differ and are known.
    """

    line: int
    cause: str
    column: str
    text: bytes
    value: bytes | None = None
    num_columns: tuple[int, int] | None = None

    def described(self, file: str) -> str:
        """Return `FILE:LINE: expected ..., got ...`, with control characters escaped."""
        expected, got = _EXPECTED[self.cause], f"got: {_shown(self.text)}" if self.text else "got nothing"
        if self.column:
            expected = f"{expected} for {self.column}"
            got = got if self.value is None else f"got '{_shown(self.value)}'"
        elif self.num_columns is not None:
            expected, got = f"{self.num_columns[0]} columns", f"got {self.num_columns[1]}: {_shown(self.text)}"
        return f"{file}:{self.line}: expected {expected}, {got}"


def _shown(raw: bytes) -> str:
    text = raw.decode("utf-8", errors="backslashreplace")[:_SHOWN_CHARACTERS]
    return printable(text) + (" ..." if len(raw) > _SHOWN_CHARACTERS else "")


class RejectLog:
    """Counts lines and bad lines of some files. Any thread may call its methods.

    `max_bad_fraction` limits the share of bad lines. While reading, it is of the lines so far, but of at least a
    million: a few bad lines at the start of a long file do not stop a run, but a wrong separator does. At the end of a
    pass it is of all lines. Empty lines never stop it.

    Args:
        files: names of the files in messages.
        run_dir: folder of `rejects.jsonl`, to which bad lines are appended, as JSON objects {"file", "line", "cause",
            "column", "text"} with at most 200 bytes of text; or None.
        header_lines: lines at the start of each file that are not data.
        unit: name of what is counted, in messages.
    """

    def __init__(
        self,
        files: tuple[str, ...],
        options: DataOptions,
        run_dir: Path | None,
        *,
        header_lines: int = 0,
        unit: str = "lines",
    ) -> None:
        self._files, self._options = files, options
        self._path = None if run_dir is None else run_dir / "rejects.jsonl"
        self._header_lines, self._unit = header_lines, unit
        self._seen = [header_lines] * len(files)  # lines counted of each file, including headers
        self._first: list[tuple[str, str]] = []  # cause and description of the lines that are shown
        self._first_of: dict[str, str] = {}  # description of the first line of each cause
        self._first_line = False  # True if the first line of a file is bad
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def num_lines(self) -> int:
        """Number of lines read so far, without headers."""
        return sum(self._seen) - self._header_lines * len(self._files)

    @property
    def counts(self) -> dict[str, int]:
        """Bad lines by cause."""
        return dict(self._counts)

    def causes_text(self) -> str:
        """Return a text such as `5 label, 2 columns`; empty if no line is bad."""
        return ", ".join(f"{count:,} {cause}" for cause, count in self._counts.most_common())

    def first_of(self, cause: str) -> tuple[str, str]:
        """Return the place of the first line that is bad for a cause, and what was expected and is there."""
        place, _, description = self._first_of[cause].partition(": ")
        return place, description

    def count(self, file: int, last_line: int, bad: list[BadLine]) -> None:
        """Count the lines of a file up to `last_line`, and the new bad lines `bad`.

        Raises:
            InputError: if so many lines are bad that the run must stop.
        """
        with self._lock:
            counted_to = self._seen[file]
            self._seen[file] = max(counted_to, last_line)
            new = [entry for entry in bad if entry.line > counted_to]
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
        """Count bad lines, show the first ones, and write them."""
        name = self._files[file]
        for entry in bad:
            self._counts[entry.cause] += 1
            if entry.cause not in self._first_of:
                self._first_of[entry.cause] = entry.described(printable(name))
            self._first_line |= entry.line == 1 and bool(entry.column)
            if len(self._first) < _SHOWN:
                self._first.append((entry.cause, entry.described(printable(name))))
                logger.warning("bad line %s", self._first[-1][1])
                if len(self._first) == _SHOWN:
                    logger.warning("more bad lines are not shown; see %s", self._path or "the counts at the end")
        if self._path is not None and bad:
            with open(self._path, "a", encoding="utf-8", errors="backslashreplace") as out:
                out.writelines(_record(name, entry) for entry in bad)

    def _check(self, num_lines: int) -> None:
        number = self._counts.total() - self._counts["empty"]
        if number > self._options.max_bad_fraction * num_lines:
            raise InputError(self._too_many(number))

    def _too_many(self, number: int) -> str:
        first = next((line for cause, line in self._first if cause != "empty"), self._first[0][1])
        lines = [
            f"{first}. {number:,} of {self.num_lines:,} {self._unit} read so far are bad "
            f"({self.causes_text()}); data.max_bad_fraction = {self._options.max_bad_fraction:g} allows fewer.",
            *(f"  {line}" for _, line in self._first if line != first),
            *(f"{cause}: {MEANINGS[cause]}" for cause, _ in self._counts.most_common()),
        ]
        if self._first_line and self._unit == "lines":
            lines.append("Line 1 may be a header: remove it, or set header = true in the schema.")
        if self._path is not None:
            lines.append(f"All bad {self._unit} are listed in {printable(str(self._path))}.")
        lines.append(
            "Correct the file or its description (format, separator, schema), or allow more: "
            "--set data.max_bad_fraction=SHARE."
        )
        return "\n".join(lines)


def _record(file: str, entry: BadLine) -> str:
    text = entry.text[:_TEXT_BYTES].decode("utf-8", errors="backslashreplace")
    record = {"file": file, "line": entry.line, "cause": entry.cause, "column": entry.column, "text": text}
    return json.dumps(record, ensure_ascii=False) + "\n"
