"""`Paper`: what a script of `examples/reproduce/` declares, and loading one.

A script runs nothing itself. Its `PAPER` names command lines of this program, and a function that is called with their
records (what each prints with `--json`, by id) and yields claims and tables.
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
VERBS: Final = ("profile", "placements", "compare", "simulate")  # commands with a record that pages show

Records = Mapping[str, Any]


@dataclass(frozen=True)
class Command:
    """One command line, without the program's name.

    Attributes:
        id: of its record and folder: small letters, digits and dashes.
        shows: the figure or table of the paper that it stands for.
        words: the command with the flags that it always has.
        full: more flags, without `--quick`.
        quick: more flags, with `--quick`.

    Raises:
        ConfigError: if the id is no name of a folder, or the words are no such command.
    """

    id: str
    shows: str
    words: str
    full: str = ""
    quick: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch("[a-z0-9-]+", self.id):
            raise ConfigError(f"id of a command: expected small letters, digits and dashes, got {self.id!r}")
        if self.verb not in VERBS:
            raise ConfigError(f"command {self.id}: expected one of {', '.join(VERBS)}, got {self.words!r}")

    @property
    def verb(self) -> str:
        return self.words.partition(" ")[0]

    def line(self, *, quick: bool) -> list[str]:
        """Its words."""
        return shlex.split(f"{self.words} {self.quick if quick else self.full}")


@dataclass(frozen=True)
class Claim:
    """What a paper's figure shows, as a comparison of a number found here with a bound; unknown numbers do not hold.

    Attributes:
        says: the claim in words.
        ours: the number found here.
        sign: `within` holds if the number is at most `bound` from 0, either way.
        why: shown where the claim does not hold: what is to blame.
    """

    says: str
    ours: float | None
    sign: Literal[">", "<", "within"]
    bound: float | None
    why: str = ""

    @property
    def holds(self) -> bool:
        if self.ours is None or self.bound is None:
            return False
        if self.sign == "within":
            return abs(self.ours) <= self.bound
        return self.ours > self.bound if self.sign == ">" else self.ours < self.bound

    @property
    def numbers(self) -> str:
        """`3 not < 2.5`"""
        if self.ours is None or self.bound is None:
            return "not known"
        return f"{short_text(self.ours)} {'' if self.holds else 'not '}{self.sign} {short_text(self.bound)}"


class Curves(NamedTuple):
    """Names of both axes, and the points (x, y) of each line."""

    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class DerivedTable:
    """A table that follows from records of several commands.

    Attributes:
        id: of its picture, if it has curves.
        title: says whether its numbers are measured or modelled.
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
        """Of its curves."""
        return self.curves.lines if self.curves else {}

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"curves": self.curves and self.curves._asdict()}


class Published(NamedTuple):
    """A number of the paper."""

    what: str
    number: str
    source: str


class Missing(NamedTuple):
    """What cannot be had here."""

    what: str
    why: str


Findings = Iterator[Claim | DerivedTable]


@dataclass(frozen=True)
class Paper:
    """One paper, or the tutorial.

    Attributes:
        title, source: of the paper.
        findings: yields claims and tables from the records. Of a reproduction that was stopped it is called with the
            records of the commands that finished, and what it yields before it misses one counts.

    Raises:
        ConfigError: if two commands have one id.
    """

    title: str
    source: str
    commands: Sequence[Command]
    findings: Callable[[Records], Findings]
    published: Sequence[Published] = ()
    missing: Sequence[Missing] = ()
    name: str = ""  # of the script, when it is loaded

    def __post_init__(self) -> None:
        ids = [command.id for command in self.commands]
        if twice := sorted({id for id in ids if ids.count(id) > 1}):
            raise ConfigError(f"{self.title}: expected a different id for each command, got {', '.join(twice)} twice")


def paper_names() -> list[str]:
    return sorted(path.stem for path in PAPERS.glob("[!_]*.py"))


def load_paper(name: str) -> Paper:
    """The `PAPER` of a script that comes with the package, by name, or of another by path, which runs it.

    Raises:
        ConfigError: if there is none, or it declares no paper.
    """
    path = PAPERS / f"{name}.py" if name in paper_names() else Path(name)
    if path.suffix != ".py" or not os.path.isfile(path):
        raise ConfigError(f"paper {name!r}: expected one of {', '.join(paper_names())}, or a Python file, got neither")
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
    """The first of the rows that has these values.

    Raises:
        KeyError: if there is none.
    """
    for candidate in rows:
        if all(str(candidate.get(name)) == str(value) for name, value in values.items()):
            return candidate
    raise KeyError(", ".join(f"{name}={value}" for name, value in values.items()))


def over(value: float | None, other: float | None) -> float | None:
    """The quotient; None if a number is not known, or the divisor is 0."""
    return value / other if value is not None and other else None


def less(value: float | None, other: float | None) -> float | None:
    """The difference; None if a number is not known."""
    return None if value is None or other is None else value - other
