"""What `policies/README.md` and the example say is true."""

import ast
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import BUILT_INS
from support.builders import kept_batches, skewed_batches

import adaptive
from adaptive.plugins import installed_rules, load_rule_class, make_rule
from adaptive.policy import InputRule
from adaptive.studies.policy_checks import check_policy

ROOT = Path(__file__).parents[2]
README = (ROOT / "policies/README.md").read_text()
TUTORIAL = (ROOT / "docs/tutorials/policy.md").read_text()
EXAMPLE = ROOT / "examples/custom_policy.py"


def class_lines(source: str, name: str) -> int:
    """Lines of a class, blank lines and all."""
    (found,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
    assert found.end_lineno is not None
    return found.end_lineno - found.lineno + 1


def test_the_readmes_policy_and_rule_pass_their_checks(tmp_path: Path) -> None:
    policy, rule = re.findall(r"```python\n(.*?)```", README, re.S)
    assert (class_lines(policy, "RecentAndFrequent"), class_lines(rule, "EveryFourth")) == (6, 5)
    path = tmp_path / "mine.py"
    path.write_text(policy + rule)
    results = [*check_policy(f"{path}:RecentAndFrequent"), *check_policy(f"{path}:EveryFourth")]
    assert [result for result in results if not result.passed] == []


def test_the_tutorials_input_rule_has_eight_lines_and_passes(tmp_path: Path) -> None:
    (rule,) = (code for code in re.findall(r"```python\n(.*?)```", TUTORIAL, re.S) if "InputRule" in code)
    assert class_lines(rule, "FewerNegatives") == 8
    (tmp_path / "fewer.py").write_text(rule)
    assert [result for result in check_policy(f"{tmp_path}/fewer.py:FewerNegatives") if not result.passed] == []
    made = make_rule(f"{tmp_path}/fewer.py:FewerNegatives")
    assert isinstance(made, InputRule)
    kept = kept_batches(made, skewed_batches())
    weights = np.concatenate([batch.extras["weight"] for batch in kept])
    labels = np.concatenate([batch.labels for batch in kept])
    assert {*np.unique(weights)} >= {np.float32(0.6), np.float32(1.2)} and (weights[labels == 0].round(1) != 0.6).all()
    assert made.dropped_inputs == 960 - len(labels) > 100


RULES = tuple(f"adaptive.policies.rules.{name}" for name in ("defer", "predicted"))


@pytest.mark.parametrize("cls", [*BUILT_INS, *map(load_rule_class, installed_rules())])
def test_a_built_in_is_one_file_with_a_paper(cls: type[Any]) -> None:
    path = (ROOT / cls.__module__.replace(".", "/")).with_suffix(".py")
    tree = ast.parse(path.read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    bases = {node.name: ast.unparse(node.bases[0]) for node in classes if node.bases}
    assert hasattr(adaptive, bases.pop(cls.__name__))
    assert not bases or [*bases.values()] in (["InputRule"], ["Predicted"])  # a rule that the policy carries
    assert re.search(r"https://(arxiv|doi)\.org/", ast.get_docstring(tree) or "")
    imported = {node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.module}
    ours = {module for module in imported if module.split(".")[0] in ("adaptive", "policies")}
    assert "adaptive" in ours and ours <= {
        "adaptive",
        "adaptive.policies.samples",
        *RULES,
    }


def test_the_example_beats_lru(capsys: pytest.CaptureFixture[str]) -> None:
    source = EXAMPLE.read_text()
    assert class_lines(source, "Fading") <= 10
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = dict(re.findall(r"(\w+) +hit rate ([\d.]+)%", capsys.readouterr().out))
    assert float(printed["Fading"]) > float(printed["LRU"]) + 1


def test_the_examples_policy_keeps_the_rules() -> None:
    assert [result for result in check_policy(f"{EXAMPLE}:Fading") if not result.passed] == []
