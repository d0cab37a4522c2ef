"""Recipes as data: paths, claims, command lines; and what a recipe makes of records made up for it."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from adaptive.errors import ConfigError, InputError
from adaptive.reproduce.derived import DERIVED, slots, transfers
from adaptive.reproduce.recipe import Claim, Recipe, judge, load_recipe, number_at, recipe_names
from adaptive.reproduce.reproduce import command_lines, reproduce

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
    assert transfers(records)["values"] == {"DLRM": 2.0, "XDL": 3.0, "FAE, two homes": 2.5, "fae here": 0.5}


def test_a_run_writes_its_records_and_tells_three_lines(tmp_path: Path) -> None:
    simulated = {"least_device_rows": 5, "distinct_rows": 8, "batches": 2, "runs": [], "machine": {}}
    recipe = made_up(
        commands=[{"id": "p", "words": "profile", "shows": "figure 1"}],
        claims=[
            {"says": "it grows", "value": "p.n", "more_than": 1},
            {"says": "it shrinks", "value": "p.n", "less_than": 1},
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
        "does not: it shrinks (3 not < 1)",
        "cannot here: a machine (there is none)",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"p.json", "reproduction.json", "report.md"}
    assert "abstract" in found["table"] and "figure 1" in found["table"]


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a file nor one of fae"):
        load_recipe("faee")
    (tmp_path / "r.toml").write_text('name = "x"')
    with pytest.raises(ConfigError, match="commands"):
        load_recipe(str(tmp_path / "r.toml"))
    with pytest.raises(ValueError, match="one of more_than and less_than"):
        Claim.model_validate({"says": "x", "value": "a"})
    with pytest.raises(ConfigError, match="derived speed"):
        reproduce(made_up(derived=["speed"]), tmp_path, lambda words: {})

    def fails(words: Sequence[str]) -> dict[str, Any]:
        raise InputError("bad line")

    with pytest.raises(InputError, match=r"adaptive-train compare .*: bad line"):
        reproduce(made_up(), tmp_path, fails)
