"""Modules that had another name in the release before: `policies.x`, now `adaptive.policies.x`.

The former name gives the same module, not a second copy of it, with a `DeprecationWarning` where it is imported. A
package `policies` of the user's own comes first.
"""

import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

FORMER = "policies"
PRESENT = "adaptive.policies"


class FormerNames(MetaPathFinder):
    """Finds modules of `adaptive.policies` by their names of before."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where `fullname` is now; None for all names that are not ours."""
        package, _, module = fullname.partition(".")
        if package != FORMER or not (_is_ours(fullname) if not module else _stands_for_ours()):
            return None
        present = f"{PRESENT}.{module}" if module else PRESENT
        if importlib.util.find_spec(present) is None:
            return None
        if module:
            text = f"{fullname} is called {present} now; the former name will be gone in the next release"
            warnings.warn(text, DeprecationWarning, stacklevel=2)  # the import's own frames do not count
        return ModuleSpec(fullname, _SameModule(present), is_package=not module)


class _SameModule(Loader):
    """Gives a module that has another name already."""

    def __init__(self, present: str) -> None:
        self.present = present
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.present)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import has put the former name's there


def _is_ours(fullname: str) -> bool:
    """Whether nobody else has a package of the former name: none is found, or a checkout's own folder is."""
    other = PathFinder.find_spec(fullname)
    if other is None:
        return True
    return other.origin is not None and Path(other.origin).resolve().parent == _folder()


def _stands_for_ours() -> bool:
    return getattr(sys.modules.get(FORMER), "__name__", None) == PRESENT


def _folder() -> Path:
    return (Path(__file__).parent / "policies").resolve()


def register() -> None:
    """Let imports by former names find the present modules; once, however often it is called."""
    if not any(isinstance(finder, FormerNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, FormerNames())
