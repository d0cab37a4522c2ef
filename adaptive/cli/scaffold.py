"""The package that `policies new` writes: a policy, or a skip rule, that works, its test, and its entry point."""

import importlib.util
import keyword
import re
from dataclasses import dataclass
from pathlib import Path

from adaptive.errors import ConfigError, OutputError
from adaptive.plugins import ENTRY_POINTS, RULE_ENTRY_POINTS, installed_policies, installed_rules
from adaptive.storage.durable import write_directory

NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
description = "A {kind} for adaptive-train"
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

RULE_MODULE = '''\
"""The skip rule `{name}`."""

import numpy as np
from adaptive import RowStats, SkipRule
from numpy.typing import NDArray


class {class_name}(SkipRule):
    """Gradients of rows that hardly move wait in a sum, which every few visits applies.

    The first line above is what `adaptive-train policies list` shows; put a paper's link here.

    Args:
        still: movement between two snapshots, relative to the row, up to which a row hardly moves.
        wait: visits that such a row's gradients wait.
    """

    def __init__(self, *, still: float = 0.1, wait: int = 4) -> None:
        if still < 0 or not 1 <= wait <= 255:
            raise ValueError(f"needed still >= 0 and wait from 1 to 255, found {{still}} and {{wait}}")
        self.still, self.wait = still, wait

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        return np.where(rows.drift <= self.still, self.wait, 1)  # not known (NaN): 1
'''

TEST = '''\
"""`{name}` satisfies the contract of every {kind}."""

from adaptive import {check}
from {module} import {class_name}


def test_contract() -> None:
    failed = [f"{{one.check}}: {{one.reason}}" for one in {check}({class_name}) if not one.passed]
    assert not failed, "\\n".join(failed)
'''


POLICY_WORDS = {"group": ENTRY_POINTS, "kind": "policy", "check": "check_policy"}


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


def write_package(name: str, folder: Path, *, rule: bool = False) -> Package:
    """Write the package of the policy, or the skip rule, `name` into a new or empty folder.

    Raises:
        ConfigError: if the name is no name for a policy and a Python module, or is taken.
        OutputError: if the folder is there and not empty, or cannot be written.
    """
    module = _module_name(name)
    class_name = "".join(part.capitalize() for part in module.split("_"))
    words = {"name": name, "module": module, "class_name": class_name}
    words |= {"group": RULE_ENTRY_POINTS, "kind": "skip rule", "check": "check_rule"} if rule else POLICY_WORDS
    text = RULE_MODULE if rule else MODULE
    contents = {"pyproject.toml": PYPROJECT, f"{module}.py": text, f"tests/test_{module}.py": TEST}
    _write(folder, {file: text.format(**words) for file, text in contents.items()})
    return Package(folder, module, class_name, tuple(folder / file for file in contents))


def _module_name(name: str) -> str:
    module = name.replace("-", "_")
    if not NAME.fullmatch(name) or keyword.iskeyword(module):
        raise ConfigError(
            f"policy name {name!r} cannot be used; allowed: small letters, digits, - and _, beginning with a letter "
            f"and no word of Python, such as my-policy"
        )
    if name in {**installed_policies(), **installed_rules()} or importlib.util.find_spec(module) is not None:
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
