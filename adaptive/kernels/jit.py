"""How every numba kernel is compiled: one place for options, cache and import order.

Kernels release the GIL and allocate nothing in their loops. Only the training thread runs kernels made with
`parallel=True`: numba's fallback threading layer aborts the process when two threads do.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

# isort: split
# torch must be imported before the first parallel numba kernel runs. Otherwise torch binds to the OpenMP copy that
# numba loaded, and its element-wise functions start a thread per call (16 us become 4 ms).
import torch  # noqa: F401

# isort: split
import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

CONSTANTS = ("counters.py",)
"""Files outside of the folders of kernels whose values kernels use; a test holds this list against what kernels
import."""

at = np.uint64
"""Makes an index of a number that is not negative. Where numba cannot see that, it adds the length to negative indices:
15 to 40 % of the time of loops over look-ups. Slices walked from 0 need no `at`."""


def _sources_key() -> str:
    """Changes when any kernel file does, or a file whose constants are frozen into kernels.

    numba itself sees only the file that a kernel stands in: neither that a kernel called by it changed, nor a constant.
    """
    package = Path(__file__).parent.parent
    kernels = [*sorted((package / "kernels").rglob("*.py")), *sorted((package / "data/kernels").rglob("*.py"))]
    digest = hashlib.sha256(str(package).encode())
    for file in [*kernels, *(package / name for name in CONSTANTS)]:
        digest.update(f"\n{file.relative_to(package)}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _cache_dir() -> str | None:
    """A cache directory that only this user can write (cached kernels are pickles), or None if there is none."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = base / "adaptive-train" / f"numba-{numba.__version__}-{_sources_key()}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
            return None
        with tempfile.NamedTemporaryFile(dir=path):
            pass
    except OSError:
        return None
    return str(path)


_CACHE_DIR = _cache_dir()


def _promise_no_alias(compiled: Any) -> None:
    """Set the compiler flag `noalias`, which numba has but offers no option for.

    Without it LLVM must assume that a store to one array changes another, and loads rows value by value: 2x slower.
    """
    customize = compiled._compiler._customize_flags

    def with_noalias(flags: Any) -> Any:
        flags = customize(flags)
        flags.noalias = True
        return flags

    compiled._compiler._customize_flags = with_noalias


def kernel(
    *, parallel: bool = False, noalias: bool = False, inline: bool = False, makes_arrays: bool = False
) -> Callable[[F], F]:
    """Compile a function over arrays: `@kernel()`, or `@kernel(parallel=True)` for training-thread kernels.

    The plain Python function stays reachable as `.py_func`. Division follows IEEE rules (no exceptions), sums are
    never reordered (no fast-math): results do not depend on the machine's vector width.

    Arrays are borrowed, not counted: numba would count references, with locked instructions, to each array that a loop
    hands to another kernel, which took up to half of a kernel's time. So a kernel that makes
    arrays must say so.

    Args:
        parallel: `prange` runs on several threads; for the training thread only.
        noalias: promises that no two array arguments overlap, which lets loops become vector instructions.
        inline: puts the function into its callers.
        makes_arrays: such as scratch for a whole loop.
    """

    def compile_(function: F) -> F:
        config: Any = numba.config
        before = config.CACHE_DIR
        config.CACHE_DIR = _CACHE_DIR or before
        try:
            options: Any = {"_nrt": parallel or makes_arrays}  # numba's run-time, which counts references
            compiled: Any = numba.njit(
                nogil=True,
                cache=_CACHE_DIR is not None,
                error_model="numpy",
                parallel=parallel,
                inline="always" if inline else "never",
                **options,
            )(function)
            if noalias:
                _promise_no_alias(compiled)
        finally:
            config.CACHE_DIR = before
        return cast(F, compiled)

    return compile_
