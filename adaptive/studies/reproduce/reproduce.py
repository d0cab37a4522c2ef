"""`reproduce`: run a recipe's commands, derive its tables, judge its claims, write what was found."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from adaptive.errors import AdaptiveError, ConfigError
from adaptive.storage.durable import write_atomic
from adaptive.studies.charts import write_figure
from adaptive.studies.compare.comparison_report import comparison_document
from adaptive.studies.placements.placement_report import placements_document
from adaptive.studies.profile.profile_report import DPI, profile_document
from adaptive.studies.reproduce.derived import DERIVED
from adaptive.studies.reproduce.recipe import Claim, Command, Recipe, judge
from adaptive.studies.simulate.simulation_report import simulation_document
from adaptive.training.telemetry.document import aligned
from adaptive.training.telemetry.formatting import short_text

SCHEMA: Final = 1
KIND: Final = "reproduction"
WITH_FOLDER: Final = ("profile", "placements", "compare")  # commands that write a folder of their own
SEEDED: Final = ("compare",)
ADDING: Final = ("--set", "--sweep")  # flags that may be given for several keys

Run = Callable[[Sequence[str]], dict[str, Any]]  # a command line's result


class StoppedError(Exception):
    """A command was stopped by a signal; `code` is the exit code that says which."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def command_lines(
    recipe: Recipe, out: Path, *, quick: bool, seeds: int | None, more: Sequence[str] = ()
) -> list[tuple[str, Command, list[str]]]:
    """(id, command, words) in order; `more` goes to every command (`--data ...`)."""
    lines = []
    for command in recipe.commands:
        for value in command.each or ("",):
            name = f"{command.id}-{value}" if value else command.id
            words = [word.replace("{}", value) for word in shlex.split(command.words)]
            words += shlex.split(command.quick) if quick else []
            words += ["--seeds", str(seeds)] if seeds is not None and words[0] in SEEDED else []
            words += more
            if words[0] in WITH_FOLDER:
                words += ["--out", str(out / name)]
            if words[0] == "simulate":
                words += ["--png", str(out / f"{name}.png")]
            lines.append((name, command, _last_of_each(words)))
    return lines


def _last_of_each(words: Sequence[str]) -> list[str]:
    """Of a flag with a value that is given twice the last one; of `--set` and `--sweep` that of each key."""
    kept: list[list[str]] = []
    for word in words[1:]:
        if word.startswith("--"):
            kept.append([word])
        else:
            kept[-1].append(word)
    last = {_what(one): one for one in kept}
    return [words[0], *(word for one in kept if last[_what(one)] is one for word in one)]


def _what(words: Sequence[str]) -> str:
    """What a flag with its values sets."""
    flag, *values = words
    return f"{flag} {values[0].partition('=')[0]}" if flag in ADDING and values else flag


def reproduce(
    recipe: Recipe,
    out: Path,
    run: Run,
    *,
    quick: bool = False,
    seeds: int | None = None,
    more: Sequence[str] = (),
    told: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The record, also written with a page `report.md` and every command's own record into `out`.

    Args:
        recipe: what to do.
        out: a folder that is there.
        run: runs a command line of this program and returns what it prints with `--json`; raises `StoppedError` if a
            signal stopped it, after which no command is run, and what was found by then is told (`stopped_by`).
        quick: with the recipe's words for a short run.
        seeds: trainings of each policy, where policies are compared.
        more: words that every command gets.
        told: called with each command before it is run.

    Raises:
        AdaptiveError: if a command fails, or the recipe names what is not there.
    """
    unknown = [name for name in recipe.derived if name not in DERIVED]
    if unknown:
        raise ConfigError(f"recipe {recipe.name}: derived {', '.join(unknown)}; there is {', '.join(DERIVED)}")
    lines = command_lines(recipe, out, quick=quick, seeds=seeds, more=more)
    assert not {name for name, _, _ in lines} & set(recipe.derived), "a derived record in the place of a command's"
    records: dict[str, Any] = {}
    stopped_by = _run_all(lines, run, out, records, told)
    lines = [line for line in lines if line[0] in records]
    derived = _derive(recipe, records, whole=stopped_by is None)
    records |= derived
    _draw_derived(derived, out)
    judged = [(claim, *_judged(claim, records, whole=stopped_by is None)) for claim in recipe.claims]
    result = {
        "schema": SCHEMA,
        "kind": KIND,
        "recipe": recipe.name,
        "title": recipe.title,
        "source": recipe.source,
        "quick": quick,
        "commands": [{"id": name, "shows": one.shows, "words": shlex.join(words)} for name, one, words in lines],
        "stopped_by": stopped_by,
        "derived": derived,
        "claims": [
            {"says": claim.says, "holds": holds, "numbers": numbers, "why": "" if holds else claim.why}
            for claim, holds, numbers in judged
        ],
        "papers": [one.model_dump() for one in recipe.papers],
        "missing": [one.model_dump() for one in recipe.missing],
        "out": str(out),
    }
    _write(out / "reproduction.json", json.dumps(result, indent=1))
    text = reproduction_text(result, {name: record_text(records[name]) for name, _, _ in lines})
    _write(out / "report.md", _markdown(result, text))
    return {**result, "table": text}


def _run_all(
    lines: Sequence[tuple[str, Command, list[str]]],
    run: Run,
    out: Path,
    records: dict[str, Any],
    told: Callable[[str], None],
) -> int | None:
    """Run the commands, each one's record into `records` and a file; the exit code of a signal that stopped them."""
    for name, command, words in lines:
        told(f"{command.shows}: adaptive-train {shlex.join(words)}")
        try:
            records[name] = run(words)
        except StoppedError as stopped:
            return stopped.code
        except AdaptiveError as error:
            raise type(error)(f"adaptive-train {shlex.join(words)}: {error}") from error
        _write(out / f"{name}.json", json.dumps(records[name]))
    return None


def _derive(recipe: Recipe, records: Mapping[str, Any], *, whole: bool) -> dict[str, Any]:
    """The derived tables; of a recipe that was stopped those whose commands were run."""
    found: dict[str, Any] = {}
    for name in recipe.derived:
        try:
            found[name] = DERIVED[name](records)
        except KeyError as error:
            if whole:
                raise ConfigError(
                    f"recipe {recipe.name}: derived {name} needs {error}, which no command's record has; there is "
                    f"{', '.join(records)} (see the recipes that come with the package)"
                ) from error
    return found


def _judged(claim: Claim, records: Mapping[str, Any], *, whole: bool) -> tuple[bool, str]:
    try:
        return judge(claim, records)
    except ConfigError:
        if whole:
            raise
        return False, "stopped before"


def record_text(record: Mapping[str, Any]) -> str:
    """A command's own table, from its record."""
    if record.get("kind") == "profile":
        return profile_document(record).to_text()
    if record.get("kind") == "placements":
        return placements_document(record).to_text()
    return comparison_document(record).to_text() if "problems" in record else simulation_document(record).to_text()


def reproduction_text(result: Mapping[str, Any], tables: Mapping[str, str]) -> str:
    """Commands, tables, what the paper has, and three lines: comes out, does not, cannot here."""
    parts = [
        f"{result['title']}\n{result['source']}",
        "\n".join(f"adaptive-train {c['words']}" for c in result["commands"]),
    ]
    for one in result["commands"]:
        parts.append(f"== {one['shows']} ({one['id']})\n\n{tables[one['id']]}")
    for derived in result["derived"].values():
        rows = [["", derived["unit"]], *([name, short_text(value)] for name, value in derived["values"].items())]
        note = f"\n{derived['note']}" if derived.get("note") else ""
        parts.append(f"== {derived['title']}\n\n" + "\n".join(aligned(rows)) + note)
    if result["papers"]:
        rows = [["paper", "number", "source"], *([p["what"], p["number"], p["source"]] for p in result["papers"])]
        parts.append("\n".join(aligned(rows)))
    return "\n\n".join([*parts, last_lines(result)])


def last_lines(result: Mapping[str, Any]) -> str:
    claims = result["claims"]
    held = [f"{one['says']} ({one['numbers']})" for one in claims if one["holds"]]
    others = [
        f"{one['says']} ({one['numbers']}{'; ' + one['why'] if one['why'] else ''})"
        for one in claims
        if not one["holds"]
    ]
    missing = [f"{one['what']} ({one['why']})" for one in result["missing"]]
    lines = (("comes out", held), ("does not", others), ("cannot here", missing))
    return "\n".join(f"{name}: {'; '.join(found) or 'nothing'}" for name, found in lines)


def _draw_derived(derived: Mapping[str, Mapping[str, Any]], out: Path) -> None:
    """A picture for each table that has curves."""
    from matplotlib.figure import Figure

    for name, one in derived.items():
        if (drawn := one.get("curves")) is None:
            continue
        figure = Figure(figsize=(9, 5), layout="constrained")
        axes = figure.subplots()
        for label, points in drawn["lines"].items():
            axes.plot([x for x, _ in points], [y for _, y in points], "o-", label=label)
        axes.set(xlabel=drawn["x"], ylabel=drawn["y"], title=one["title"])
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        write_figure(figure, out / f"{name}.png", dpi=DPI)


def _markdown(result: Mapping[str, Any], text: str) -> str:
    pictures = sorted(path for path in Path(result["out"]).rglob("*.png"))
    links = [f"![{path.stem}]({path.relative_to(result['out']).as_posix()})" for path in pictures]
    return "\n\n".join([f"# {result['title']}", "```text\n" + text + "\n```", *links]) + "\n"


def _write(path: Path, text: str) -> None:
    write_atomic(path, text.encode())
