"""Named TOML files: mistakes say where they stand."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptive.errors import ConfigError
from adaptive.studies.machines import load_machine

READERS = [(load_machine, "zion", "machine file")]


@pytest.mark.parametrize(("load", "name", "what"), READERS)
def test_by_name_by_path_and_what_is_refused(tmp_path: Path, load: Callable[[str], Any], name: str, what: str) -> None:
    assert load(name).name == name
    for missing in ("zionn", str(tmp_path / "none.toml"), "x" * 300, "a\0b"):
        with pytest.raises(
            ConfigError, match=f"^{what} .*expected a file or a known name, got .* one of these names: .*{name}"
        ):
            load(missing)
    pipe, text = tmp_path / "pipe.toml", tmp_path / "own.toml"
    os.mkfifo(pipe)  # reading it would wait for ever
    with pytest.raises(ConfigError, match="a pipe"):
        load(str(pipe))
    with pytest.raises(ConfigError, match="a folder"):
        load(str(tmp_path))
    for content, actual in (
        (b"name = ", what),
        (b"\xff", "utf-8"),
        (b"a = " + b"[" * 5000, what),
        (b"name = 3", "name: "),
    ):
        text.write_bytes(content)
        with pytest.raises(ConfigError, match=actual):
            load(str(text))
    text.write_bytes(b"a = 1\n" * 2**18)
    with pytest.raises(ConfigError, match=r"own\.toml"):
        load(str(text))
