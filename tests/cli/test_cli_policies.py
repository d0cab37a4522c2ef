"""`policies list|show|check`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptive.studies.policy_checks import CHECKS

Cli = Callable[..., Any]

MINE = '''
from adaptive.policy import InputPolicy, Policy

class Mine(InputPolicy):
    """Keeps what it likes.

    As in https://arxiv.org/abs/1234.56789.
    """

    def __init__(self, *, decay: float = 0.5, size: int) -> None: ...

    def score(self, rows):
        return rows.last_access

    def arrange(self, batches, view):
        return batches
'''


def test_list_names_every_policy_with_text_place_and_paper(cli: Cli) -> None:
    result = json.loads(cli("policies", "list", "--json").out)["policies"]
    assert set(result) >= {"hybrid", "device", "static", "lru", "lfu", "slipstream"}
    assert result["slipstream"]["from"] == "adaptive.policies.slipstream:Slipstream"
    assert all(entry["doc"] for entry in result.values())
    assert result["slipstream"]["paper"].startswith("https://")
    text = cli("policies", "list").out
    assert all(name in text for name in result)


def test_list_shows_a_policy_that_fails_to_load(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptive.plugins.installed_policies", lambda: {"broken": "no_such_module:Broken"})
    result = cli("policies", "list")
    assert result.code == 0
    assert "broken" in result.out and "does not load: PolicyError" in result.out and "no_such_module" in result.out


def test_show(cli: Cli) -> None:
    Path("mine.py").write_text(MINE)
    result = json.loads(cli("policies", "show", "mine.py:Mine", "--json").out)
    assert result["parameters"] == {
        "decay": {"type": "float", "default": "0.5"},
        "size": {"type": "int", "default": "none, required"},
    }
    assert (result["misses"], result["device_rows"], result["decides"]) == (
        "prefetch",
        "any",
        ["score", "arrange", "observe"],
    )
    text = cli("policies", "show", "mine.py:Mine").out
    assert text.startswith("Keeps what it likes.") and "decay: float = 0.5" in text


def test_check_reports_a_policy_that_breaks_the_contract(cli: Cli) -> None:
    Path("bad.py").write_text(
        "import numpy as np\nfrom adaptive.policy import InputPolicy, Policy\n"
        "class Bad(Policy):\n    def score(self, rows):\n        return np.full(len(rows), np.nan)\n"
    )
    result = cli("policies", "check", "bad.py:Bad")
    assert result.code == 9
    assert "FAILED answers are valid" in result.out and "NaN" in result.out
    assert "policy 'bad.py:Bad' fails" in result.err
    checks = json.loads(cli("policies", "check", "bad.py:Bad", "--json").out)["checks"]
    assert {check["passed"] for check in checks} == {True, False}


def test_check_keeps_policy_output_off_stdout(cli: Cli) -> None:
    Path("loud.py").write_text(
        "from adaptive.policy import InputPolicy, Policy\nprint('read')\n"
        "class Loud(Policy):\n    def score(self, rows):\n        print('asked')\n        return rows.last_access\n"
    )
    result = cli("policies", "check", "loud.py:Loud", "--json")
    assert result.code == 0 and len(json.loads(result.out)["checks"]) == len(CHECKS) + 1  # and that it loads
    assert "read\n" in result.err and "asked\n" in result.err


def test_check_options_are_read(cli: Cli) -> None:
    result = cli("policies", "check", "lru", "--set", "nothing=1")
    assert result.code == 9 and "nothing" in result.out
    assert cli("policies", "check", "lru", "--set", "nothing").code == 2


def test_show_and_check_take_skip_rules(cli) -> None:
    listed = cli("policies", "list")
    assert "skip rules, for any policy (--skip):" in listed.out and "\ndefer " in listed.out
    shown = cli("policies", "show", "defer")
    assert "loses updates: no" in shown.out and "  at_most: int | None = None" in shown.out
    checked = cli("policies", "check", "defer", "--set", "at_most=5")
    assert checked.code == 0 and checked.out.count("ok ") == len(CHECKS) + 1
