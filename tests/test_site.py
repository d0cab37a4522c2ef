"""The documentation site: every page is in its sidebar, the API page is complete, and it builds without a warning."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import adaptive
from adaptive.cli.app import app
from adaptive.cli.config_command import sections

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(name="conf")
def conf_fixture(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(DOCS))
    return __import__("conf")


def test_every_page_is_in_the_sidebar_once(conf: Any) -> None:
    entries = re.findall(r"^(?:/|.*</)(docs/[\w/-]+)", conf.navigation(), re.M)
    pages = {page.relative_to(ROOT).as_posix() for page in DOCS.rglob("*.md")} | set(conf.generate.PAGES)
    assert sorted(f"{entry}.md" for entry in entries) == sorted(pages)


def test_generated_pages_have_every_command_and_setting(conf: Any, tmp_path: Path) -> None:
    generate = conf.generate
    generate.write(tmp_path)
    commands = {name for name, _ in generate.commands(typer.main.get_command(app))}
    page = (tmp_path / "docs/reference/cli.md").read_text()
    assert set(re.findall(r"^## `(.*)`$", page, re.M)) == commands == set(generate.EXAMPLES)
    page = (tmp_path / "docs/reference/settings.md").read_text()
    assert [s.key for section in sections() for s in section.settings if f"| `{s.key}`" not in page] == []
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert [name for name in generate.PAGES if f"/{name}" not in ignored] == []


def test_the_api_page_has_every_public_name_once() -> None:
    names = re.findall(r"^\.\. auto\w+:: adaptive\.(\w+)$", (DOCS / "reference/api.md").read_text(), re.M)
    assert sorted(names) == sorted(adaptive.__all__)


@pytest.mark.parametrize(
    ("what", "text", "expected"),
    [
        ("class", "Pool `Bag`s.", "Pool `Bag`\\ s."),
        ("class", "Like this:\n\n    a = 1\n", "Like this:\n\n.. code-block:: default\n\n    a = 1\n"),
        ("method", "Pool.\n\nArgs:\n    bags: all.\n", "Pool.\n\nArgs:\n    bags: all.\n"),
        ("attribute", "(F,) names; empty: any.", ":(F,) names; empty: any."),
        ("attribute", "Number of rows.", "Number of rows."),
    ],
)
def test_docstrings_become_what_sphinx_reads(conf: Any, what: str, text: str, expected: str) -> None:
    lines = text.split("\n")
    conf.adapt_docstring(None, what, "", None, None, lines)
    assert "\n".join(lines) == expected


@pytest.mark.nightly
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the site needs the extra docs")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs", "-d", tmp_path / "d", "."]
    done = subprocess.run([*command, tmp_path / "site"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site/docs/reference/api.html").read_text()
    assert [name for name in adaptive.__all__ if f'id="adaptive.{name}"' not in page] == []
    assert 'url=README.html"' in (tmp_path / "site/index.html").read_text()
    assert "slipstream" in (tmp_path / "site/searchindex.js").read_text()
