"""docs/reference/policies.md has every built-in policy and rule with each of its parameters."""

import re
from pathlib import Path

import pytest

from adaptive.plugins import installed_policies, installed_rules, load_policy_class, load_rule_class, policy_parameters

PAGE = (Path(__file__).parents[2] / "docs/reference/policies.md").read_text(encoding="utf-8")
LINES = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `") or line.startswith("| all ")]


@pytest.mark.parametrize("name", [*installed_policies(), *installed_rules()])
def test_every_parameter_is_on_the_page(name: str) -> None:
    is_rule = name in installed_rules()
    cls = load_rule_class(name) if is_rule else load_policy_class(name)
    lines = [cells for cells in LINES if f"`{name}`" in cells[0] or (is_rule and cells[0] == "| all")]
    assert lines, name
    assert set(policy_parameters(cls)) <= {word for cells in lines for word in re.findall(r"`(\w+)`", cells[1])}
