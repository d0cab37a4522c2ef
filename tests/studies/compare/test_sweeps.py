"""`--sweep`: combinations of values, and a comparison within each."""

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support.outcomes import BUDGET, DROP, SKIP, outcome
from support.toy import toy_config
from support.toy_runs import train_all

import adaptive.studies.compare.comparison_runs
import adaptive.training.runs
from adaptive.config import TrainConfig
from adaptive.errors import ConfigError, DeviceMemoryError
from adaptive.studies.compare import Control
from adaptive.studies.compare.comparison_report import comparison_csv, comparison_document
from adaptive.studies.compare.comparison_runs import Outcome
from adaptive.studies.compare.contenders import Contender, Value, folders, sweep_points, title, values
from adaptive.studies.compare.verdicts import judge


def texts(*lists: str) -> list[list[str]]:
    return [[f"{value.key}={value.text}" for value in point] for point in sweep_points(lists, {})]


# --- lists -----------------------------------------------------------------------------------------------------------


def test_lists_of_values_become_points() -> None:
    assert texts("batch_size=256,1024") == [["batch_size=256"], ["batch_size=1024"]]
    assert texts("a=1,2", "b=x,y") == [["a=1", "b=x"], ["a=1", "b=y"], ["a=2", "b=x"], ["a=2", "b=y"]]
    assert texts() == [[]]


def test_keys_can_vary_together() -> None:
    assert texts("a+b=1+2,3+4") == [["a=1", "b=2"], ["a=3", "b=4"]]
    assert texts("skip.rule=defer+every=8,off") == [["skip.rule=defer+every=8"], ["skip.rule=off"]]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("model.top_mlp=64-32-1,128-1", ["64-32-1", "128-1"]),
        ('data="criteo:a,b",synthetic', ['"criteo:a,b"', "synthetic"]),
        ("data='a,b','c'", ["'a,b'", "'c'"]),
        ("model.top_mlp=[64,1],[8,1]", ["[64,1]", "[8,1]"]),
        ('x="open,2', ['"open', "2"]),
        (" steps = 1 , 2 ", ["1", "2"]),
    ],
)
def test_commas_in_quotes_and_brackets_do_not_split(text: str, result: list[str]) -> None:
    assert [point[0].text for point in sweep_points([text], {})] == result


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (["batch_size"], "--sweep: expected KEY=VALUE,VALUE such as batch_size=256,1024,4096, got 'batch_size'"),
        (["=1,2"], "expected KEY=VALUE"),
        (["a+=1,2"], "expected KEY=VALUE"),
        (["steps=1,,2"], "--sweep steps, value 2 of 3: expected a value, got none"),
        (["steps="], "value 1 of 1: expected a value"),
        (["steps=1,2,1"], "--sweep steps, value 3 of 3: expected different values, got 1 again"),
        (["lr=0.1,0.10"], "expected different values, got 0.10 again"),
        (["a+b=1+2,3"], r"--sweep a\+b, value 2 of 2: expected a part for each of 2 keys, joined by \+, got '3'"),
        (["a=1", "a=2"], "--sweep a: expected one source per setting, got a also from another --sweep"),
        (["depth=1,2"], "got depth also from --set"),
        (
            ["policy=lru,lfu"],
            "--sweep policy: expected a setting other than policy, seed, out. Compare policies",
        ),
        (["seed=1,2"], "Compare seeds with --seeds"),
        (["out=a,b"], "All run directories are in --out"),
    ],
)
def test_mistakes(lists: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sweep_points(lists, {"depth": "--set"})


def test_names() -> None:
    swept = (Value("batch_size", "256"), Value("tier.host", "mmap:/tmp/a b"), Value("tier.device_rows", "10%"))
    assert title(swept) == "batch_size=256, tier.host=mmap:/tmp/a b, tier.device_rows=10%"
    assert folders(swept) == ["batch_size=256", "tier.host=mmap:%2Ftmp%2Fa b", "tier.device_rows=10%"]
    assert values(swept) == {"batch_size": 256, "tier.host": "mmap:/tmp/a b", "tier.device_rows": "10%"}


# --- trainings -------------------------------------------------------------------------------------------------------


def rivals(*policies: str, sizes: tuple[int, ...] = (16, 32), **changed: Any) -> list[Contender]:
    return [
        Contender(
            policy,
            toy_config(
                policy=policy,
                batch_size=size,
                skip=DROP if policy == "scratchpipe" else SKIP,
                **changed,
            ),
            (Value("batch_size", str(size)),),
        )
        for size in sizes
        for policy in policies
    ]


def test_policies_are_compared_within_each_value(tmp_path: Path) -> None:
    lines: list[str] = []
    outcomes = train_all(rivals("lru", "lfu"), 2, tmp_path, on_progress=lines.append)
    assert lines[:3] == [
        "seed 0 (1 of 2), batch_size=16 (1 of 2), lru (1 of 2)",
        "seed 0 (1 of 2), batch_size=16 (1 of 2), lfu (2 of 2)",
        "seed 0 (1 of 2), batch_size=32 (2 of 2), lru (1 of 2)",
    ]
    assert lines[4] == "seed 1 (2 of 2), batch_size=16 (1 of 2), lru (1 of 2)"
    assert (tmp_path / "seed-1/batch_size=32/1-lfu/run.json").is_file() and len(outcomes) == 8
    result = judge(outcomes, auc_budget=BUDGET)
    assert result.problems == [] and result.control is None
    assert result.values == [Control({"batch_size": size}, "lru") for size in (16, 32)]
    report = [(policy.swept, policy.policy, policy.reason, policy.steps) for policy in result.policies]
    assert report == [
        ({"batch_size": 16}, "lru", "the control", 20),
        ({"batch_size": 16}, "lfu", "equal to the control bit for bit", 20),
        ({"batch_size": 32}, "lru", "the control", 10),
        ({"batch_size": 32}, "lfu", "equal to the control bit for bit", 10),
    ]
    assert result.policies[0].auc != result.policies[2].auc


def test_the_random_control_has_the_same_value(tmp_path: Path) -> None:
    outcomes = train_all(rivals("lru", "scratchpipe"), 1, tmp_path)
    controls = ["random_drop for scratchpipe", "random_drop+by=label for scratchpipe"]
    assert [outcome.policy for outcome in outcomes] == 2 * ["lru", "scratchpipe", *controls]
    assert [values(outcome.swept)["batch_size"] for outcome in outcomes] == 4 * [16] + 4 * [32]
    record = json.loads((tmp_path / "seed-0/batch_size=32/1-random_drop/run.json").read_text())
    assert record["config"]["batch_size"] == 32
    for place, policy in enumerate(judge(outcomes, auc_budget=BUDGET).policies):
        at_point = outcomes[4 * (place // 4) : 4 * (place // 4) + 4]
        expected = at_point[1].summary["auc"] - at_point[2].summary["auc"] if policy.policy == "scratchpipe" else None
        assert policy.auc_difference_to_random == (None if expected is None else pytest.approx(expected))


def test_an_inexact_policy_is_caught_within_its_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = adaptive.training.runs.train_run

    def rigged(config: TrainConfig, **options: Any) -> dict[str, Any]:
        if config.policy == "lfu" and config.batch_size == 32:
            config = config.model_copy(update={"seed": 5})
        return real(config, **options)

    monkeypatch.setattr(adaptive.studies.compare.comparison_runs, "train_run", rigged)
    result = judge(train_all(rivals("lru", "lfu"), 1, tmp_path), auc_budget=BUDGET)
    assert [policy.verdict for policy in result.policies] == ["within", "within", "within", "differs"]
    (problem,) = result.problems
    assert problem.startswith("lfu with batch_size=32: skipped nothing but trained other numbers than lru")


# --- tables ----------------------------------------------------------------------------------------------------------


def judged() -> dict[str, Any]:
    first, second = (
        (Value("optimizer.lr", text), Value("save", save)) for text, save in (("0.1", "true"), ("1", "false"))
    )
    failed = Outcome("lfu", 0, "out", error=DeviceMemoryError("no room"), swept=second)
    equal = [outcome(policy, 0, 0.7, swept=first) for policy in ("lru", "lfu")]
    return judge([*equal, outcome("lru", 0, 0.6, swept=second), failed], auc_budget=BUDGET)


def test_there_is_a_table_per_value_and_one_for_all() -> None:
    result = judged()
    blocks = comparison_document(result).to_markdown().split("\n\n")
    titles = [place for place, block in enumerate(blocks) if block.startswith("## ")]
    assert [blocks[place] for place in titles] == [
        "## optimizer.lr=0.1, save=true", "## optimizer.lr=1, save=false", "## All values",
    ]  # fmt: skip
    for place, verdict in zip(titles[:2], ("within", "failed"), strict=True):
        head, _, *rows = blocks[place + 2].splitlines()
        assert head.startswith("| policy | AUC |") and [row.split(" | ")[0] for row in rows] == ["| lru", "| lfu"]
        assert rows[1].split(" | ")[3] == verdict
    head, _, *rows = blocks[-3 if "problem" in blocks[-1] else -2].splitlines()
    assert head == (
        "| optimizer.lr | save | policy | AUC | difference | verdict | samples/s | hit rate | log loss | accuracy |"
    )
    assert [row.split(" | ")[:4] for row in rows] == [
        ["| 0.1", "true", "lru", "0.7000"],
        ["| 0.1", "true", "lfu", "0.7000"],
        ["| 1", "false", "lru", "0.6000"],
        ["| 1", "false", "lfu", "-"],
    ]
    assert result.problems == ["lfu with optimizer.lr=1, save=false, seed 0: DeviceMemoryError: no room"]
    text = comparison_document(result).to_text()
    assert text.count("lru: within the AUC budget") == 2 and "--- optimizer.lr=1, save=false\n" in text
    assert "\noptimizer.lr   save  policy" in text


def test_csv_and_json_have_the_values() -> None:
    result = judged()
    rows = list(csv.DictReader(io.StringIO(comparison_csv(result))))
    assert [(row["swept.optimizer.lr"], row["swept.save"], row["policy"]) for row in rows] == [
        ("0.1", "True", "lru"), ("0.1", "True", "lfu"), ("1", "False", "lru"), ("1", "False", "lfu"),
    ]  # fmt: skip
    assert json.loads(json.dumps(asdict(result)))["policies"][3]["swept"] == {"optimizer.lr": 1, "save": False}
