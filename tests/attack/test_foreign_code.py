"""Opening somebody's run or settings runs nothing of theirs: code that only a file names is not loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.interrupted import config_of, interrupted, resume_run, run, small_world
from support.manifests import write_record

from adaptive.errors import ConfigError
from adaptive.plugins import CODE_SETTINGS
from adaptive.training.settings import load_settings

TRAP = """
from pathlib import Path
Path({marker!r}).write_text("it ran")
from adaptive.policies.lru import LRU
from adaptive.policies.rules.defer import Defer

class Mine(LRU): pass
class Rule(Defer): pass
"""


@pytest.fixture
def trap(tmp_path: Path) -> tuple[str, Path]:
    """A file of code without its class, and the file that it writes when it is loaded."""
    marker, file = tmp_path / "ran", tmp_path / "trap.py"
    file.write_text(TRAP.format(marker=str(marker)))
    return str(file), marker


@pytest.mark.parametrize(("key", "kind"), [("policy", "Mine"), ("skip.rule", "Rule")])
@pytest.mark.parametrize("form", ["run.json", "settings.toml"])
def test_a_strangers_settings_load_no_code(
    tmp_path: Path, trap: tuple[str, Path], form: str, key: str, kind: str
) -> None:
    spec = f"{trap[0]}:{kind}"
    nested: dict[str, Any] = {"policy": spec} if key == "policy" else {"skip": {"rule": spec}}
    file = tmp_path / form
    file.write_text(f"{key} = {spec!r}\n" if form.endswith("toml") else json.dumps({"config": nested}))
    with pytest.raises(ConfigError, match="code that only a file names is not run") as caught:
        load_settings(file=file)
    assert f"{file}: {key}={spec}" in str(caught.value) and f"--set {key}={spec}" in str(caught.value)
    assert not trap[1].exists()
    load_settings(file=file, sets=[f"{key}={spec}"])
    assert trap[1].exists() == (key == "policy")  # a rule is loaded when the run is built


@pytest.mark.parametrize("key", CODE_SETTINGS)
def test_a_resumed_run_loads_only_code_that_is_named_again(tmp_path: Path, trap: tuple[str, Path], key: str) -> None:
    with small_world(num_train=256) as patch:
        out = tmp_path / "run"
        config = config_of("lru", save_every=2)
        with interrupted(patch, "kill", 6):
            run(out, config)
        record = json.loads((out / "run.json").read_text())
        spec = f"{trap[0]}:{ {'policy': 'Mine', 'skip.rule': 'Rule', 'model': 'Model'}[key] }".replace(" ", "")
        if key == "skip.rule":
            record["config"]["skip"]["rule"] = spec
        else:
            record["config"][key] = spec
        write_record(out, record)
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != "lock"}
        for code in ({}, {key: f"{trap[0]}:Other"}):
            with pytest.raises(ConfigError) as caught:
                resume_run(out, code=code)
            assert not trap[1].exists()
        assert "A run resumes with its own settings" in str(caught.value)
        assert {path: path.read_bytes() for path in before} == before
        with pytest.raises(ConfigError, match="is not run") as caught:
            resume_run(out)
        flag = CODE_SETTINGS[key][0]
        assert f"adaptive-train run --resume {out} {flag} {spec}" in str(caught.value)
        if key == "policy":
            resume_run(out, code={key: spec})
            assert trap[1].exists()


def test_eval_and_predict_of_a_strangers_run_load_none(
    tmp_path: Path, trap: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from adaptive.training.runs.loading import load_run

    with small_world(num_train=128):
        run(tmp_path / "run", config_of("lru"))
        record = json.loads((tmp_path / "run" / "run.json").read_text())
        record["config"] |= {"policy": f"{trap[0]}:Mine", "skip": {"rule": f"{trap[0]}:Rule"}}
        write_record(tmp_path / "run", record)
        with load_run(tmp_path / "run") as found:
            assert found.steps == 4 and not trap[1].exists()
