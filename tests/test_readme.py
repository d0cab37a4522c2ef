"""Pages of the documentation are true: code runs and prints what is shown, and flags, files and links exist."""

import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import typer
from support.pages import blocks, outputs, run

from adaptive import DataOptions, open_dataset
from adaptive.cli.app import EXIT_CODES, STOPPED, app
from adaptive.errors import AdaptiveError
from adaptive.studies.policy_checks import check_rule
from adaptive.training.settings import load_settings

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "docs"))
import generate  # noqa: E402

README = ROOT / "README.md"
PAGES = [
    README,
    *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")),
    *sorted(set((ROOT / "docs").rglob("*.md")) - {ROOT / name for name in generate.PAGES}),  # they may be old
]


def test_the_loop_of_the_readme_prints_what_is_shown(tmp_path: Path) -> None:
    ((code, output),) = outputs(README, "python")
    assert run([sys.executable, "-c", code], tmp_path) == output


def test_the_loop_of_the_readme_marks_eight_lines() -> None:
    ((code, _),) = outputs(README, "python")
    assert re.findall(r"  # (\d)$", code, re.M) == list("12345678")


def test_the_schema_of_the_readme_reads_the_file_it_is_for(tmp_path: Path) -> None:
    (schema,) = (text for kind, text in blocks(README) if kind == "toml")
    (header,) = re.findall(r"with the columns\s+`(.*?)`", README.read_text())
    (tmp_path / "clicks.toml").write_text(schema)
    (tmp_path / "clicks.csv").write_text(f"{header}\n1,ann,pen,2.5\n0,bob,ink,4\n")
    data = open_dataset(f"csv:{tmp_path}/clicks.csv", DataOptions(schema_path=tmp_path / "clicks.toml"))
    (batch,) = data.train(10)
    assert [feature.name for feature in data.features] == ["user", "item"]
    assert batch.labels.tolist() == [1, 0] and batch.dense.tolist() == [[2.5], [4]]


def test_the_schema_that_explains_the_language_is_one_and_no_option_is_missing(tmp_path: Path) -> None:
    page = ROOT / "docs/how-to/data.md"
    (schema,) = (text for kind, text in blocks(page) if kind == "toml")
    (tmp_path / "schema.toml").write_text(schema)
    header = "rating,bought,price,user_affinity_a,user,genres,item,timestamp,importance"
    (tmp_path / "ratings.csv").write_text(
        f"{header}\n4,1,2.5,1,17,drama|crime,-7,2026-01-01,1\n3,0,1,0,4999,,5,2026-01-02,2\n"
    )
    data = open_dataset(f"csv:{tmp_path}/ratings.csv", DataOptions(schema_path=tmp_path / "schema.toml"))
    (batch,) = data.train(10)
    assert batch.labels.tolist() == [1, 0] and batch.offsets.tolist() == [0, 1, 2, 4, 4, 5, 6]
    for name in DataOptions.model_fields:
        assert f"`{name}`" in page.read_text() or f"`{name}." in page.read_text(), name


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
    text = (ROOT / "docs/reference/exit-codes.md").read_text()
    for code in map(int, re.findall(r"(\d+) [a-z]", EXIT_CODES)):
        assert re.search(rf"^\| (\d+, )*{code}(, \d+)* \|", text, re.M), code
    for cls in AdaptiveError.__subclasses__():
        assert re.search(rf"^\| {cls.exit_code} \| .* \| `{cls.__name__}` \|$", text, re.M), cls
    assert f"| {', '.join(map(str, STOPPED))} |" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
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


def test_the_number_of_policies_is_that_of_their_page() -> None:
    table = (ROOT / "policies/README.md").read_text().split("## The policies here")[1]
    listed = re.findall(r"^\| `(\w+)` \| .* \| .* \|$", table, re.M)
    assert f"The [{len(listed)} policies](policies/README.md)" in README.read_text()


def test_the_skip_rule_of_the_readme_is_short_and_keeps_the_contract(tmp_path: Path) -> None:
    (code,) = (text for kind, text in blocks(README) if kind == "python" and "(SkipRule)" in text)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    (tmp_path / "my_rule.py").write_text(code)
    (name,) = re.findall(r"class (\w+)", code)
    assert [result for result in check_rule(f"{tmp_path}/my_rule.py:{name}") if not result.passed] == []
    assert f"lfu+skip=my_rule.py:{name}" in README.read_text(), "one command compares it with the built-in ones"
