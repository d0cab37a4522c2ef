"""Pages of the documentation are true: code runs and prints what is shown, and commands, flags and links exist."""

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from support.pages import ROOT, blocks, outputs, run, run_page

import adaptive
from adaptive.cli.app import EXIT_CODES, STOPPED, app
from adaptive.errors import AdaptiveError
from adaptive.training.settings import load_settings

sys.path.append(str(ROOT / "docs"))
import generate

DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [
    README,
    *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY", "policies/README")),
    *sorted(set(DOCS.rglob("*.md")) - {ROOT / name for name in generate.PAGES}),  # they may be old
]
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.S | re.M)
PROGRAMS = {
    page: found
    for page in PAGES
    if page not in (README, *TUTORIALS) and page.stem != "pytorch"  # run block by block
    if (found := BLOCK.findall(page.read_text(encoding="utf-8")))
}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# --- code ----------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_the_loop_of_the_readme_prints_what_is_shown(tmp_path: Path) -> None:
    ((code, output),) = outputs(README, "python")
    assert run([sys.executable, "-c", code], tmp_path) == output


@pytest.mark.nightly
@pytest.mark.parametrize("page", PROGRAMS, ids=name_of)
def test_python_blocks_run_as_one_program(page: Path, tmp_path: Path) -> None:
    """Without warnings, and they print what the page shows."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'adaptive-train[parquet]'")
    code, shown = "\n".join(code for code, _ in PROGRAMS[page]), "".join(text for _, text in PROGRAMS[page])
    printed = run([sys.executable, "-W", "error", "-c", code], tmp_path)
    assert not shown or printed == shown


@pytest.mark.nightly
@pytest.mark.parametrize("page", TUTORIALS, ids=name_of)
def test_tutorial_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    assert run_page(page, tmp_path) >= 1


@pytest.mark.nightly
def test_the_blocks_run_where_their_library_is_installed() -> None:
    names: dict[str, Any] = {"__name__": "page"}
    ran, page = 0, DOCS / "how-to/pytorch.md"
    for kind, code in blocks(page):
        assert kind == "python"
        if all(find_spec(library) for library in re.findall(r"^import (\w+)", code, re.M)):
            exec(compile(code, str(page), "exec"), names)  # noqa: S102 (our own page)
            ran += 1
    assert ran >= 9


# --- what pages name -----------------------------------------------------------------------------------------------


def commands() -> list[list[str]]:
    """The words of each `adaptive-train` line of an indented block."""
    lines = [line for page in PAGES for line in page.read_text().replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("    adaptive-train ")]


def test_commands_have_the_flags_and_keys_that_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # where models of examples/ are
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert len(commands()) > 10
    for words in commands():
        opts = {flag for parameter in known[words[1]].params for flag in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= opts, words
        sets = [value for word, value in pairwise(words) if word == "--set"]
        flags = {word.strip("-"): value for word, value in pairwise(words) if word == "--model"}
        load_settings(file=None, sets=sets, flags=flags, flag_names={}, environ={})


def test_every_exit_code_has_a_line() -> None:
    text = (DOCS / "reference/exit-codes.md").read_text()
    for code in map(int, re.findall(r"(\d+) [a-z]", EXIT_CODES)):
        assert re.search(rf"^\| (\d+, )*{code}(, \d+)* \|", text, re.M), code
    for cls in AdaptiveError.__subclasses__():
        assert re.search(rf"^\| {cls.exit_code} \| .* \| `{cls.__name__}` \|$", text, re.M), cls
    assert f"| {', '.join(map(str, STOPPED))} |" in text


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    for target in re.findall(r"\]\((?!https?:)(.*?)\)", prose):
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if generated := generate.PAGES.get(path.relative_to(ROOT).as_posix()):
            assert page != README, f"{target} is on the site only"
            text = generated()
        else:
            assert path.is_file(), target
            text = path.read_text() if anchor else ""
        headings = re.findall(r"^#+ (.*)$", text, re.M)
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings], target


@pytest.mark.nightly
def test_the_site_builds_without_a_warning_and_has_every_public_name(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the site needs the extra docs")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs", "-d", tmp_path / "d", "."]
    done = subprocess.run([*command, tmp_path / "site"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site/docs/reference/api.html").read_text()
    assert [name for name in adaptive.__all__ if f'id="adaptive.{name}"' not in page] == []
