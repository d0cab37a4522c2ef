"""Policies are found by name, as module:Class and as file.py:Class, and every mistake is named."""

import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adaptive import plugins as policy_module
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError, PolicyError
from adaptive.plugins import ENTRY_POINTS, installed_policies, load_policy_class, make_policy, policy_parameters
from adaptive.policies.lfu import LFU
from adaptive.policies.lru import LRU
from adaptive.policies.rules.defer import Defer
from adaptive.policy import Policy, RowStats

SOURCE = """
    import numpy as np
    from adaptive.policy import Policy

    class Mine(Policy):
        def __init__(self, *, weight: float = 1.0, keep: bool | None = None):
            if weight < 0:
                raise ValueError("weight must not be negative")
            self.weight, self.keep = weight, keep

        def score(self, rows):
            return rows.accesses * self.weight

    class Unfinished(Policy):
        pass

    class Unrelated:
        pass

    number = 3
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of a user's own on the import path."""
    (tmp_path / "users_policies.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.syspath_prepend(tmp_path)
    yield "users_policies"
    sys.modules.pop("users_policies", None)


@pytest.fixture
def user_file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "my_policy.py"
    path.write_text(textwrap.dedent(SOURCE))
    yield path
    sys.modules.pop("adaptive_policy_my_policy", None)


def install(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    """Pretend that packages with these entry points are installed."""
    found = EntryPoints(EntryPoint(name, value, ENTRY_POINTS) for name, value in points.items())
    monkeypatch.setattr(policy_module, "entry_points", lambda group: found.select(group=group))


def test_built_ins_are_found_by_name() -> None:
    assert {"hybrid", "device", "static", "lru", "lfu", "slipstream"} <= set(installed_policies())
    for name, target in installed_policies().items():
        if target.startswith("adaptive.policies."):
            cls = load_policy_class(name)
            assert issubclass(cls, Policy) and cls.__doc__
            assert target == f"{cls.__module__}:{cls.__name__}"


def test_names_may_have_parameters_and_a_skip_rule() -> None:
    policy = make_policy("lfu+half_life=9+skip=defer+at_most=7")
    assert isinstance(policy, LFU) and isinstance(policy.rule, Defer) and policy.rule.most == 7
    assert make_policy("lru+skip=off").rule is None
    tables, tier = [TableConfig(name="t", num_embeddings=8, embedding_dim=4)], TierConfig(device="cpu")
    for name, skip, is_skipped in (
        ("lru+skip=defer", None, True),
        ("lru+skip=defer", "off", False),
        ("lru", None, False),
    ):
        with TieredEmbeddingBag(tables, tier, policy=name, skip=skip) as embeddings:
            assert (embeddings.skip is not None) == is_skipped, (name, skip)
    with pytest.raises(ConfigError, match=r"lfu expected one of its parameters \(half_life\), or skip, got half_live"):
        make_policy("lfu+half_live=9")


def test_a_users_package_is_found_without_importing_others(monkeypatch: pytest.MonkeyPatch, user_module: str) -> None:
    install(monkeypatch, mine=f"{user_module}:Mine", broken="no.such.package:Policy")
    assert installed_policies() == {"broken": "no.such.package:Policy", "mine": "users_policies:Mine"}
    assert user_module not in sys.modules
    assert load_policy_class("mine").__name__ == "Mine"


def test_loading_one_built_in_imports_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("adaptive.policies.")]:
        monkeypatch.delitem(sys.modules, name)
    load_policy_class("lru")
    assert [name for name in sys.modules if name.startswith("adaptive.policies.")] == ["adaptive.policies.lru"]


def test_by_module_and_class(user_module: str) -> None:
    assert load_policy_class(f"{user_module}:Mine").__module__ == user_module


def test_by_file_and_class(user_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_policy_class(f"{user_file}:Mine").__name__ == "Mine"
    monkeypatch.chdir(user_file.parent)
    assert isinstance(make_policy("my_policy.py:Mine"), Policy)


def test_a_changed_file_is_read_again(user_file: Path) -> None:
    load_policy_class(f"{user_file}:Mine")
    user_file.write_text(user_file.read_text().replace("class Mine", "class Renamed"))
    assert load_policy_class(f"{user_file}:Renamed").__name__ == "Renamed"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lur", "file.py:Class; did you mean lru?"),
        ("", "no policy ''; known: "),
        ("no.such.module:Mine", "policy 'no.such.module:Mine': cannot import no.such.module: No module named"),
        ("users_policies:Other", "users_policies has no class Other derived from adaptive.Policy"),
        ("users_policies:Unrelated", "users_policies has no class Unrelated derived from adaptive.Policy"),
        ("users_policies:number", "users_policies has no class number derived from adaptive.Policy"),
        ("users_policies:Unfinished", "class Unfinished does not implement score"),
        ("missing.py:Mine", "policy file missing.py not found"),
        ("missing.py", "give its class, missing.py:CLASS"),
        ("lur", "known: "),
    ],
)
@pytest.mark.usefixtures("user_module")
def test_what_cannot_be_loaded_is_named(spec: str, message: str) -> None:
    with pytest.raises(PolicyError) as error:
        load_policy_class(spec)
    assert message in str(error.value)


def test_a_wrong_class_of_a_file_is_answered_with_the_right_ones(tmp_path: Path) -> None:
    path = tmp_path / "several.py"
    path.write_text(
        "from adaptive import Policy, SkipRule\n"
        "class One(Policy): pass\nclass Two(Policy): pass\nclass Rule(SkipRule): pass\n"
    )
    with pytest.raises(PolicyError, match=r"no class Mine derived from adaptive.Policy; it has One, Two$"):
        load_policy_class(f"{path}:Mine")


@pytest.mark.parametrize(
    ("text", "message"),
    [("class Mine(:", "SyntaxError: "), ("import no_such_thing", "ModuleNotFoundError: "), ("1 / 0", "ZeroDivision")],
)
def test_a_file_that_fails_is_named_with_its_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "failing.py"
    path.write_text(text)
    with pytest.raises(PolicyError) as error:
        load_policy_class(f"{path}:Mine")
    assert str(error.value).startswith(f"policy file {path}: {message}")


def test_a_class_or_an_instance_is_taken_as_it_is(user_file: Path) -> None:
    cls = load_policy_class(f"{user_file}:Mine")
    made = make_policy(cls, {"weight": 2})
    assert isinstance(made, cls)
    assert make_policy(made) is made
    with pytest.raises(PolicyError, match="got an instance"):
        make_policy(made, {"weight": 2})


def test_parameters_are_those_of_init(user_file: Path) -> None:
    cls = load_policy_class(f"{user_file}:Mine")
    assert {name: p.default for name, p in policy_parameters(cls).items()} == {"weight": 1.0, "keep": None}
    assert policy_parameters(load_policy_class("lru")) == {}


def test_text_from_the_command_line_becomes_the_parameters_type(user_file: Path) -> None:
    made: Any = make_policy(f"{user_file}:Mine", {"weight": "2.5", "keep": "false"})
    assert (made.weight, made.keep) == (2.5, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wieght": 1}, "policy Mine has no parameter wieght; it has: weight, keep"),
        ({"weight": "heavy"}, "policy Mine: weight: expected a valid number, got 'heavy'"),
        ({"weight": -1}, "policy Mine: weight must not be negative"),
    ],
)
def test_bad_parameters_are_errors(user_file: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError) as error:
        make_policy(f"{user_file}:Mine", options)
    assert message in str(error.value)


def test_annotations_written_as_text_are_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "postponed.py"
    path.write_text("from __future__ import annotations\n" + textwrap.dedent(SOURCE))
    made: Any = make_policy(f"{path}:Mine", {"weight": "2.5"})
    assert made.weight == 2.5
    with pytest.raises(PolicyError, match="weight: expected a valid number, got 'heavy'"):
        make_policy(f"{path}:Mine", {"weight": "heavy"})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("misses", "hots", "misses: expected 'prefetch' or 'host', got 'hots'"),
        ("device_rows", "50%", "device_rows: expected None, '0' or '100%', got '50%'"),
        ("window", -1, "window: expected an integer of at least 0, got -1"),
        ("window", 1.5, "window: expected"),
        ("rule", 3, "rule: expected None or a SkipRule created in __init__, got 3"),
        ("rule", Defer(), "rule: expected None or a SkipRule created in __init__, got <"),  # policies would share it
    ],
)
def test_what_a_policy_says_of_itself_is_checked(name: str, value: object, message: str) -> None:
    wrong = type("Wrong", (LRU,), {name: value})
    for policy in (wrong, wrong()):
        with pytest.raises(PolicyError, match=f"policy Wrong: {message}"):
            make_policy(policy)


@pytest.mark.parametrize("policy", [None, 3, dict, SkipConfig])
def test_what_is_no_policy_is_named(policy: object) -> None:
    with pytest.raises(PolicyError, match="name, class or instance, got"):
        make_policy(policy)  # type: ignore[arg-type]


def test_a_policy_without_state_refuses_a_foreign_one() -> None:
    with pytest.raises(ValueError, match=r"LRU: expected no state, got \['rows'\]"):
        make_policy("lru").load_state_dict({"rows": np.arange(2)})


# --- whose score an order describes ------------------------------------------------------------------------------


def test_an_order_speaks_of_the_score_of_its_own_class() -> None:
    class Other(LRU):
        def score(self, rows: RowStats) -> NDArray[Any]:
            return -rows.last_access

    class OtherAndItsOrder(Other):
        order = ("accesses",)

    class Below(OtherAndItsOrder):
        pass

    class Plain(Policy):
        def score(self, rows: RowStats) -> NDArray[Any]:
            return rows.rows

    assert LRU().order == ("last_access",)
    assert LFU().order == ("accesses", "last_access")
    assert LFU(half_life=3).order == ()
    assert OtherAndItsOrder().order == Below().order == ("accesses",)
    assert Other().order == Plain().order == ()
