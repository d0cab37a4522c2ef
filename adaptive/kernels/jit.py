"""Compiles every numba kernel: the one place for options, cache and import order.

Kernels release the GIL and allocate nothing in their loops. Only the training thread may run kernels made with
`parallel=True`: numba's fallback threading layer aborts the process if two threads do.
"""

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

# isort: split
# Import torch before the first parallel numba kernel runs. Otherwise torch binds to the OpenMP copy that numba loaded,
# and its element-wise functions start a thread per call (16 us become 4 ms).
import torch  # noqa: F401

# isort: split
import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin

F = TypeVar("F", bound=Callable[..., Any])

at = np.uint64
"""Turns a non-negative number into an index. If numba cannot see that a number is not negative, it adds the length to
negative indices, which takes 15 to 40% of the time of loops over lookups. Slices walked from 0 need no `at`."""


def _imported(file: Path) -> Iterator[Path]:
    """Yield the files of this package that a file imports: its kernels may call and compute with what they define."""
    package = Path(__file__).parent.parent
    for module, names in _IMPORT.findall(file.read_text(encoding="utf-8")):
        path = package.parent.joinpath(*module.split("."))
        for candidate in (path, *(path / name for name in re.findall(r"\w+", names))):
            yield from (f for f in (candidate.with_suffix(".py"), candidate / "__init__.py") if f.is_file())


def _sources_key(file: Path) -> str:
    """Key of a kernel file in the compile cache: a digest of the file and of all that it imports, directly or not.

    numba itself checks only the file of a kernel, not the kernels that it calls or their constants; and it compiles
    again what was copied, moved or installed again.
    """
    root = Path(__file__).parent.parent.parent
    sources, unread = set(), {file, Path(__file__)}
    while unread:
        sources |= unread
        unread = {path for source in unread for path in _imported(source)} - sources
    digest = hashlib.sha256()
    for source in sorted(sources):
        name = source.relative_to(root) if source.is_relative_to(root) else source
        digest.update(f"\n{name}\n".encode() + source.read_bytes())
    return digest.hexdigest()[:12]


def _cache_dir() -> str | None:
    """A cache directory that only this user can write to (it has pickles), or None."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = base / "adaptive-train" / f"numba-{numba.__version__}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022:
            return None
        with tempfile.NamedTemporaryFile(dir=path):
            pass
    except OSError:
        return None
    return str(path)


_CACHE_DIR = _cache_dir()
_IMPORT = re.compile(r"^\s*(?:from|import) (adaptive[.\w]*)(?: import (\([^)]*\)|.*))?", re.MULTILINE)
_file_key = cache(_sources_key)


class _Locator(_CacheLocator):
    """Finds compiled kernels by the content of their sources, so that all installations of a version share them."""

    def __init__(self, function: Any, file: str) -> None:
        self._line, self._key = function.__code__.co_firstlineno, _file_key(Path(file))

    def get_cache_path(self) -> str:
        return f"{_CACHE_DIR}/{self._key}"

    def get_source_stamp(self) -> str:
        return self._key

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, function: Any, file: str) -> "_Locator":
        return cls(function, file)


class _Results(CompileResultCacheImpl):
    def __init__(self, function: Any) -> None:
        self._locator_classes = [_Locator]
        super().__init__(function)


class _Cache(FunctionCache):
    _impl_class = _Results


def _promise_no_alias(compiled: Any) -> None:
    """Set the compiler flag `noalias`, for which numba has no option.

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
    """Compile a function over arrays, as a decorator.

    The plain Python function is available as `.py_func`. Division follows IEEE rules (no exceptions), and sums are
    never reordered (no fast-math), so results do not depend on the machine's vector width.

    Arrays are borrowed: numba's reference counts of arrays that a loop passes to another kernel, with locked
    instructions, took up to half of a kernel's time. So a kernel that creates arrays must say so.

    Args:
        parallel: `prange` runs on several threads; for the training thread only.
        noalias: promise that no two array arguments overlap, which enables vector instructions.
        inline: copy the function into its callers.
        makes_arrays: the kernel creates arrays, such as scratch for a whole loop.
    """

    def compile_(function: F) -> F:
        options: Any = {"_nrt": parallel or makes_arrays}  # numba's runtime, which counts references
        compiled: Any = numba.njit(
            nogil=True,
            error_model="numpy",
            parallel=parallel,
            inline="always" if inline else "never",
            **options,
        )(function)
        if _CACHE_DIR:
            compiled._cache = _Cache(function)
        if noalias:
            _promise_no_alias(compiled)
        return cast(F, compiled)

    return compile_


def callable_in_kernels(function: Callable[..., Any], returned: Any = types.void, arguments: Any = None) -> None:
    """Let kernels call `function`; `lower_builtin` generates its code.

    An intrinsic or overload of numba would need a fixed number of arguments.

    Args:
        arguments: the types of its arguments; a call with others does not compile. None: any.
    """

    class Typed(AbstractTemplate):
        key = function

        def generic(self, passed: Any, keywords: Any) -> Any:
            return signature(returned, *passed) if arguments is None or passed == arguments else None

    infer_global(function, types.Function(Typed))


class Outlined:
    """A kernel that other kernels call by its address, so that they do not contain it.

    numba compiles a kernel again with each kernel that calls it, and a parallel loop with its body four times. Calls by
    address halve the time until a first step. The address differs in each process, so it is passed as an argument:

        _work = Outlined(_work_kernel, "float32[:, ::1], int64")
        call_work = _work.call

        @kernel(parallel=True)
        def _all(address, array):
            for i in prange(10):
                call_work(address, array, i)

        _all(_work.address, array)

    Args:
        compiled: returns nothing.
        arguments: the types of its arguments. A call with others does not compile.
    """

    def __init__(self, compiled: Any, arguments: str) -> None:
        kinds = numba.core.sigutils.normalize_signature(f"void({arguments})")[0]
        self._compiled, self._kinds = compiled, kinds

        def call(address: int, *values: Any) -> None:
            compiled.py_func(*values)

        callable_in_kernels(call, arguments=(types.int64, *kinds))

        @lower_builtin(call, types.VarArg(types.Any))
        def lowered(context: Any, builder: Any, typed: Any, values: Any) -> Any:
            convention = context.call_conv
            pointer = convention.get_function_type(types.void, kinds).as_pointer()
            target = builder.inttoptr(values[0], pointer)
            status, _ = convention.call_function(builder, target, types.void, kinds, values[1:])
            with cgutils.if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return context.get_dummy_value()

        self.call = call

    @cached_property
    def address(self) -> int:
        """Address of the machine code, which is compiled or read from the cache at first use."""
        self._compiled.compile(self._kinds)
        result = self._compiled.overloads[self._kinds]
        return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))
