"""docs/how-to/profiling.md lists the command and script of every figure."""

import re
from functools import cache
from pathlib import Path

import pytest

from adaptive.studies.profile.profile_report import PICTURES
from adaptive.studies.reproduce.paper import PAPERS, Paper, load_paper, paper_names

PAGE = Path(__file__).parents[3] / "docs/how-to/profiling.md"
SCRIPTS = {"FAE": "fae", "Hotline": "hotline", "Acun": "zion"}  # of papers whose figures have numbers here
ASKED = {
    # figures that need no special hardware; those of the tutorial, ScratchPipe and Slipstream have no numbers here
    "FAE": "figures 1B, 3, 5, 7 to 16, tables 4 to 9",
    "Hotline": "figures 2, 3, 4, 10, 14, 15, 16, 18 to 23, tables 5, 6",
    "Acun": "figures 1, 6, 7, 10 to 15, table III",
}
NUMBERED = re.compile(r"(figure|table)s? ((?:(?:\d+[A-Z]?|III|to|and|right|,)\s*)+)")


def numbered(text: str) -> set[str]:
    """`figures 3, 5 to 7, table III` -> figure 3, figure 5, ..., table III."""
    result = set()
    for kind, listed in NUMBERED.findall(text):
        words = re.findall(r"\w+", listed)
        for place, word in enumerate(words):
            if word == "to":
                between = range(int(words[place - 1]) + 1, int(words[place + 1]))
                result |= {f"{kind} {number}" for number in between}
            elif word not in ("and", "right"):
                result.add(f"{kind} {word}")
    return result


@cache
def rows() -> list[tuple[str, str, str, str, str]]:
    """Return the cells of the table, with 'the same' replaced by the command above."""
    text = PAGE.read_text(encoding="utf-8").split("### Which figure comes from where")[1].split("###")[0]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    result: list[tuple[str, str, str, str, str]] = []
    for figures, kind, command, where, scripts in lines:
        command = result[-1][2] if command == "the same" else command
        result.append((figures, kind, command, where, scripts))
    return result


def of_papers(cell: str) -> dict[str, set[str]]:
    """Paper -> its figures: `FAE 13, table 5; Hotline 15` names three of two papers."""
    parts = re.findall(r"(FAE|Hotline|Acun) ([^;:]+)", cell)
    return {paper: numbered(text if text.startswith("table") else f"figures {text}") for paper, text in parts}


def papers_of(cell: str) -> list[Paper]:
    named = re.findall(r"`(\w+)`", cell)
    every = [name for name in paper_names() if name not in named]
    return [load_paper(name) for name in (every if cell.startswith("all") else named)]


def test_every_requested_figure_is_on_the_page() -> None:
    for paper, figures in ASKED.items():
        named_figures = set().union(*(of_papers(cell).get(paper, set()) for cell, *_ in rows()))
        assert named_figures == numbered(figures), paper
    assert {paper.name for *_, cell in rows() for paper in papers_of(cell)} == set(paper_names())


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_scripts_of_a_row_show_its_figures_by_its_command(row: tuple[str, str, str, str, str]) -> None:
    figures, kind, command, where, scripts = row
    named = papers_of(scripts)
    assert named and set(kind.split(", ")) <= set("EMTQ")
    for paper, numbers in of_papers(figures).items():
        shown = " ".join(command.shows for command in load_paper(SCRIPTS[paper]).commands)
        assert SCRIPTS[paper] in [script.name for script in named] and numbers <= numbered(shown), paper
    wanted = re.findall(r"`([^`]+)`", command)
    verb, flags = wanted[0].split()[0], set(re.findall(r"--[a-z-]+", " ".join(wanted)))
    for paper in named:
        words_of_verb = [f"{command.words} {command.full}" for command in paper.commands if command.verb == verb]
        drawn = {"--plot"} if verb == "simulate" else set()  # reproduce gives it
        assert words_of_verb and flags - drawn <= {word for words in words_of_verb for word in words.split()}, (
            paper.name
        )
    texts = [(PAPERS / f"{paper.name}.py").read_text() for paper in named]
    ids = {command.id for paper in named for command in paper.commands}
    tables = {id for text in texts for id in re.findall(r'DerivedTable\("(\w+)"', text)} | {"quality", "accuracy"}
    for picture in re.findall(r"`(\w+)\.png`", where):
        assert picture in {"placements", *ids, *tables, *PICTURES}, picture
