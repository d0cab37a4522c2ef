"""Scripts of papers: claims, command lines, mistakes and derived tables."""

import importlib
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support.report_records import data_profile, write_run

from adaptive.errors import ConfigError, InputError
from adaptive.studies.profile import HotByMemory, HotBySample, Reuse, TableSkew
from adaptive.studies.reproduce.derived_tables import (
    dropped_within_budget,
    evaluations_by_step,
    headlines,
    ratios,
    transfers,
)
from adaptive.studies.reproduce.paper import (
    Claim,
    Command,
    DerivedTable,
    Missing,
    Paper,
    Published,
    Records,
    less,
    load_paper,
    over,
    paper_names,
    row,
)
from adaptive.studies.reproduce.reproduction import StoppedError, command_lines, reproduce

SIMULATED = {"least_device_rows": 5, "distinct_rows": 8, "batches": 2, "runs": [], "machine": {}}
PROFILED = {"kind": "profile", "data_of": "x", "n": 3, **SIMULATED}


def script(name: str) -> Any:
    """The module of a paper that comes with the package."""
    return importlib.import_module(f"adaptive.studies.reproduce.papers.{name}")


@pytest.mark.parametrize(
    ("ours", "sign", "bound", "holds", "numbers"),
    [
        (3, ">", 2, True, "3 > 2"),
        (3, "<", 3, False, "3 not < 3"),
        (over(3, 4), ">", 0.7, True, "0.75 > 0.7"),
        (less(3, 4), ">", 0, False, "-1 not > 0"),
        (less(3, 4), "within", 1, True, "-1 within 1"),
        (less(3, 4), "within", 0.5, False, "-1 not within 0.5"),
        (2.1, "about", 2.4, True, "2.1, paper 2.4 +-15%"),
        (2.0, "about", 2.4, False, "2, paper 2.4 +-15%"),
        (2.8, "about", 2.4, False, "2.8, paper 2.4 +-15%"),
        (None, "within", 1, False, "unknown"),
        (over(1, 0), ">", 0, False, "unknown"),
        (over(None, 2), "<", 1, False, "unknown"),
        (less(3, None), "<", 1, False, "unknown"),
        (3, ">", None, False, "unknown"),
    ],
)
def test_claims_are_judged_by_numbers(ours: Any, sign: Any, bound: Any, holds: bool, numbers: str) -> None:
    claim = Claim("it", ours, sign, bound, "so it is")
    assert (claim.holds, claim.numbers) == (holds, numbers)


def test_a_ratio_of_a_paper_needs_a_reason() -> None:
    with pytest.raises(ConfigError, match=r"claim 'twice as fast': expected a reason \(why\)"):
        Claim("twice as fast", 1.0, "about", 2.0)


def test_rows_are_found_by_values() -> None:
    rows = [{"name": "x", "n": 3}, {"name": "x", "n": 4}]
    assert row(rows, name="x")["n"] == 3 and row(rows, name="x", n="4") is rows[1]
    with pytest.raises(KeyError, match="name=z, n=3"):
        row(rows, name="z", n=3)


def test_every_paper_has_a_script() -> None:
    assert paper_names() == ["fae", "hotline", "scratchpipe", "slipstream", "tutorial", "zion"]
    for name in paper_names():
        paper = load_paper(name)
        assert paper.name == name and paper.published and paper.missing


def made_up(**more: Any) -> Paper:
    def findings(records: Records) -> Iterator[Claim | DerivedTable]:
        yield Claim("first", records["c"]["n"], ">", 1)
        yield script("scratchpipe").slots(records)
        yield Claim("later", records["depth-2"]["n"], ">", 1)

    commands = (
        Command("c", "t", "compare --policies lru --seeds 1", full="--steps 9", quick="--steps 5 --set b=2"),
        *(Command(f"depth-{depth}", "s", f"simulate --depth {depth}") for depth in (0, 2)),
    )
    return Paper(**({"title": "T", "source": "S", "commands": commands, "findings": findings} | more))


def test_command_lines_of_a_script() -> None:
    lines = command_lines(made_up(), Path("out"), quick=True, seeds=2, more=["--data", "csv:x"])
    assert [(command.id, shlex.join(words)) for command, words in lines] == [
        ("c", "compare --policies lru --seeds 1 --steps 5 --set b=2 --data csv:x --seeds 2 --out out/c"),
        ("depth-0", "simulate --depth 0 --data csv:x --plot out/depth-0.png"),
        ("depth-2", "simulate --depth 2 --data csv:x --plot out/depth-2.png"),
    ]
    assert command_lines(made_up(), Path("out"))[0][1] == shlex.split(
        "compare --policies lru --seeds 1 --steps 9 --out out/c"
    )


def test_slots_and_transfers_equal_a_case_by_hand() -> None:
    table = script("scratchpipe").slots(
        {f"depth-{d}": {"least_device_rows": 50 * (d + 1), "distinct_rows": 1000, "batches": 10} for d in (0, 2)}
    )
    assert table.values == {"depth 0": 50.0, "depth 2": 150.0}
    assert table.details["over_bound"] == {"depth 0": 0.5, "depth 2": 0.5}
    policies = [
        {"policy": "hybrid", "bytes_h2d": 2**21, "bytes_d2h": 2**21, "steps": 2, "samples": 2048, "policy_numbers": {}},
        {"policy": "fae", "bytes_h2d": 2**20, "bytes_d2h": 0, "steps": 2, "policy_numbers": {"two_home_bytes": 2**22}},
    ]
    records = records_of(0.5, {"policies": policies})  # 10,000 distinct rows for 26,624 lookups
    table = transfers(records)
    assert table.values.pop("XDL") == pytest.approx(2 * 10_000 / 26_624)
    assert table.values == {"DLRM": 2.0, "fae, two homes": 2.5, "fae here": 0.5}
    link = 15.8e9 * 0.8  # of v100-pcie3, with the share that is assumed
    assert f"DLRM {1e3 * 2**21 / link:.3g}" in table.note


def test_popular_inputs_by_learning_and_logger() -> None:
    def run(policy: str, popular: int) -> dict[str, Any]:
        return {"policy": policy, "policy_numbers": {"popular_inputs": popular, "seen_inputs": 200}}

    runs = [
        run("hotline+learn=5%", 100),
        run("hotline+logger=srrip+logger_bytes=4096", 40),
        run("hotline+logger=srrip+logger_bytes=1024", 20),
        {"policy": "hotline+learn=90%", "policy_numbers": {"popular_inputs": 0, "seen_inputs": 0}},
    ]
    popular = script("hotline").popular_inputs({"learning": {"runs": runs}})
    assert popular.values == {runs[0]["policy"]: 50, runs[1]["policy"]: 20, runs[2]["policy"]: 10}
    table = script("hotline").logger_size(popular)
    assert table.values == {"1 KiB": 10, "4 KiB": 20, "exact counts": 50}
    assert table.lines == {"srrip": [(1, 10), (4, 20)], "exact": [(1, 50), (4, 50)]}


def test_quality_by_step_uses_the_first_seed(tmp_path: Path) -> None:
    runs = [{"run_dir": str(write_run(tmp_path / name, intervals=3))} for name in ("first", "second")]
    gone = {"policy": "b", "runs": [{"run_dir": str(tmp_path / "gone")}]}
    records = {"compare": {"policies": [{"policy": "a", "runs": runs}, gone]}}
    table = evaluations_by_step(records, "auc")
    assert table.lines == {"a": [(10.0, 0.71), (20.0, 0.72), (30.0, 0.73)]} and table.values == {"a": 0.73}
    assert evaluations_by_step(records, "accuracy").values == {}


def test_quality_by_batch_size() -> None:
    policies = [
        {"policy": "a", "swept": {"batch_size": 512}, "auc": 0.75},
        {"policy": "a", "swept": {"batch_size": 4096}, "auc": 0.5},
        {"policy": "b", "swept": {"batch_size": 512}, "auc": None},
    ]
    table = script("zion").batch_quality({"trained": {"policies": policies}})
    assert table.values == {"a, batches of 512": 0.75, "a, batches of 4096": 0.5}
    assert table.lines == {"a": [(512, 0.75), (4096, 0.5)]}


def test_skipping_is_plotted_by_skipped_share() -> None:
    def policy(name: str, inputs: float, updates: float, deferred: float, change: float | None) -> dict[str, Any]:
        shares = {"skipped_input_share": inputs, "skipped_update_share": updates, "deferred_update_share": deferred}
        return {"policy": name, "auc_difference": change, **shares}

    policies = [
        policy("lru", 0, 0, 0, 0.0),
        policy("slipstream", 0, 0.5, 0.5, 0.001),
        policy("u", 0, 0.25, 0, -0.002),
        policy("i2", 0.5, 0.3, 0, -0.004),
        policy("i1", 0.25, 0.1, 0, -0.003),
        policy("random_drop+share=0.5", 0.5, 0, 0, -0.005),
        policy("stopped", 0.5, 0, 0, None),
    ]
    table = script("slipstream").skipping({"compare": {"policies": policies, "auc_budget": 0.0005}})
    assert table.lines == {
        "updates deferred": [(50, 0.001)],
        "updates left out": [(25, -0.002)],
        "inputs dropped": [(25, -0.003), (50, -0.004)],
        "inputs dropped at random": [(50, -0.005)],
        "budget": [(0, -0.0005), (50, -0.0005)],
    }
    assert set(table.values) == {"slipstream", "u", "i1", "i2", "random_drop+share=0.5"}


def test_designs_have_a_curve_and_a_table() -> None:
    def run(policy: str, share: float, **ms: float) -> dict[str, Any]:
        return {"policy": policy, "device_share": share, "step_ms": ms}

    runs = [
        run("static", 0.5, hybrid=9, serial=5),
        run("static", 0.25, hybrid=9, serial=6),
        run("lru", 0.25, serial=7),
        run("scratchpipe", 0.25, look_ahead=3, device_only=2),
    ]
    table = script("scratchpipe").designs({"hits": {"runs": runs}})
    assert list(table.values.values()) == [9, 6, 7, 3, 2]
    assert table.lines["static cache, no overlap"] == [(50, 5), (25, 6)]


def records_of(hot: float, compare: dict[str, Any]) -> dict[str, Any]:
    """A comparison next to data of which a share of the inputs is hot at 7% of the rows."""
    by_sample = HotBySample(1, 0.9, hot, {}, 1.0, 1.0, 0.0, 4.0)
    budget = HotByMemory(70, 0.9, hot, {}, "7%", 70, 280, None, by_sample)
    reuse = Reuse(1024, 1, {}, {"1024": 10_000.0, "4096": 20_000.0})
    tables = [TableSkew("C", 40, 1_000, 1.0, 40, 0.1, 1, 1, None, None)] * 26
    shape = {"lookups": 26_000, "samples": 1_000, "rows": 1_000, "tables": tables}
    return {"data": {"data": asdict(data_profile(**shape, hot=[budget], reuse=reuse))}, "compare": compare}


def compared(**rules: tuple[float, float | None, str]) -> dict[str, Any]:
    """A comparison of policies by name: share of dropped inputs, change of AUC, verdict."""
    names = ("skipped_input_share", "auc_difference", "verdict")
    policies = [{"policy": name, **dict(zip(names, values, strict=True))} for name, values in rules.items()]
    return {"policies": policies, "auc_budget": 0.0005}


def test_a_rule_that_loses_quality_drops_nothing() -> None:
    """However much it drops: its time does not count."""
    rules = {"greedy": (0.4, -0.004, "outside"), "unknown": (0.5, None, "failed"), "shown": (0.3, 0.0, "outside")}
    assert dropped_within_budget({"compare": compared(**rules)}) == ("", 0.0)
    assert dropped_within_budget({}) == ("", 0.0)
    rules |= {"small": (0.1, 0.001, "within"), "good": (0.2, -0.0004, "undecided"), "off": (0.0, 0.0, "within")}
    assert dropped_within_budget({"compare": compared(**rules)}) == ("good", 0.2)
    records = records_of(0.5, compared(**rules))
    assert ratios(records).details["dropped"] == 0.2
    records["compare"] = compared(greedy=(0.4, -0.004, "outside"))
    speeds = ratios(records).values
    assert speeds["Slipstream"] == speeds["FAE"]


def test_headlines_compare_modeled_ratios_with_published_ones() -> None:
    speeds = ratios(records_of(0.75, compared()))
    wanted = {"DLRM": (speeds.values["FAE"] * 1.1, "here"), "XDL": (1.73, "table 5")}
    near, far = headlines(speeds, "FAE", wanted)
    assert near.holds and near.says.startswith("FAE is") and near.says.endswith("as fast as DLRM, modeled (here)")
    assert not far.holds and far.ours == pytest.approx(speeds.values["FAE"] / speeds.values["XDL"])
    dense = speeds.details["dense_ms"]
    assert f"{speeds.details['step_ms']['XDL'] / dense:.3g} times as fast at most; 75% of the inputs are hot" in far.why


@pytest.mark.parametrize(("hot", "dropped"), [(0.5, 0.0), (0.5, 0.2), (0.1, 0.3)])
def test_ratios_and_the_working_set_follow_formulas(hot: float, dropped: float) -> None:
    records = records_of(hot, compared(rule=(dropped, 0.0, "within")))
    speeds = ratios(records)
    ms = speeds.details["step_ms"]
    device = (ms["FAE"] - (1 - hot) * ms["DLRM"]) / hot  # FAE = h device + (1 - h) DLRM
    hot_left, cold = max(hot - dropped, 0), 1 - max(hot, dropped)
    assert ms["Slipstream"] == pytest.approx(hot_left * device + cold * ms["DLRM"])
    assert ms["DLRM"] > ms["XDL"] > ms["ScratchPipe"] and speeds.values["DLRM"] == 1
    assert (dropped > 0) == (speeds.values["Slipstream"] > speeds.values["FAE"])
    sets = script("hotline").working_set(records).values
    gather = ms["Hotline"] - (1 - hot) * device if ms["Hotline"] > 1.0001 * device else None
    alone = ms["DLRM"] / (max(int(hot) * device, gather or 0.0) + device) if gather else None
    assert alone is None or sets["1 mini-batches"] == pytest.approx(alone)  # no popular one: gathering stands alone
    assert sets["16 mini-batches"] >= sets["1 mini-batches"]


def reproduced(paper: Paper, out: Path, run: Callable[[Sequence[str]], dict[str, Any]]) -> dict[str, Any]:
    return reproduce(paper, command_lines(paper, out), out, run)


def test_a_run_writes_its_records_and_three_verdicts(tmp_path: Path) -> None:
    paper = made_up(
        commands=[Command("p", "figure 1", "profile")],
        findings=lambda records: iter([
            Claim("it grows", records["p"]["n"], ">", 1, why="nothing is"),
            Claim("it shrinks", records["p"]["n"], "<", 1, why="the model is to blame"),
        ]),
        missing=[Missing("a machine", "there is none")],
        published=[Published("speed", "2x", "abstract")],
    )  # fmt: skip
    calls: list[Sequence[str]] = []

    def run(words: Sequence[str]) -> dict[str, Any]:
        calls.append(words)
        return PROFILED

    result = reproduced(paper, tmp_path, run)
    assert calls == [["profile", "--out", str(tmp_path / "p")]]
    assert result["table"].splitlines()[-3:] == [
        "comes out: it grows (3 > 1)",
        "does not come out: it shrinks (3 not < 1, because the model is to blame)",
        "not available here: a machine (there is none)",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"p.json", "reproduction.json", "report.md"}
    assert "abstract" in result["table"] and "figure 1" in result["table"]


def test_a_signal_keeps_finished_commands(tmp_path: Path) -> None:
    def run(words: Sequence[str]) -> dict[str, Any]:
        if "2" in words:
            raise StoppedError(130)
        return PROFILED

    result = reproduced(made_up(), tmp_path, run)
    assert result["stopped_by"] == 130 and [command["id"] for command in result["commands"]] == ["c", "depth-0"]
    assert [(claim["says"], claim["numbers"]) for claim in result["claims"]] == [("first", "3 > 1")]
    assert set(result["derived"]) == {"slots"}
    assert {path.name for path in tmp_path.glob("*.json")} == {"c.json", "depth-0.json", "reproduction.json"}


def test_invalid_scripts_are_reported(tmp_path: Path) -> None:
    for missing in ("faee", str(tmp_path / "none.py"), str(tmp_path), "x" * 300 + ".py", "a\0.py"):
        with pytest.raises(ConfigError, match=r"expected one of fae, .*, or a Python file"):
            load_paper(missing)
    path = tmp_path / "own.py"
    for text, needed in [
        ("PAPER = 3", "expected PAPER = Paper(...), got int"),
        ("1 / 0", "cannot be loaded: ZeroDivisionError"),
        ("from adaptive.studies.reproduce.paper import *\nCommand('a b', '', 'compare')", "own.py: id of a command"),
    ]:
        path.write_text(text)
        with pytest.raises(ConfigError, match=re.escape(needed)):
            load_paper(str(path))
    with pytest.raises(ConfigError, match=r"expected one of profile, .*, got .profil --s"):
        Command("a", "", "profil --sections data")
    with pytest.raises(ConfigError, match="expected different ids, got c twice"):
        made_up(commands=[Command("c", "", "compare"), Command("c", "", "simulate")])
    with pytest.raises(ConfigError, match=r"expected 'c' in the records of its commands, got p"):
        reproduced(made_up(commands=[Command("p", "", "profile")]), tmp_path, lambda words: PROFILED)

    def fails(words: Sequence[str]) -> dict[str, Any]:
        raise InputError("bad line")

    with pytest.raises(InputError, match=r"adaptive-train compare .*: bad line"):
        reproduced(made_up(), tmp_path, fails)
