"""How long threads spin while they wait for each other: said to OpenMP before torch is loaded, or not at all."""

import os
import subprocess
import sys

import pytest

from adaptive import system

AFTER_IMPORT = """
import os, sys
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:2]))
import adaptive
print("torch" in sys.modules, os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.mark.parametrize(("given", "expected"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_importing_adaptive_sets_it_before_torch_is_loaded(given: dict[str, str], expected: str) -> None:
    plain = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    found = subprocess.run(
        [sys.executable, "-c", AFTER_IMPORT], env=plain | given, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["False", expected]


@pytest.mark.parametrize(
    ("cores", "policy", "expected"), [(2, None, "1000"), (4, None, "1000"), (5, None, None), (2, "active", None)]
)
def test_only_on_few_cores_and_where_the_user_has_not_said_how_to_wait(
    cores: int, policy: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if policy is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    monkeypatch.setattr(system, "usable_cores", lambda: cores)
    system.spin_briefly()
    assert os.environ.get("GOMP_SPINCOUNT") == expected
