"""Settings that cannot be and states of something else are refused, by policies and skip rules, and named."""

from typing import Any

import numpy as np
import pytest
from contract import BUILT_INS

from adaptive.errors import PolicyError
from adaptive.plugins import installed_rules, load_rule_class, make_policy, make_rule
from adaptive.policies.random_drop import Drop
from adaptive.policy import Policy, SkipRule


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lru", {"window": 3}, "policy LRU has no parameter window; it has: none"),
        ("lfu", {"half_life": 0}, "half_life=0.0: expected more than 0 batches"),
        ("lfu", {"half_life": "soon"}, "half_life: expected a valid number, got 'soon'"),
        ("adaptive.policies.scratchpipe:ScratchPipe", {"window": 0}, "window=0: expected at least 1"),
        ("random_drop", {"share": 1}, "share=1.0: expected at least 0 and less than 1"),
        ("slipstream", {"skip": "defer"}, "policy Slipstream has no parameter skip; it has: none"),
        ("fae", {"rate": 0}, "rate=0: expected at least 1, at most 100"),
        ("fae", {"held_back": 1}, "held_back=1: expected one input in 2 or more, or 0: none"),
        ("fae", {"select": "best"}, "select: expected 'threshold' or 'top', got 'best'"),
        ("hotline", {"capacity": 0}, "capacity=0.0: expected more than 0, at most 1"),
        ("hotline", {"learn": "0%"}, "learn=0%"),
        ("hotline", {"learn": "much"}, "learn=much"),
        ("hotline", {"logger": "lru"}, "logger: expected 'exact' or 'srrip', got 'lru'"),
        ("hotline", {"logger_bytes": 1 << 20}, "logger_bytes=1048576: expected logger=srrip with it"),
        ("hotline", {"logger": "srrip", "logger_bytes": 7}, "logger_bytes=7: expected at least 8"),
    ],
)
def test_settings_of_policies(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError) as error:
        make_policy(name, options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "defr",
            "no skip rule 'defr'; known: defer, predicted; or give module:Class or file.py:Class",
        ),
        ("adaptive.policies.lru:LRU", "has no class LRU derived from adaptive.SkipRule"),
        ("defer+bond=1", "skip rule Defer has no parameter bond; it has: at_most, warmup"),
        ("defer+at_most=much", "skip rule Defer: at_most: expected a valid integer, got 'much'"),
        ("defer+at_most=256", "at_most=256: expected at least 1, at most 255"),
    ],
)
def test_settings_of_rules(spec: str, message: str) -> None:
    with pytest.raises(PolicyError) as error:
        make_rule(spec)
    assert message in str(error.value)


OWNERS = [*BUILT_INS, Drop, *map(load_rule_class, installed_rules())]


@pytest.mark.parametrize("cls", OWNERS)
def test_states_of_something_else(cls: type[Policy] | type[SkipRule]) -> None:
    foreign = {"something_else": np.zeros(1)}
    with pytest.raises(ValueError, match=rf"{cls.__name__}: expected (a state of|no state).* got .*something_else"):
        cls().load_state_dict(foreign)
