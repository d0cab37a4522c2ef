"""Recipes as data: paths, claims, command lines; and what a recipe makes of records made up for it."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from report_records import write_run

from adaptive.errors import ConfigError, InputError
from adaptive.storage.presets import checked
from adaptive.studies.reproduce.derived import DERIVED, designs, ratios, transfers, working_set
from adaptive.studies.reproduce.found import (
    accuracy,
    batch_quality,
    logger_size,
    popular_inputs,
    quality,
    skipping,
    slots,
)
from adaptive.studies.reproduce.recipe import Claim, Recipe, judge, load_recipe, number_at, recipe_names
from adaptive.studies.reproduce.reproduce import StoppedError, command_lines, reproduce

RECORDS = {"a": {"list": [{"name": "x", "n": 3, "b": 1}, {"name": "x", "n": 4, "b": None}], "flag": True}}


def test_paths_lead_to_numbers() -> None:
    assert number_at(RECORDS, "a.list.0.n") == 3 and number_at(RECORDS, "a.list.-1.n") == 4
    assert number_at(RECORDS, "a.list.name=x,n=4.n") == 4 and number_at(RECORDS, "a.list.n=4.b") is None
    assert number_at(RECORDS, "a.flag") == 1
    for path in ("a.list.5.n", "b.list", "a.list.name=z.n", "a.list.0.n.k"):
        with pytest.raises(ConfigError, match="recipe: no "):
            number_at(RECORDS, path)


@pytest.mark.parametrize(
    ("claim", "holds", "numbers"),
    [
        ({"value": "a.list.0.n", "more_than": 2}, True, "3 > 2"),
        ({"value": "a.list.0.n", "less_than": 3}, False, "3 not < 3"),
        ({"value": "a.list.0.n", "less_than": "a.list.1.n"}, True, "3 < 4"),
        ({"value": "a.list.0.n", "over": "a.list.1.n", "more_than": 0.7}, True, "0.75 > 0.7"),
        ({"value": "a.list.0.n", "less": "a.list.1.n", "more_than": 0}, False, "-1 not > 0"),
        ({"value": "a.list.1.b", "more_than": 0}, False, "not known"),
        ({"value": "a.list.0.n", "less": "a.list.1.n", "within": 1}, True, "-1 within 1"),
        ({"value": "a.list.0.n", "less": "a.list.1.n", "within": 0.5}, False, "-1 not within 0.5"),
        ({"value": "a.list.1.b", "within": 1}, False, "not known"),
    ],
)
def test_claims_are_judged_by_their_numbers(claim: dict[str, Any], holds: bool, numbers: str) -> None:
    assert judge(Claim(says="it", **claim), RECORDS) == (holds, numbers)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_reads_and_names_what_is_there(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name and recipe.claims and recipe.missing and set(recipe.derived) <= set(DERIVED)
    ids = {id for id, _, _ in command_lines(recipe, tmp_path, quick=False, seeds=None)} | set(recipe.derived)
    for claim in recipe.claims:
        for path in (claim.value, claim.over, claim.less, claim.more_than, claim.less_than):
            assert not isinstance(path, str) or path.split(".")[0] in ids, path


def test_there_are_recipes_for_all_papers() -> None:
    assert recipe_names() == ["fae", "hotline", "scratchpipe", "slipstream", "tutorial", "zion"]


def made_up(**more: Any) -> Recipe:
    commands = [
        {
            "id": "c",
            "words": "compare --policies lru --set a=1 --steps 9",
            "quick": "--steps 5 --set b=2",
            "shows": "t",
        },
        {"id": "depth", "words": "simulate --depth {}", "each": ["0", "2"], "shows": "s"},
    ]
    return Recipe.model_validate({"name": "m", "title": "T", "source": "S", "commands": commands} | more)


def test_of_flags_given_twice_the_last_counts_key_by_key() -> None:
    command = {
        "id": "p",
        "words": "placements --sweep a=1,2 --sweep b=1 --time-steps 9",
        "quick": "--sweep a=3 --time-steps 5",
        "shows": "s",
    }
    ((_, _, words),) = command_lines(made_up(commands=[command]), Path("o"), quick=True, seeds=None)
    assert shlex.join(words) == "placements --sweep b=1 --sweep a=3 --time-steps 5 --out o/p"


def test_command_lines(tmp_path: Path) -> None:
    lines = command_lines(made_up(), Path("out"), quick=True, seeds=2, more=["--data", "csv:x"])
    assert [(name, shlex.join(words)) for name, _, words in lines] == [
        ("c", "compare --policies lru --set a=1 --steps 5 --set b=2 --seeds 2 --data csv:x --out out/c"),
        ("depth-0", "simulate --depth 0 --data csv:x --png out/depth-0.png"),
        ("depth-2", "simulate --depth 2 --data csv:x --png out/depth-2.png"),
    ]


def test_slots_and_transfers_written_out() -> None:
    found = slots(
        {f"depth-{d}": {"least_device_rows": 50 * (d + 1), "distinct_rows": 1000, "batches": 10} for d in (0, 2)}
    )
    assert found["values"] == {"depth 0": 50.0, "depth 2": 150.0}
    assert found["over_bound"] == {"depth 0": 0.5, "depth 2": 0.5}
    policies = [
        {"policy": "hybrid", "bytes_h2d": 2**21, "bytes_d2h": 2**21, "steps": 2, "policy_numbers": {}},
        {"policy": "fae", "bytes_h2d": 2**20, "bytes_d2h": 0, "steps": 2, "policy_numbers": {"two_home_bytes": 2**22}},
    ]
    records = {"compare": {"policies": policies}, "step": {"step": [{"dense_bytes": 2**19}]}}
    found = transfers(records)
    assert found["values"] == {"DLRM": 2.0, "XDL": 3.0, "fae, two homes": 2.5, "fae here": 0.5}
    link = 15.8e9 * 0.8  # of v100-pcie3, with the share that is assumed
    assert f"DLRM {1e3 * 2**21 / link:.3g}" in found["note"]


def test_popular_inputs_by_learning_and_logger() -> None:
    def run(policy: str, popular: int) -> dict[str, Any]:
        return {"policy": policy, "error": None, "policy_numbers": {"popular_inputs": popular, "seen_inputs": 200}}

    runs = [
        run("hotline+learn=5%", 100),
        run("hotline+logger=srrip+logger_bytes=4096", 40),
        run("hotline+logger=srrip+logger_bytes=1024", 20),
        {"policy": "hotline+learn=1%", "error": "too few slots", "policy_numbers": None},
        {"policy": "hotline+learn=90%", "error": None, "policy_numbers": {"popular_inputs": 0, "seen_inputs": 0}},
    ]
    records = {"learning": {"runs": runs}}
    assert popular_inputs(records)["values"] == {runs[0]["policy"]: 50, runs[1]["policy"]: 20, runs[2]["policy"]: 10}
    found = logger_size(records)
    assert found["values"] == {"1 KiB": 10, "4 KiB": 20, "exact counts": 50}
    assert found["curves"]["lines"] == {"srrip": [[1, 10], [4, 20]], "exact": [[1, 50], [4, 50]]}


def test_quality_by_step_is_that_of_the_first_seed(tmp_path: Path) -> None:
    runs = [{"run_dir": str(write_run(tmp_path / name, intervals=3))} for name in ("first", "second")]
    gone = {"policy": "b", "runs": [{"run_dir": str(tmp_path / "gone")}]}
    records = {"compare": {"policies": [{"policy": "a", "runs": runs}, gone]}}
    found = quality(records)
    assert found["curves"]["lines"] == {"a": [[10.0, 0.71], [20.0, 0.72], [30.0, 0.73]]}
    assert found["values"] == {"a": 0.73} and accuracy(records)["values"] == {}


def test_quality_by_batch_size() -> None:
    policies = [
        {"policy": "a", "swept": {"batch_size": 512}, "auc": 0.75},
        {"policy": "a", "swept": {"batch_size": 4096}, "auc": 0.5},
        {"policy": "b", "swept": {"batch_size": 512}, "auc": None},
    ]
    found = batch_quality({"trained": {"policies": policies}})
    assert found["values"] == {"a, batches of 512": 0.75, "a, batches of 4096": 0.5}
    assert found["curves"]["lines"] == {"a": [[512, 0.75], [4096, 0.5]]}


def test_skipping_stands_by_what_is_left_out() -> None:
    def one(policy: str, inputs: float, updates: float, deferred: float, change: float | None) -> dict[str, Any]:
        shares = {"skipped_input_share": inputs, "skipped_update_share": updates, "deferred_update_share": deferred}
        return {"policy": policy, "auc_difference": change, **shares}

    policies = [
        one("lru", 0, 0, 0, 0.0),
        one("slipstream", 0, 0.5, 0.5, 0.001),
        one("u", 0, 0.25, 0, -0.002),
        one("i2", 0.5, 0.3, 0, -0.004),
        one("i1", 0.25, 0.1, 0, -0.003),
        one("random_drop+share=0.5", 0.5, 0, 0, -0.005),
        one("stopped", 0.5, 0, 0, None),
    ]
    found = skipping({"compare": {"policies": policies, "auc_budget": 0.0005}})
    assert found["curves"]["lines"] == {
        "updates deferred": [[50, 0.001]],
        "updates left out": [[25, -0.002]],
        "inputs dropped": [[25, -0.003], [50, -0.004]],
        "inputs dropped at random": [[50, -0.005]],
        "budget": [[0, -0.0005], [50, -0.0005]],
    }
    assert set(found["values"]) == {"slipstream", "u", "i1", "i2", "random_drop+share=0.5"}


def test_designs_are_told_at_every_size_and_tabled_at_the_smallest() -> None:
    def run(policy: str, share: float, **ms: float) -> dict[str, Any]:
        return {"policy": policy, "device_share": share, "error": None, "step_ms": ms}

    runs = [
        run("static", 0.5, hybrid=9, serial=5),
        run("static", 0.25, hybrid=9, serial=6),
        run("lru", 0.25, serial=7),
        run("scratchpipe", 0.25, look_ahead=3, device_only=2),
        {"policy": "lru", "device_share": 0.1, "error": "too few slots", "step_ms": None},
    ]
    found = designs({"hits": {"runs": runs}})
    assert list(found["values"].values()) == [9, 6, 7, 3, 2]
    assert found["curves"]["lines"]["static cache, no overlap"] == [[50, 5], [25, 6]]
    with pytest.raises(ConfigError, match="needs the policies static, lru and scratchpipe"):
        designs({"hits": {"runs": runs[:2]}})


SHARES = {"rows_that_fit": 100, "lookup_share": 0.9}


@pytest.mark.parametrize(("hot", "dropped"), [(0.5, 0.0), (0.5, 0.2), (0.1, 0.3)])
def test_ratios_and_the_working_set_follow_the_formulas(hot: float, dropped: float) -> None:
    data = {
        "lookups": 26_000, "samples": 1_000, "rows": 1_000, "hot": [{**SHARES, "hot_input_share": hot}],
        "reuse": {"distinct_by_batch_size": {"1024": 10_000.0, "4096": 20_000.0}},
    }  # fmt: skip
    records = {"data": {"data": data}, "compare": {"policies": [{"skipped_input_share": dropped}]}}
    found = ratios(records)
    ms = found["step_ms"]
    device = (ms["FAE"] - (1 - hot) * ms["DLRM"]) / hot  # FAE = h device + (1 - h) DLRM
    kept, cold = max(hot - dropped, 0), 1 - max(hot, dropped)
    assert ms["Slipstream"] == pytest.approx(kept * device + cold * ms["DLRM"])
    assert ms["XDL"] > ms["DLRM"] > ms["ScratchPipe"] and found["values"]["DLRM"] == 1
    assert (dropped > 0) == (found["values"]["Slipstream"] > found["values"]["FAE"])
    sets = working_set(records)["values"]
    gather = ms["Hotline"] - (1 - hot) * device if ms["Hotline"] > 1.0001 * device else None
    one = ms["DLRM"] / (max(int(hot) * device, gather or 0.0) + device) if gather else None
    assert one is None or sets["1 mini-batches"] == pytest.approx(one)  # no popular mini-batch: gathering stands alone
    assert sets["16 mini-batches"] >= sets["1 mini-batches"]


def test_a_run_writes_its_records_and_tells_three_lines(tmp_path: Path) -> None:
    simulated = {"least_device_rows": 5, "distinct_rows": 8, "batches": 2, "runs": [], "machine": {}}
    recipe = made_up(
        commands=[{"id": "p", "words": "profile", "shows": "figure 1"}],
        claims=[
            {"says": "it grows", "value": "p.n", "more_than": 1, "why": "nothing is"},
            {"says": "it shrinks", "value": "p.n", "less_than": 1, "why": "the model is to blame"},
        ],
        missing=[{"what": "a machine", "why": "there is none"}],
        papers=[{"what": "speed", "number": "2x", "source": "abstract"}],
    )
    asked: list[Sequence[str]] = []

    def run(words: Sequence[str]) -> dict[str, Any]:
        asked.append(words)
        return {"kind": "profile", "n": 3, **simulated}

    found = reproduce(recipe, tmp_path, run)
    assert asked == [["profile", "--out", str(tmp_path / "p")]]
    assert found["table"].splitlines()[-3:] == [
        "comes out: it grows (3 > 1)",
        "does not: it shrinks (3 not < 1; the model is to blame)",
        "cannot here: a machine (there is none)",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"p.json", "reproduction.json", "report.md"}
    assert "abstract" in found["table"] and "figure 1" in found["table"]


def test_a_signal_keeps_what_was_done(tmp_path: Path) -> None:
    recipe = made_up(
        derived=["slots", "quality"],
        claims=[
            {"says": "first", "value": "c.n", "more_than": 1},
            {"says": "later", "value": "depth-2.n", "more_than": 1},
        ],
    )
    simulated = {"least_device_rows": 5, "distinct_rows": 8, "batches": 2, "runs": [], "machine": {}}

    def run(words: Sequence[str]) -> dict[str, Any]:
        if "2" in words:
            raise StoppedError(130)
        return {"kind": "profile", "n": 3, **simulated}

    found = reproduce(recipe, tmp_path, run)
    assert found["stopped_by"] == 130 and [one["id"] for one in found["commands"]] == ["c", "depth-0"]
    assert [(one["holds"], one["numbers"]) for one in found["claims"]] == [(True, "3 > 1"), (False, "stopped before")]
    assert set(found["derived"]) == {"slots"}  # quality needs a comparison
    assert {path.name for path in tmp_path.glob("*.json")} == {"c.json", "depth-0.json", "reproduction.json"}


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a file nor one of fae"):
        load_recipe("faee")
    (tmp_path / "r.toml").write_text('name = "x"')
    with pytest.raises(ConfigError, match="commands"):
        load_recipe(str(tmp_path / "r.toml"))
    command = {"id": "a", "words": "profile", "shows": "x"}
    for wrong, needed in [
        ({"words": "profil --sections data"}, "needs to begin with one of profile, placements, compare, simulate"),
        ({"words": ""}, "needs to begin with one of"),
        ({"words": "profile --sections 'data"}, "is no command line: No closing quotation"),
        ({"words": "profile data --sections data"}, "'data' stands where a flag such as --sections is needed"),
        ({"quick": "data"}, "stands where a flag"),
        ({"id": "A b"}, "commands.0.id"),
        ({"id": "../a"}, "commands.0.id"),
        ({"each": ["0", "../a"]}, "each = '../a' needs to be letters and digits"),
        ({"id": "slots"}, "slots more than once among ids"),
    ]:
        content = made_up().model_dump() | {"commands": [command | wrong], "derived": ["slots"]}
        with pytest.raises(ConfigError, match=re.escape(needed) + "((?!Value error|Tuple).)*$"):
            checked(Recipe, content, "recipe r.toml")
    with pytest.raises(ConfigError, match="name: "):
        checked(Recipe, made_up().model_dump() | {"name": "../../elsewhere"}, "recipe r.toml")
    for text, needed in [("name = 'x", "is not TOML: "), ("titel = 'x'", "titel: unknown key (did you mean title?)")]:
        (tmp_path / "r.toml").write_text(text)
        with pytest.raises(ConfigError, match=re.escape(needed)):
            load_recipe(str(tmp_path / "r.toml"))
    with pytest.raises(ConfigError, match=r"derived ratios needs 'data', which no command's record has; there is c"):
        reproduce(made_up(derived=["ratios"]), tmp_path, lambda words: {"kind": "profile"})
    with pytest.raises(ValueError, match="one of more_than, less_than and within"):
        Claim.model_validate({"says": "x", "value": "a"})
    with pytest.raises(ConfigError, match="derived speed"):
        reproduce(made_up(derived=["speed"]), tmp_path, lambda words: {})

    def fails(words: Sequence[str]) -> dict[str, Any]:
        raise InputError("bad line")

    with pytest.raises(InputError, match=r"adaptive-train compare .*: bad line"):
        reproduce(made_up(), tmp_path, fails)
