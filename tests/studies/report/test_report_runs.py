"""The content of a page of runs."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.report_records import Seen, interval, nothing_drawn, write_run  # noqa: F401 (fixture)

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
    """Return heading -> its blocks, including nested ones."""
    result: dict[str, list[DocumentBlock]] = {}
    for block in unfolded(run_blocks(runs)):
        if isinstance(block, Heading):
            blocks = result[block.text] = []
        else:
            blocks.append(block)
    return {title: blocks for title, blocks in result.items() if blocks}


def rows(blocks: Sequence[DocumentBlock]) -> dict[str, list[str]]:
    """Return first cell -> other cells, for all tables among the blocks."""
    tables = [block for block in blocks if isinstance(block, Table)]
    return {first: cells for table in tables for first, *cells in map(list, table.rows)}


def unfolded(blocks: Sequence[DocumentBlock]) -> list[DocumentBlock]:
    result: list[DocumentBlock] = []
    for block in blocks:
        match block:
            case Folded():
                result += unfolded(block.blocks)
            case Columns():
                result += unfolded([*block.left, *block.right])
            case _:
                result.append(block)
    return result


def pictures(blocks: Sequence[DocumentBlock]) -> list[str]:
    return [figure.title for block in blocks if isinstance(block, Gallery) for figure in block.figures]


def lead(blocks: Sequence[DocumentBlock]) -> str:
    (note,) = (block for block in blocks if isinstance(block, Note) and block.is_lead)
    return note.text


def test_intervals_are_joined_without_loss() -> None:
    """Counts add up, states are the last ones, losses are means over steps."""
    result = stretches([interval(number) for number in range(1, 8)], most=3)
    assert [interval.step for interval in result] == [30, 60, 70] and [interval.steps for interval in result] == [
        30,
        30,
        10,
    ]
    assert [interval.whole.promoted for interval in result] == [2 * 7 * 6, 2 * 7 * 15, 2 * 7 * 7]
    assert [interval.whole.resident_rows for interval in result] == [2 * 30, 2 * 60, 2 * 70]
    assert result[0].loss == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert [interval.totals.samples_per_s for interval in result] == pytest.approx([1000.0] * 3)
    assert result[1].last.step == 60
    assert stretches([], most=3) == []


def test_a_page_shows_what_the_run_recorded(tmp_path: Path) -> None:
    run = named(write_run(tmp_path / "a", skips=True))
    result = sections(run)
    assert list(result) == [
        *("Quality", "Learning", "Stages of a step", "Tier movement", "Traffic", "Skipped updates"),
        *("Policy reports", "Bad lines", "Settings", "Data, versions and machine"),
    ]
    quality = rows(result["Quality"])
    assert quality["AUC"] == ["0.7654"] and quality["log loss"] == ["0.4321"] and quality["status"] == ["finished"]
    assert quality["judged on"] == ["500 held-out samples"]
    assert rows(result["Stages of a step"])["backward"] == ["3.00"]
    assert rows(result["Traffic"])["rows to the device"] == [str(2 * 7 * 10)]
    user = rows(result["Traffic"])["user"]
    assert user[:3] == ["1,000", "40", "1,000"] and user[-5:] == ["20", "8", "3", "4", "2.0%"]
    assert pictures(result["Tier movement"])[0] == "mine: rows on the device by table"
    assert rows(result["Policy reports"])["rate"] == ["4"]
    assert pictures(result["Policy reports"]) == ["rate"]  # what never changes has no curve
    assert rows(result["Settings"])["tier.host"] == ["memory"]
    assert rows(result["Data, versions and machine"])["version of torch"] == ["2.0"]


def test_the_page_begins_with_the_outcome(tmp_path: Path) -> None:
    """Several runs are compared; a single run shows its numbers."""
    first, second = (named(write_run(tmp_path / name), name) for name in ("a", "b"))
    summary = {"auc": 0.75, "samples_per_s_later": 400.0}
    first = replace(first, record={**first.record, "summary": {**first.record["summary"], **summary}})
    best = {"auc": 0.7625, "samples_per_s_later": 300.0}
    second = replace(second, record={**second.record, "summary": {**second.record["summary"], **best}})
    assert [lead(sections(*runs)["Quality"]) for runs in ((first, second), (first,))] == [
        "Highest AUC: b, 0.7625 (+0.01250 against a); fastest: a, 400 samples/s (1.33 times b).",
        "AUC 0.7500; 400 samples/s",
    ]
    training = replace(second, record={**second.record, "summary": {**second.record["summary"], "auc_of": "training"}})
    assert lead(sections(first, training)["Quality"]).startswith(
        "Highest AUC: a, 0.7500; "
    )  # AUC of other samples is not compared


def test_each_stage_has_its_own_color(tmp_path: Path) -> None:
    """No two stages of the section share a color."""
    result = sections(named(write_run(tmp_path / "a")))["Stages of a step"]
    galleries = [block for block in result if isinstance(block, Gallery)]
    legends = [figure.legend for figure in galleries[0].figures]
    places = [place for legend in legends for place, label in enumerate(legend) if label]
    assert len(places) == len(set(places)) > 2


def test_runs_are_columns_and_differences_come_first(tmp_path: Path) -> None:
    first = named(write_run(tmp_path / "a"), "first")
    second = named(write_run(tmp_path / "b", policy="lru", intervals=2, finished=False), "second")
    result = sections(first, second)
    assert rows(result["Quality"])["status"] == ["finished", "running"]
    assert rows(result["Quality"])["steps"] == ["40", "20"]  # of a run under way: so far
    table = next(block for block in result["Settings"] if isinstance(block, Table))
    assert list(map(list, table.rows)) == [["setting", "first", "second"], ["policy", "lfu", "lru"]]


def _page(tmp_path: Path, *paths: Path) -> str:
    write_report(paths, tmp_path / "page.html")
    return (tmp_path / "page.html").read_text()


def test_a_run_without_metrics_shows_its_summary(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    (run / "metrics.jsonl").unlink()
    text = Seen(_page(tmp_path, run)).text
    assert "There are no curves for a: metrics.jsonl is missing or has no interval." in text and "0.7654" in text


def test_a_run_without_steps_has_a_page(tmp_path: Path) -> None:
    text = Seen(_page(tmp_path, write_run(tmp_path / "a", intervals=0, finished=False))).text
    assert "no record of skipped updates" in text and "running" in text


def test_damaged_lines_are_counted_and_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", more={"summary": {"rejected_lines": {"hex": 2}, "out_of_range_ids": {"user": 5}}})
    bad = [json.dumps({"file": "x.csv", "line": n, "cause": "hex", "column": "user", "text": "zz"}) for n in (3, 9)]
    (run / "rejects.jsonl").write_text("\n".join(bad) + '\n{"file": "x')  # the last one is being written
    result = rows(sections(named(run))["Bad lines"])
    assert result["hex"] == ["2"] and result["user"] == ["5"]
    assert result["x.csv:9"] == ["hex", "user", "zz"]


def test_a_run_keeps_its_color_in_every_section(tmp_path: Path) -> None:
    """A run without intervals keeps its color number."""
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
