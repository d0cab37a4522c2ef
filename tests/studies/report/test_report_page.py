"""Pages in a parser and a browser: complete, nothing loaded or run, any names."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from support.report_records import HOSTILE, Seen, browse, comparison, data_profile, write_run

from adaptive.studies.machines import load_machine
from adaptive.studies.placements.placement_study import MeasuredPlacement, compare_placements
from adaptive.studies.placements.shape import load_shape
from adaptive.studies.profile import Profile, SkewCurve, TableSkew
from adaptive.studies.profile.profile_report import PICTURES
from adaptive.studies.report import study_pages
from adaptive.studies.report.html_report import write_report
from adaptive.studies.report.study_pages import profile_figures
from adaptive.studies.simulate.simulation import simulate
from adaptive.studies.step_model import Locality, Machine
from adaptive.training.settings import load_settings
from adaptive.training.telemetry.document import COLORS, Document, Folded, Heading, Note, Table, escaped, visible

ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body", "header", "h1", "p", "nav", "a", "main", "section", "h2"),
    *("div", "table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "svg", "g", "path"),
    *("defs", "use", "text", "clippath", "rect", "ul", "li", "span", "details", "summary", "pattern"),
}


def hostile_run(tmp_path: Path) -> Path:
    run = write_run(
        tmp_path / "<b>run & 'co'",
        tables=HOSTILE,
        policy=HOSTILE[0],
        skips=True,
        more={
            "summary": {"rejected_lines": {HOSTILE[1]: 2}, "policy_numbers": {HOSTILE[0]: 1.0}, "policy": HOSTILE[0]},
            "config": {HOSTILE[1]: HOSTILE[0], "policy": HOSTILE[0]},
            "data": {HOSTILE[3]: list(HOSTILE)},
        },
    )
    bad = {"file": "<i>.csv", "line": 3, "cause": "hex", "column": HOSTILE[1], "text": HOSTILE[0]}
    (run / "rejects.jsonl").write_text(json.dumps(bad) + "\n")
    return run


def check(page: str) -> Seen:
    """Check that a page has only known elements, all closed."""
    seen = Seen(page)
    assert not seen.open and set(seen.tags) <= ELEMENTS, set(seen.tags) - ELEMENTS
    assert not [
        attribute
        for attribute in seen.attributes
        if attribute[1].startswith("on") or attribute[1] in ("src", "srcset", "action")
    ]
    links = [value for _, name, value in seen.attributes if name in ("href", "xlink:href")]
    assert all(link.startswith("#") for link in links)
    assert not re.search(r"url\((?!#)|@import", page)
    return seen


def test_hostile_names_are_shown_as_text(tmp_path: Path) -> None:
    seen = check(page := page_of(hostile_run(tmp_path)))
    for name in (HOSTILE[0], HOSTILE[1], "a\\x00b\\x1b[31m", "\\u202eexe.gpj", "</svg>&amp;", "\\ud800", "表の名"):
        assert name in seen.text, name
    for hidden in "\x00\x1b\u202e":
        assert hidden not in page
    assert "<b>run & 'co'" in seen.text and "<i>.csv:3" in seen.text
    drawn = page[page.index("<svg") : page.rindex("</svg>")]
    assert "#0a0" not in re.sub(r">[^<]*<", "><", drawn)  # every color became one of the style's


def page_of(*paths: Path) -> str:
    out = paths[0].parent / "page.html"
    write_report(paths, out)
    return out.read_text(encoding="utf-8")


def hostile_policies(*paths: Path) -> None:
    """Check that the names in `HOSTILE[:4]` are on the page, and only made visible."""
    text = check(page := page_of(*paths)).text
    for name in (HOSTILE[0], HOSTILE[1], "a\\x00b\\x1b[31m", "\\u202eexe.gpj"):
        assert name in text, name
    assert not set(page) & {"\x00", "\x1b", "\u202e"}


@pytest.mark.nightly
def test_hostile_policy_names_are_shown_as_text(tmp_path: Path) -> None:
    hostile_policies(*(write_run(tmp_path / f"run{number}", policy=name) for number, name in enumerate(HOSTILE[:4])))
    (tmp_path / "compared.json").write_text(json.dumps(comparison(policies=HOSTILE[:4])))
    hostile_policies(tmp_path / "compared.json")
    sets = ("data.synthetic.rows=100000", "data.synthetic.num_train=500", "data.synthetic.num_eval=0", "batch_size=100")
    result = simulate([("lru", load_settings(sets=sets)[0])], ["20%"], Machine(1e9, 1e9, 1e9, 1.0))
    result = replace(result, runs=[replace(result.runs[0], policy=policy) for policy in HOSTILE[:4]])
    (tmp_path / "simulated.json").write_text(json.dumps(asdict(result)))
    hostile_policies(tmp_path / "simulated.json")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("tab\tline\n", "tab\tline\n"),
        ("\x07\x7f\x9f", "\\x07\\x7f\\x9f"),
        ("\u202a\u2066\u200f\ufeff\u2028", "\\u202a\\u2066\\u200f\\ufeff\\u2028"),
        ("\U000e0041", "\\U000e0041"),
        ("Ünïcode עברית 表", "Ünïcode עברית 表"),
    ],
)
def test_invisible_characters_are_shown_by_number(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_attributes_are_escaped() -> None:
    assert escaped("""<a b="c" d='e'>&""") == "&lt;a b=&quot;c&quot; d=&#x27;e&#x27;&gt;&amp;"


def test_blocks_become_elements() -> None:
    table = Table([["name", "rows"], ["user", "10"]], "a caption")
    seen = check(Document([Heading("First"), Note("text"), Folded("more", [table])]).to_html("Title", "about"))
    words = " ".join(seen.text.split())
    assert words == "Title Title about First First text more a caption name rows user 10"
    assert ("a", "href", "#part-0") in seen.attributes and ("section", "id", "part-0") in seen.attributes


def test_the_style_has_every_color_for_light_and_dark() -> None:
    page = Document([]).to_html("Title", "about")
    for number in range(COLORS):
        assert page.count(f"--s{number}:#") == 2 and f".c{number}{{border-color:var(--s{number})" in page
    assert f"--s{COLORS}:" not in page


@pytest.mark.nightly
def test_a_browser_opens_the_page_without_complaint(tmp_path: Path) -> None:
    """The browser's console is empty, except for a page that violates its policy."""
    page, out = page_of(hostile_run(tmp_path), write_run(tmp_path / "other")), tmp_path / "page.html"
    for size in ("1400,1000", "500,1000"):
        dom, console = browse(out.as_uri(), tmp_path / "browser", size=size)
        assert console == "" and dom.count("<script") == 0 and dom.count("<svg") > 10
    loud = tmp_path / "loud.html"
    loud.write_text(page.replace("<main>", "<main><img src='http://localhost:9/x.png'>"))
    assert "Content Security Policy" in browse(loud.as_uri(), tmp_path / "browser")[1]


def test_hostile_profiles_are_shown_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile's pictures have names of tables, and the page's colors."""
    data = data_profile(
        tables=[TableSkew(name, 10, 20, 1.0, 2, None, 1, 2, None, None) for name in HOSTILE[:4]],
        curves=[SkewCurve(name, [(1, 9), (2, 3)], [(1, 2)]) for name in HOSTILE[:4]],
    )
    monkeypatch.setattr(study_pages, "PICTURES", {name: PICTURES[name] for name in ("skew", "tables")})
    ((skew, tables),) = profile_figures(asdict(Profile("made up", data))).values()
    for svg in (skew.svg, tables.svg):
        seen = check(svg)
        assert HOSTILE[0] in seen.text and "a\\x00b\\x1b[31m" in seen.text and "\u202e" not in svg
        assert "mathdefault" not in svg and "var(--s0)" in svg and "#1f77b4" not in svg


LOCALITY = Locality("made up", (0.1, 0.5), (0.8, 0.95), (0.2, 0.6), (64.0, 1024.0), (0.6, 0.4))


@pytest.mark.parametrize(
    "sweeps", [(), (("num_dense", ["64", "256"]),), (("num_dense", ["64"]), ("mlp", ["8^1", "9^2"]))]
)
def test_a_page_of_placements(tmp_path: Path, sweeps: tuple[tuple[str, list[str]], ...]) -> None:
    machine = load_machine("big-basin").model_copy(update={"name": "<b>$x$"})
    record = compare_placements([load_shape("sweep")], [machine], ["device", "host"], LOCALITY, sweeps=sweeps)
    record = replace(record, measured=[MeasuredPlacement("lfu", {}, 64, fits=False, note="<i>no room</i>")])
    (tmp_path / "placements.json").write_text(json.dumps(asdict(record)))
    page = page_of(tmp_path)
    assert "Placements, modeled" in page and "&lt;b&gt;$x$" in page and "<b>$x$" not in page
    assert "&lt;i&gt;no room" in page and "<svg" in page and "<image" not in page


def test_a_page_of_a_reproduction(tmp_path: Path) -> None:
    """Records of commands are shown; a name that leads out of the folder is not followed."""
    record = {
        "kind": "reproduction", "title": "T<x>", "source": "S",
        "derived": {
            "slots": {"title": "slots", "unit": "rows", "values": {"depth 0": 5.0}},
            "quality": {
                "title": "AUC by step", "unit": "AUC", "values": {"a<b": 0.7}, "note": "of <one> seed",
                "curves": {"x": "step", "y": "AUC", "lines": {"a<b": [[1, 0.5], [2, 0.7]]}},
            },
        },
        "claims": [
            {"says": "it grows", "holds": False, "numbers": "1 not > 2"},
            {"says": "it turns", "holds": False, "numbers": "1 not < 0", "why": "the <model>"},
        ],
        "published": [], "missing": [{"what": "a machine", "why": "none"}],
        "commands": [
            {"id": "a", "shows": "figure 1", "words": "profile"},
            {"id": "placements", "shows": "figure <14>", "words": "placements"},
            {"id": "../a", "shows": "a folder above", "words": "profile"},
        ],
    }  # fmt: skip
    (tmp_path / "reproduction.json").write_text(json.dumps(record))
    placements = compare_placements([load_shape("sweep")], [load_machine("big-basin")], ["device", "host"], LOCALITY)
    (tmp_path / "placements.json").write_text(json.dumps(asdict(placements)))
    page = page_of(tmp_path)
    for text in (
        *("T&lt;x&gt;", "it grows", "1 not &gt; 2", "depth 0", "a machine", "adaptive-train profile", "a&lt;b"),
        *(
            "it turns, because the &lt;model&gt;",
            "figure &lt;14&gt;",
            "placements: Placements, modeled",
            "of &lt;one&gt;",
        ),
    ):
        assert text in page
    assert page.count("<svg") == 3 and "../a: " not in page
