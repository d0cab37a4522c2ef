"""`policies.x`, the name of before, gives the module `adaptive.policies.x` and says so."""

import importlib
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import adaptive
from adaptive.plugins import load_policy_class
from adaptive.policies.lru import LRU
from adaptive.storage import former_names

ROOT = Path(adaptive.__file__).parent.parent


@pytest.fixture(autouse=True)
def _nothing_is_imported_by_a_former_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "policies"]:
        monkeypatch.delitem(sys.modules, name)


def python(code: str, folder: Path, *options: str) -> str:
    """What a fresh process prints; the folder it runs in comes first where modules are looked for."""
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_the_former_name_gives_the_same_module_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"^policies\.lru is called adaptive\.policies\.lru now") as found:
        import policies.lru
    assert policies.lru.LRU is LRU
    assert [warning.filename for warning in found] == [__file__]  # where it is imported, not here or in importlib
    assert sys.modules["policies.lru"] is sys.modules["adaptive.policies.lru"]
    assert LRU.__module__ == sys.modules["policies.lru"].__spec__.name == "adaptive.policies.lru"  # type: ignore[union-attr]


def test_the_present_name_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_policy_class("lru") is load_policy_class("adaptive.policies.lru:LRU")


def test_specs_of_before_load() -> None:
    with pytest.warns(DeprecationWarning, match="is called"):
        assert load_policy_class("policies.lfu:LFU") is load_policy_class("lfu")


def test_what_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"policies\.nothing"):
        importlib.import_module("policies.nothing")


def test_a_package_of_the_users_own_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies/__init__.py").write_text("OWN = 1")
    (tmp_path / "policies/lru.py").write_text("OWN = 2")
    monkeypatch.syspath_prepend(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert importlib.import_module("policies").OWN == 1
        assert importlib.import_module("policies.lru").OWN == 2
        with pytest.raises(ModuleNotFoundError, match=r"policies\.lfu"):
            importlib.import_module("policies.lfu")


@pytest.mark.parametrize("first", ["", "import adaptive; "])
def test_in_a_checkout_there_is_one_copy(first: str) -> None:
    """The folder `policies/` lies beside `adaptive/` there, so Python finds it without asking us."""
    code = "from policies.lru import LRU; from adaptive.policies.lru import LRU as Same; print(LRU is Same)"
    assert python(first + code, ROOT, "-W", "ignore") == "True"


def test_registering_twice_is_once() -> None:
    before = list(sys.meta_path)
    former_names.register()
    assert sys.meta_path == before
