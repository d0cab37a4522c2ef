"""The package that `policies new` writes: a policy that works, its test, and the entry point that makes it known."""

import importlib.util
import keyword
import re
from dataclasses import dataclass
from pathlib import Path

from adaptive.errors import ConfigError, OutputError
from adaptive.policy_loading import ENTRY_POINTS, installed_policies
from adaptive.storage.durable import write_directory

NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
description = "A placement policy for adaptive-train"
requires-python = ">=3.11"
dependencies = ["adaptive-train"]

[project.entry-points."{group}"]
{name} = "{module}:{class_name}"

[tool.hatch.build.targets.wheel]
only-include = ["{module}.py"]

[tool.pytest.ini_options]
pythonpath = ["."]
"""

MODULE = '''\
"""The policy `{name}`."""

import numpy as np
from adaptive import Policy, RowStats
from numpy.typing import NDArray


class {class_name}(Policy):
    """Keeps rows that were looked up often, and counts old look-ups less.

    The first line above is what `adaptive-train policies list` shows; put a paper's link here.

    Args:
        half_life: batches after which the look-ups of a row count half.
    """

    def __init__(self, *, half_life: float = 1000.0) -> None:
        if half_life <= 0:
            raise ValueError(f"half_life must be above 0, found {{half_life}}")
        self.half_life = half_life

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        age = rows.step - rows.last_access
        return rows.accesses * 0.5 ** (age / self.half_life)
'''

TEST = '''\
"""`{name}` satisfies the contract of every policy."""

from adaptive.contract import check_policy
from {module} import {class_name}


def test_contract() -> None:
    failed = [f"{{one.check}}: {{one.reason}}" for one in check_policy({class_name}) if not one.passed]
    assert not failed, "\\n".join(failed)
'''


@dataclass(frozen=True)
class Package:
    """A package that was written."""

    folder: Path
    module: str
    class_name: str
    files: tuple[Path, ...]

    @property
    def module_file(self) -> Path:
        return self.folder / f"{self.module}.py"


def write_package(name: str, folder: Path) -> Package:
    """Write the package of the policy `name` into a new or empty folder.

    Raises:
        ConfigError: if the name is no name for a policy and a Python module, or is taken.
        OutputError: if the folder is there and not empty, or cannot be written.
    """
    module = _module_name(name)
    class_name = "".join(part.capitalize() for part in module.split("_"))
    words = {"name": name, "module": module, "class_name": class_name, "group": ENTRY_POINTS}
    contents = {"pyproject.toml": PYPROJECT, f"{module}.py": MODULE, f"tests/test_{module}.py": TEST}
    _write(folder, {file: text.format(**words) for file, text in contents.items()})
    return Package(folder, module, class_name, tuple(folder / file for file in contents))


def _module_name(name: str) -> str:
    module = name.replace("-", "_")
    if not NAME.fullmatch(name) or keyword.iskeyword(module):
        raise ConfigError(
            f"policy name {name!r} cannot be used; allowed: small letters, digits, - and _, beginning with a letter "
            f"and no word of Python, such as my-policy"
        )
    if name in installed_policies() or importlib.util.find_spec(module) is not None:
        raise ConfigError(f"the name {name!r} is taken by an installed policy or module; take another name")
    return module


def _write(folder: Path, texts: dict[str, str]) -> None:
    def fill(target: Path) -> None:
        for file, text in texts.items():
            path = target / file
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")

    try:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        write_directory(folder.absolute(), fill)
    except FileExistsError:
        raise OutputError(f"{folder} exists and is not an empty folder; give another one: NAME DIR") from None
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error}") from error
