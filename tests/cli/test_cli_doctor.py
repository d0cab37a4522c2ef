"""`doctor` reports facts and problems."""

import json
from collections.abc import Callable
from typing import Any

import pytest

Cli = Callable[..., Any]


def test_doctor_reports_every_part(cli: Cli) -> None:
    found = json.loads(cli("doctor", "--json").out)
    assert found["versions"]["torch"] and found["processor"]["usable_cores"] >= 1
    assert "workqueue" in found["processor"]["numba_threading_layers"]
    assert found["memory"]["total"].endswith("GiB") and found["disk"]["free"].endswith("GiB")
    assert found["gpu"] and "lru" in found["policies"]
    assert isinstance(found["kernel_cache"]["safe"], bool)


def test_doctor_names_problems(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptive.policy_loading.installed_policies", lambda: {"broken": "no_such_module:Broken"})
    monkeypatch.setattr("adaptive.kernels.jit._CACHE_DIR", None)
    result = cli("doctor")
    assert result.code == 0
    assert "problem: policy broken does not load" in result.out
    assert "problem: compiled kernels are not kept" in result.out and "XDG_CACHE_HOME" in result.out
