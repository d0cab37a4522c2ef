"""Compiles every numba kernel: the one place for options, cache and import order.

Kernels release the GIL and allocate nothing in their loops. Only the training thread may run kernels that use
`in_parallel`: numba's fallback threading layer aborts the process if two threads do.
"""

import gc
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

# isort: split
# Import torch before the first parallel numba kernel runs. Otherwise torch binds to the OpenMP copy that numba loaded,
# and its element-wise functions start a thread per call (16 us become 4 ms).
import torch  # noqa: F401

# isort: split
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, event
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.registry import CPUDispatcher
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin
from numba.np.ufunc.parallel import _launch_threads

from adaptive.system import Uninterrupted

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


def compile_marker(name: str) -> Path | None:
    """Return the path of a marker in the cache that these sources of kernels share; None without a cache."""
    if _CACHE_DIR is None:
        return None
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(source.read_bytes())
    return Path(_CACHE_DIR) / f"compiled-{digest.hexdigest()[:12]}-{name}"


_I32, _I64, _POINTER = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
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


class Compilation(event.Listener):
    """Counts compilations, and pauses Python's garbage collection in them; numba holds its global lock then.

    Compilation makes millions of objects that live until its end. Searching them took a sixth of its time.

    Attributes:
        count: kernels that this process has compiled so far; kernels from the cache do not count.
        announce: called before the next compilation, once; None: nobody is told.
    """

    def __init__(self) -> None:
        self.count = 0
        self.announce: Callable[[], object] | None = None
        self._was_enabled: list[bool] = []  # of kernels that are being compiled: callers first

    def on_start(self, compilation: event.Event) -> None:
        if self.announce is not None:
            announce, self.announce = self.announce, None
            announce()
        self._was_enabled.append(gc.isenabled())
        gc.disable()

    def on_end(self, compilation: event.Event) -> None:
        self.count += 1
        if self._was_enabled.pop():
            gc.enable()


compilation = Compilation()
event.register("numba:compile", compilation)


def _set_flags(compiled: Any, **values: bool) -> None:
    """Set flags of the compiler for which numba has no options."""
    customize = compiled._compiler._customize_flags

    def with_values(flags: Any) -> Any:
        flags = customize(flags)
        for name, value in values.items():
            setattr(flags, name, value)
        return flags

    compiled._compiler._customize_flags = with_values


class _Callee(CPUDispatcher):
    """A kernel as other kernels see it: code that they contain.

    Callers optimize and compile that code. numba would also do so here, make a function that Python can call, cache all
    of it, and compile a kernel again for each constant among its arguments: 3 times as long.
    """

    def get_call_template(self, args: Any, kws: Any) -> Any:
        return super().get_call_template(tuple(map(types.unliteral, args)), kws)

    def add_overload(self, result: Any) -> None:
        library = result.library

        def finalize() -> None:
            library._finalized = True

        library._optimize_final_module, library._finalize_final_module = lambda: None, finalize
        result = result._replace(entry_point=object())  # the key under which callers find the code
        self.overloads[tuple(result.signature.args)] = result
        self.targetctx.insert_user_function(result.entry_point, result.fndesc, [library])


def _complete(compile_: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let no interrupt come while a kernel is compiled or loaded: numba would be left with half of its registries."""

    def completed(arguments: Any) -> Any:
        with Uninterrupted():
            return compile_(arguments)

    return completed


def _contain_in_callers(compiled: Any, noalias: bool) -> None:
    """Let kernels that call this one contain its code."""
    options = {**compiled.targetoptions, "no_cpython_wrapper": True}
    callee: Any = _Callee(compiled.py_func, targetoptions=options)
    _set_flags(callee, no_compile=True, noalias=noalias)
    compiled.callee = callee
    compiled.get_call_template, compiled.get_overload = callee.get_call_template, callee.get_overload


def kernel(
    *, noalias: bool = False, inline: bool = False, inline_code: bool = False, makes_arrays: bool = False
) -> Callable[[F], F]:
    """Compile a function over arrays, as a decorator.

    The plain Python function is available as `.py_func`. Division follows IEEE rules (no exceptions), and sums are
    never reordered (no fast-math), so results do not depend on the machine's vector width.

    Arguments that belong together are tuples. Where they have names (a NamedTuple), callers pass a plain tuple of them:
    numba reads the names of all fields in each call, which takes 0.6 us, and 2 with cold caches. That was 4% of
    planning a batch.

    Arrays are borrowed: numba's reference counts of arrays that a loop passes to another kernel, with locked
    instructions, took up to half of a kernel's time. So a kernel that creates arrays must say so.

    Args:
        noalias: promise that no two array arguments overlap, which enables vector instructions.
        inline: copy the function into its callers, and compile it again for each call.
        inline_code: copy its code, which is compiled once, into its callers; loops may come out differently.
        makes_arrays: the kernel creates arrays, such as scratch for a whole loop.
    """

    def compile_(function: F) -> F:
        # _nrt: numba's runtime, which counts references. C functions would only be used by kernels passed as values.
        options: Any = {"_nrt": makes_arrays, "no_cfunc_wrapper": True}
        compiled: Any = numba.njit(
            nogil=True,
            error_model="numpy",
            inline="always" if inline else "never",
            forceinline=inline_code,
            **options,
        )(function)
        compiled.compile = _complete(compiled.compile)
        if _CACHE_DIR:
            compiled._cache = _Cache(function)
        if not inline:
            _contain_in_callers(compiled, noalias)
        # Without noalias LLVM must assume that a store to one array changes another, and loads rows value by value: 2x
        # slower.
        if noalias:
            _set_flags(compiled, noalias=True)
        return cast(F, compiled)

    return compile_


def callable_in_kernels(function: Callable[..., Any], returned: Any = types.void) -> None:
    """Let kernels call `function`; `lower_builtin` generates its code.

    An intrinsic or overload of numba would need a fixed number of arguments.
    """

    class Typed(AbstractTemplate):
        key = function

        def generic(self, passed: Any, keywords: Any) -> Any:
            return signature(returned, *passed)

    infer_global(function, types.Function(Typed))


def in_parallel(work: Any, count: int, *values: Any) -> None:
    """Call `work(i, *values)` for i in [0, count) on several threads; for kernels that only the training thread runs.

    `work` is a kernel that returns nothing and can only run out of memory. The same as a `prange`, for which
    numba generates and compiles three functions around a fourth copy of the body.
    """
    plain = getattr(work, "py_func", work)
    for i in range(count):
        plain(i, *values)


class _InParallel(AbstractTemplate):
    key = in_parallel

    def generic(self, passed: Any, keywords: Any) -> Any:
        work, _, *values = passed
        called = work.get_call_type(self.context, (types.int64, *values), {})
        assert called.return_type == types.none
        return signature(types.void, work, types.int64, *called.args[1:])


infer_global(in_parallel, types.Function(_InParallel))


@lower_builtin(in_parallel, types.VarArg(types.Any))
def _lower_in_parallel(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    """Share `_items` of a call among numba's threads; items [i, i + n) of the call begin at the address i."""
    work, _, *kinds = typed.args
    _, count, *values = arguments
    result = work.dispatcher.callee.overloads[types.int64, *kinds]
    context.active_code_library.add_linking_library(result.library)
    context.active_code_library._reload_init.add(_launch_threads)
    _launch_threads()  # defines the symbols below
    packed = cgutils.pack_struct(builder, [*values, _I32(0)])
    shared = cgutils.alloca_once_value(builder, packed)
    pointers = cgutils.pack_array(builder, [builder.bitcast(shared, _POINTER), _I64(0).inttoptr(_POINTER)])
    steps = cgutils.pack_array(builder, [_I64(0), _I64(1)])
    items = _items(context, builder.module, packed.type, result.fndesc)
    threads = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I64, []), "get_num_threads")
    run = ir.FunctionType(ir.VoidType(), [_POINTER] * 5 + [_I64] * 3)
    run = cgutils.get_or_insert_function(builder.module, run, "numba_parallel_for")
    places = [cgutils.alloca_once_value(builder, value) for value in (pointers, count, steps)]
    sent = [builder.bitcast(pointer, _POINTER) for pointer in (items, *places)]
    builder.call(run, [*sent, _POINTER(None), _I64(0), _I64(2), builder.call(threads, [])])
    failed = builder.load(cgutils.gep_inbounds(builder, shared, 0, len(values)))
    with cgutils.if_unlikely(builder, cgutils.is_not_null(builder, failed)):
        context.call_conv.return_user_exc(builder, MemoryError, ("out of memory in a parallel kernel",))
    return context.get_dummy_value()


def _items(context: Any, module: Any, packed: Any, work: Any) -> Any:
    """Generate a function that calls `work` for some items, as numba's threads call it."""
    kind = ir.FunctionType(ir.VoidType(), [_POINTER.as_pointer(), _I64.as_pointer(), _I64.as_pointer(), _POINTER])
    function = ir.Function(module, kind, module.get_unique_name("items"))
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block())
    pointers, counts = function.args[:2]
    shared = builder.bitcast(builder.load(pointers), packed.as_pointer())
    first = builder.ptrtoint(builder.load(cgutils.gep_inbounds(builder, pointers, 1)), _I64)
    values = [builder.load(cgutils.gep_inbounds(builder, shared, 0, i)) for i in range(len(packed) - 1)]
    target = context.declare_function(module, work)
    with cgutils.for_range(builder, builder.load(counts), intp=_I64) as loop:
        item = builder.add(first, loop.index)
        status, _ = context.call_conv.call_function(builder, target, types.none, work.argtypes, [item, *values])
        with cgutils.if_unlikely(builder, status.is_error):
            builder.store(_I32(1), cgutils.gep_inbounds(builder, shared, 0, len(values)))
    builder.ret_void()
    return function
