"""`Paper`: the declaration in a script of `examples/reproduce/`, and loading one.

A script runs nothing itself. Its `PAPER` has command lines of this program, and a function that yields claims and
tables from their records (the objects that they print with `--json`, by id).
"""

import importlib.util
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from adaptive.errors import ConfigError, error_text
from adaptive.training.telemetry.formatting import short_text

PAPERS: Final = Path(__file__).parent / "papers"
TOLERANCE: Final = 0.15  # of a ratio that a paper reports: the papers differ by more among themselves
VERBS: Final = ("profile", "placements", "compare", "simulate")  # commands whose record a page can show

Records = Mapping[str, Any]


@dataclass(frozen=True)
class Command:
    """A command line without the program's name.

    Attributes:
        id: name of its record and folder: lowercase letters, digits and dashes.
        shows: the figure or table of the paper that it stands for.
        words: the command with its fixed flags.
        full: more flags without `--quick`.
        quick: more flags with `--quick`.

    Raises:
        ConfigError: if the id is no folder name, or the command is not one of VERBS.
    """

    id: str
    shows: str
    words: str
    full: str = ""
    quick: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch("[a-z0-9-]+", self.id):
            raise ConfigError(f"id of a command: expected lowercase letters, digits and dashes, got {self.id!r}")
        if self.verb not in VERBS:
            raise ConfigError(f"command {self.id}: expected one of {', '.join(VERBS)}, got {self.words!r}")

    @property
    def verb(self) -> str:
        return self.words.partition(" ")[0]

    def line(self, *, quick: bool) -> list[str]:
        """Return the words of the command line."""
        return shlex.split(f"{self.words} {self.quick if quick else self.full}")


@dataclass(frozen=True)
class Claim:
    """A statement of a paper: a number found here compared with a bound.

    Attributes:
        says: the statement.
        ours: the number measured or modeled here.
        sign: `within` holds if the number is at most `bound` away from 0, `about` if it is within `TOLERANCE` of
            `bound`, a ratio that the paper reports.
        why: the reason, shown if the claim does not hold. `about` needs one.

    Raises:
        ConfigError: for `about` without a reason.
    """

    says: str
    ours: float | None
    sign: Literal[">", "<", "within", "about"]
    bound: float | None
    why: str = ""

    def __post_init__(self) -> None:
        if self.sign == "about" and not self.why:
            raise ConfigError(f"claim {self.says!r}: expected a reason (why) for the case that the ratio differs")

    @property
    def holds(self) -> bool:
        if self.ours is None or self.bound is None:
            return False
        if self.sign == "within":
            return abs(self.ours) <= self.bound
        if self.sign == "about":
            return abs(self.ours - self.bound) <= TOLERANCE * self.bound
        return self.ours > self.bound if self.sign == ">" else self.ours < self.bound

    @property
    def numbers(self) -> str:
        """`3 not < 2.5`"""
        if self.ours is None or self.bound is None:
            return "unknown"
        if self.sign == "about":
            return f"{short_text(self.ours)}, paper {short_text(self.bound)} +-{100 * TOLERANCE:.0f}%"
        return f"{short_text(self.ours)} {'' if self.holds else 'not '}{self.sign} {short_text(self.bound)}"

    def record(self) -> dict[str, Any]:
        """Return the claim as JSON; `why` only if it does not hold."""
        outcome = {"holds": self.holds, "numbers": self.numbers, "why": "" if self.holds else self.why}
        return asdict(self) | outcome


class Curves(NamedTuple):
    """Names of both axes, and line -> points (x, y)."""

    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class DerivedTable:
    """A table derived from the records of several commands.

    Attributes:
        id: name of its picture, if it has curves.
        title: says whether its numbers are measured or modeled.
        unit: of the values.
        note: a sentence below it.
        details: numbers from which the values follow.
    """

    id: str
    title: str
    unit: str
    values: Mapping[str, float]
    note: str = ""
    curves: Curves | None = None
    details: Records = field(default_factory=dict)

    @property
    def lines(self) -> Mapping[str, Sequence[tuple[float, float]]]:
        """Points of each curve."""
        return self.curves.lines if self.curves else {}

    def record(self) -> dict[str, Any]:
        """Return the table as JSON."""
        return asdict(self) | {"curves": self.curves and self.curves._asdict()}


class Published(NamedTuple):
    """A number that the paper reports."""

    what: str
    number: str
    source: str


class Missing(NamedTuple):
    """A figure or number that cannot be reproduced here."""

    what: str
    why: str


Findings = Iterator[Claim | DerivedTable]


@dataclass(frozen=True)
class Paper:
    """A paper, or the tutorial.

    Attributes:
        title, source: of the paper.
        findings: yields claims and tables from the records. After a stop it is called with the records of the finished
            commands; what it yields before it needs a missing record counts.
        name: of the script, set when it is loaded.

    Raises:
        ConfigError: if two commands have the same id.
    """

    title: str
    source: str
    commands: Sequence[Command]
    findings: Callable[[Records], Findings]
    published: Sequence[Published] = ()
    missing: Sequence[Missing] = ()
    name: str = ""

    def __post_init__(self) -> None:
        ids = [command.id for command in self.commands]
        if repeated := sorted({id for id in ids if ids.count(id) > 1}):
            raise ConfigError(f"{self.title}: expected different ids, got {', '.join(repeated)} twice")


def paper_names() -> list[str]:
    return sorted(path.stem for path in PAPERS.glob("[!_]*.py"))


def load_paper(name: str) -> Paper:
    """Load the `PAPER` of a script by name, or by path, which runs its code.

    Raises:
        ConfigError: if there is no such script, or it declares no paper.
    """
    path = PAPERS / f"{name}.py" if name in paper_names() else Path(name)
    if path.suffix != ".py" or not os.path.isfile(path):
        raise ConfigError(f"paper {name!r}: expected one of {', '.join(paper_names())}, or a Python file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ConfigError as error:
        raise ConfigError(f"paper {path}: {error}") from error
    except Exception as error:
        raise ConfigError(f"paper {path} cannot be loaded: {error_text(error)}") from error
    paper = getattr(module, "PAPER", None)
    if not isinstance(paper, Paper):
        raise ConfigError(f"paper {path}: expected PAPER = Paper(...), got {type(paper).__name__}")
    return replace(paper, name=path.stem)


# --- for scripts -----------------------------------------------------------------------------------------------------


def row(rows: Sequence[Records], **values: object) -> Records:
    """Return the first row that has these values.

    Raises:
        KeyError: if there is none.
    """
    for candidate in rows:
        if all(str(candidate.get(name)) == str(value) for name, value in values.items()):
            return candidate
    raise KeyError(", ".join(f"{name}={value}" for name, value in values.items()))


def over(value: float | None, other: float | None) -> float | None:
    """Return the quotient; None if a number is None or the divisor is 0."""
    return value / other if value is not None and other else None


def less(value: float | None, other: float | None) -> float | None:
    """Return the difference; None if a number is None."""
    return None if value is None or other is None else value - other
