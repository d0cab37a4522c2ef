"""`Recipe`: what a TOML file in `examples/reproduce/` says, and reading one.

A recipe is data: command lines of this program, claims about the numbers they print, numbers of the paper with their
source, and what cannot be had. A claim compares a number of a record with another one, or with a constant; a number is
named by its path, `COMMAND.key.key`, where a list is entered by a position or by `name=value,name=value`,
and no key has a dot in it.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from pydantic import Field, model_validator

from adaptive.config import Config
from adaptive.errors import ConfigError
from adaptive.storage.presets import load_named, names_in
from adaptive.training.telemetry.formatting import short_text

RECIPES: Final = Path(__file__).parent / "recipes"
VERBS: Final = ("profile", "placements", "compare", "simulate")  # commands with a record that pages show


class Command(Config):
    """One command line, without the program's name."""

    id: str = Field(pattern=r"^[a-z0-9-]+$", description="name of its folder and record")
    words: str = Field(description="`{}` stands for one of `each`")
    quick: str = Field(default="", description="words more with --quick; the last of a flag given twice counts")
    each: tuple[str, ...] = Field(default=(), description="the command is run once for each of these, as ID-VALUE")
    shows: str = Field(description="the figure or table of the paper that it stands for")

    @property
    def verb(self) -> str:
        return _split(self.words)[0]

    @model_validator(mode="after")
    def _is_a_command_line(self) -> Self:
        verb, *flags = _split(self.words) or [""]
        if verb not in VERBS:
            raise ValueError(f"words = {self.words!r} needs to begin with one of {', '.join(VERBS)}")
        if wrong := [value for value in self.each if not value.replace("-", "").isalnum()]:
            raise ValueError(f"each = {wrong[0]!r} needs to be letters and digits: it names a folder")
        for first in (flags[:1], _split(self.quick)[:1]):
            if first and not first[0].startswith("--"):
                raise ValueError(f"{first[0]!r} stands where a flag such as --sections is needed")
        return self


def _split(words: str) -> list[str]:
    try:
        return shlex.split(words)
    except ValueError as error:
        raise ValueError(f"{words!r} is no command line: {error}") from error


class Claim(Config):
    """What a paper's figure shows, as a comparison of numbers found here."""

    says: str
    value: str = Field(description="path of a number")
    over: str | None = Field(default=None, description="path of a number by which it is divided")
    less: str | None = Field(default=None, description="path of a number that is taken off")
    more_than: float | str | None = None
    less_than: float | str | None = None
    within: float | None = Field(default=None, gt=0, description="the number is at most so far from 0, either way")
    why: str = Field(default="", description="said where it does not hold: what is to blame")

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if sum(bound is not None for bound in (self.more_than, self.less_than, self.within)) != 1:
            raise ValueError("a claim needs one of more_than, less_than and within")
        return self


class Published(Config):
    """A number of the paper."""

    what: str
    number: str
    source: str


class Missing(Config):
    """What cannot be had here."""

    what: str
    why: str


class Recipe(Config):
    """One paper, or the tutorial."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$", description="and of the folder, if no other is named")
    title: str
    source: str
    commands: tuple[Command, ...] = Field(min_length=1)
    derived: tuple[str, ...] = Field(default=(), description="names in adaptive.studies.reproduce.derived, in order")
    claims: tuple[Claim, ...] = ()
    papers: tuple[Published, ...] = ()
    missing: tuple[Missing, ...] = ()

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [*(one.id for one in self.commands), *self.derived]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(twice)} more than once among ids of commands and derived tables")
        return self


def recipe_names() -> list[str]:
    return names_in(RECIPES)


def load_recipe(name: str) -> Recipe:
    """A recipe by name, or a file by path.

    Raises:
        ConfigError: if there is none, or it does not say what is needed.
    """
    return load_named(Recipe, name, RECIPES, "recipe")


def number_at(records: Mapping[str, Any], path: str) -> float | None:
    """The number that a path names; None if it is not known there.

    Raises:
        ConfigError: if there is nothing of that name.
    """
    found: Any = records
    for key in path.split("."):
        found = _entered(found, key, path)
    return None if found is None else float(found)


def _entered(found: Any, key: str, path: str) -> Any:
    if isinstance(found, Mapping) and key in found:
        return found[key]
    if isinstance(found, Sequence) and not isinstance(found, str):
        if "=" in key:
            wanted = [part.partition("=") for part in key.split(",")]
            for one in found:
                if all(str(one.get(name)) == value for name, _, value in wanted):
                    return one
        elif key.lstrip("-").isdecimal() and -len(found) <= int(key) < len(found):
            return found[int(key)]
    there = list(found)[:12] if isinstance(found, Mapping) else f"{type(found).__name__}"
    raise ConfigError(f"recipe: no {key!r} on the path {path!r}; there is {there}")


def judge(claim: Claim, records: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether a claim holds, and the numbers that say so; what is not known does not hold."""
    value = number_at(records, claim.value)
    for path, combine in ((claim.over, _over), (claim.less, _less)):
        if path is not None and value is not None:
            other = number_at(records, path)
            value = None if other is None else combine(value, other)
    if claim.within is not None:
        holds = value is not None and abs(value) <= claim.within
        sign = "within" if holds else "not within"
        return holds, "not known" if value is None else f"{short_text(value)} {sign} {short_text(claim.within)}"
    given = claim.more_than if claim.more_than is not None else claim.less_than
    bound = number_at(records, given) if isinstance(given, str) else given
    if value is None or bound is None:
        return False, "not known"
    holds = value > bound if claim.more_than is not None else value < bound
    sign = ">" if claim.more_than is not None else "<"
    return holds, f"{short_text(value)} {sign if holds else 'not ' + sign} {short_text(bound)}"


def _over(value: float, other: float) -> float | None:
    return value / other if other else None


def _less(value: float, other: float) -> float | None:
    return value - other
