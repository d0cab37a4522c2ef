"""What a page says of runs: their own numbers, side by side, however long they were."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.report_records import GUARDED, Seen, interval, nothing_drawn, write_run  # noqa: F401 (fixture)

from adaptive.studies.report.html_report import write_report
from adaptive.studies.report.page_records import PageRecord, load_run
from adaptive.studies.report.run_page import run_blocks
from adaptive.studies.report.run_view import stretches, views
from adaptive.training.telemetry.document import (
    Columns,
    DocumentBlock,
    Folded,
    Gallery,
    Heading,
    Legend,
    Note,
    Table,
)


@pytest.fixture(autouse=True)
def drawn_for_size_only(request: pytest.FixtureRequest) -> None:
    if "nightly" not in request.keywords:
        request.getfixturevalue("nothing_drawn")


def named(run: Path, name: str = "mine") -> PageRecord:
    return replace(load_run(run), name=name)


def sections(*runs: PageRecord) -> dict[str, list[DocumentBlock]]:
    """Heading -> its blocks, those inside others too."""
    found: dict[str, list[DocumentBlock]] = {}
    for block in unfolded(run_blocks(runs)):
        if isinstance(block, Heading):
            blocks = found[block.text] = []
        else:
            blocks.append(block)
    return {title: blocks for title, blocks in found.items() if blocks}


def rows(blocks: Sequence[DocumentBlock]) -> dict[str, list[str]]:
    """First cell -> the others, of all tables among the blocks."""
    tables = [block for block in blocks if isinstance(block, Table)]
    return {first: cells for table in tables for first, *cells in map(list, table.rows)}


def unfolded(blocks: Sequence[DocumentBlock]) -> list[DocumentBlock]:
    found: list[DocumentBlock] = []
    for block in blocks:
        match block:
            case Folded():
                found += unfolded(block.blocks)
            case Columns():
                found += unfolded([*block.left, *block.right])
            case _:
                found.append(block)
    return found


def pictures(blocks: Sequence[DocumentBlock]) -> list[str]:
    return [figure.title for block in blocks if isinstance(block, Gallery) for figure in block.figures]


def lead(blocks: Sequence[DocumentBlock]) -> str:
    (note,) = (block for block in blocks if isinstance(block, Note) and block.is_lead)
    return note.text


def test_intervals_are_joined_without_loss() -> None:
    """Seven intervals in stretches of three: counts add up, what is "now" is the last, losses are means over steps."""
    found = stretches([interval(number) for number in range(1, 8)], most=3)
    assert [one.step for one in found] == [30, 60, 70] and [one.steps for one in found] == [30, 30, 10]
    assert [one.whole.promoted for one in found] == [2 * 7 * 6, 2 * 7 * 15, 2 * 7 * 7]
    assert [one.whole.resident_rows for one in found] == [2 * 30, 2 * 60, 2 * 70]
    assert found[0].loss == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert [one.totals.samples_per_s for one in found] == pytest.approx([1000.0] * 3)
    assert found[1].last.step == 60
    assert stretches([], most=3) == []


def test_a_page_says_what_the_run_recorded(tmp_path: Path) -> None:
    run = named(write_run(tmp_path / "a", guard=True, skips=True))
    found = sections(run)
    assert list(found) == [
        *("Quality", "Learning", "Stages of a step", "Tier movement", "Traffic", "What was skipped"),
        *("What the policy reports", "The guard's decisions", "Bad lines", "Settings", "Data, versions and machine"),
    ]
    quality = rows(found["Quality"])
    assert quality["AUC"] == ["0.7654"] and quality["log loss"] == ["0.4321"] and quality["status"] == ["finished"]
    assert quality["judged on"] == ["500 held-out samples"]
    assert rows(found["Stages of a step"])["backward"] == ["3.00"]
    assert rows(found["Traffic"])["rows to the device"] == [str(2 * 7 * 10)]
    user = rows(found["Traffic"])["user"]
    assert user[:3] == ["1,000", "40", "1,000"] and user[-3:] == ["20", "4", "2.0%"]
    assert pictures(found["Tier movement"])[0] == "mine: rows on the device by table"
    assert rows(found["What the policy reports"])["rate"] == ["4"]
    assert pictures(found["What the policy reports"]) == ["rate"]  # what never changes has no curve
    assert rows(found["The guard's decisions"])["30"][1] == "100.0% to 25.0%"
    assert GUARDED.trigger in rows(found["The guard's decisions"])["30"]
    assert rows(found["Settings"])["tier.host"] == ["memory"]
    assert rows(found["Data, versions and machine"])["version of torch"] == ["2.0"]


def test_the_page_begins_with_what_came_out(tmp_path: Path) -> None:
    """Of several runs who was best by how much, of one its own numbers."""
    one, two = (named(write_run(tmp_path / name), name) for name in ("a", "b"))
    summary = {"auc": 0.75, "samples_per_s_later": 400.0}
    one = replace(one, record={**one.record, "summary": {**one.record["summary"], **summary}})
    best = {"auc": 0.7625, "samples_per_s_later": 300.0}
    two = replace(two, record={**two.record, "summary": {**two.record["summary"], **best}})
    assert [lead(sections(*runs)["Quality"]) for runs in ((one, two), (one,))] == [
        "Highest AUC: b, 0.7625 (+0.01250 against a); fastest: a, 400 samples/s (1.33 times b).",
        "AUC 0.7500; 400 samples/s",
    ]
    training = replace(two, record={**two.record, "summary": {**two.record["summary"], "auc_of": "training"}})
    assert lead(sections(one, training)["Quality"]).startswith(
        "Highest AUC: a, 0.7500; "
    )  # AUC of other samples is not compared


def test_stages_have_colours_of_their_own(tmp_path: Path) -> None:
    """Those of training and those next to it: no two of the section share one, or have another hatch."""
    found = sections(named(write_run(tmp_path / "a")))["Stages of a step"]
    galleries = [block for block in found if isinstance(block, Gallery)]
    legends = [figure.legend for figure in galleries[0].figures]
    places = [place for legend in legends for place, label in enumerate(legend) if label]
    assert len(places) == len(set(places)) > 2


def test_runs_stand_side_by_side_and_differences_come_first(tmp_path: Path) -> None:
    first = named(write_run(tmp_path / "a"), "first")
    second = named(write_run(tmp_path / "b", policy="lru", intervals=2, finished=False), "second")
    found = sections(first, second)
    assert rows(found["Quality"])["status"] == ["finished", "running"]
    assert rows(found["Quality"])["steps"] == ["40", "20"]  # of a run under way: so far
    table = next(block for block in found["Settings"] if isinstance(block, Table))
    assert list(map(list, table.rows)) == [["setting", "first", "second"], ["policy", "lfu", "lru"]]


def _page(tmp_path: Path, *paths: Path) -> str:
    write_report(paths, tmp_path / "page.html")
    return (tmp_path / "page.html").read_text()


def test_a_run_without_metrics_still_has_its_end(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    (run / "metrics.jsonl").unlink()
    text = Seen(_page(tmp_path, run)).text
    assert "No curves of a: metrics.jsonl has no interval, or is not there." in text and "0.7654" in text


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    text = Seen(_page(tmp_path, write_run(tmp_path / "a", intervals=0, finished=False))).text
    assert "no record says what was skipped" in text and "running" in text


def test_bad_lines_are_counted_and_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", more={"summary": {"rejected_lines": {"hex": 2}, "out_of_range_ids": {"user": 5}}})
    bad = [json.dumps({"file": "x.csv", "line": n, "cause": "hex", "column": "user", "text": "zz"}) for n in (3, 9)]
    (run / "rejects.jsonl").write_text("\n".join(bad) + '\n{"file": "x')  # the last one is being written
    found = rows(sections(named(run))["Bad lines"])
    assert found["hex"] == ["2"] and found["user"] == ["5"]
    assert found["x.csv:9"] == ["hex", "user", "zz"]


def test_colours_are_those_of_runs_in_every_section(tmp_path: Path) -> None:
    """A run without intervals keeps its number, so the one behind it has its colour in all pictures."""
    empty = named(write_run(tmp_path / "a", intervals=0), "empty")
    run, other = views([empty, named(write_run(tmp_path / "b"), "full")])
    assert (run.number, other.number) == (0, 1)
    legend, *_ = sections(empty, named(tmp_path / "b", "full"))["Traffic"]
    assert legend == Legend(["", "full (lfu)"])


@pytest.mark.nightly
def test_many_long_runs_fit_two_megabytes(tmp_path: Path) -> None:
    names = [f"column_{number}" for number in range(26)]
    first = write_run(tmp_path / "runs/r0", intervals=600, tables=names, skips=True)
    for number in range(1, 16):
        other = tmp_path / f"runs/r{number}"
        other.mkdir()
        for file in ("run.json", "metrics.jsonl"):
            (other / file).hardlink_to(first / file)
    assert len(_page(tmp_path, tmp_path / "runs").encode()) < 2_000_000
