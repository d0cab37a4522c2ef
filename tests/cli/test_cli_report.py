"""`report`: a page of the results of other commands, and mistakes."""

import json
from collections.abc import Callable
from pathlib import Path

from support.report_records import Seen, write_run


def test_a_simulation_becomes_a_page(cli: Callable[..., object], tmp_path: Path) -> None:
    """The output of `simulate --json`, with a size that is too small."""
    small = ("--steps", "4", "--batch-size", "64", "--device-rows", "10,5%,20%")
    result = cli("simulate", "--policies", "lru,lfu", *small, "--json")
    assert result.code == 0, result.err  # type: ignore[attr-defined]
    Path("sim.json").write_text(result.out)  # type: ignore[attr-defined]
    done = cli("report", "sim.json", "--out", "page.html", "--json")
    assert json.loads(done.out)["kind"] == "simulation"  # type: ignore[attr-defined]
    text = Seen(Path("page.html").read_text()).text
    assert (
        "Row hits, and modeled steps" in text
        and "lru with 10, lfu with 10 device rows" in text
        and "46.6 GiB/s" in text
    )


def test_mistakes_have_exit_codes_and_leave_nothing(cli: Callable[..., object], tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    for words, code, said in (
        (("report",), 2, "Missing argument"),
        (("report", "nothing"), 3, "got no file or folder"),
        (("report", str(run), "--out", "missing/page.html"), 6, "folder missing does not exist"),
        (("report", str(run), "--out", str(run)), 6, "expected a file, got a folder"),
    ):
        result = cli(*words)
        assert (result.code, said in result.err) == (code, True), result  # type: ignore[attr-defined]
    assert not list(tmp_path.glob("*.html"))
    assert cli("report", str(run)).code == 0 and (tmp_path / "report.html").exists()  # type: ignore[attr-defined]
