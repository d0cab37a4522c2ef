"""`config`: every setting with its default."""

import json

import pytest

from adaptive.cli import app
from adaptive.training.settings import load_settings


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        app.main(["config", *arguments])
    assert not exit_.value.code, capsys.readouterr().err
    return capsys.readouterr().out


def test_keys_and_defaults_are_those_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """--set accepts each listed default, and every setting of a run is listed."""
    listed = {setting["key"]: setting for setting in json.loads(run(capsys, "--json"))["settings"]}
    defaults = {
        key: setting["default"] for key, setting in listed.items() if not key.startswith(("model.", "data.keys."))
    }
    sets = [f"{key}={default}" for key, default in defaults.items() if default not in ("needed", "null")]
    config, origins = load_settings(sets=sets)
    defaults = {key: value for key, value in config.model_dump(mode="json").items() if "options" not in key}
    assert defaults == {k: v for k, v in load_settings()[0].model_dump(mode="json").items() if "options" not in k}
    leaves = {key for key in origins if not key.startswith(("policy_options", "data_options", "model_options"))}
    assert leaves <= set(listed)
    assert {"data.holdout", "data.synthetic.rows", "model.top_mlp"} <= set(listed)


def test_config_selects_sections_and_keys(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "tier", "data.holdout")
    assert "tier.device_rows = auto (--device-rows)" in text and "data.holdout = null" in text
    assert "optimizer.lr" not in text and "data.seed" not in text
    assert run(capsys, "data.holdout").splitlines()[2].strip().startswith("number or null, > 0, < 1; evaluate on this")


def test_an_unknown_key_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        app.main(["config", "tier.device_row"])
    assert exit_.value.code == 2
    assert "settings or sections, got tier.device_row; did you mean tier.device_rows" in capsys.readouterr().err
