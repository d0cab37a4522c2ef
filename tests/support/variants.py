"""Every kernel is tested compiled and as plain Python: `choose(kernel)(...)` in a test marked `both`."""

import sys
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numba
import numpy as np
import pytest


def compiled(kernel: Any) -> Callable[..., Any]:
    """Operations on rows are compiled into the kernels that call them; here into one that does nothing else."""
    return kernel if hasattr(kernel, "py_func") else _compiled_call(kernel)  # type: ignore[no-any-return]


@cache
def _compiled_call(operation: Any) -> Callable[..., Any]:
    call = numba.njit(error_model="numpy")(lambda arguments: operation(*arguments))
    return lambda *arguments: call(arguments)


def plain(kernel: Any) -> Callable[..., Any]:
    """The Python function, the kernels that it calls being Python functions too.

    64-bit words wrap around and divisions follow IEEE rules, as they do compiled.
    """
    function = kernel
    if hasattr(kernel, "py_func"):
        function = _plain_functions(kernel.py_func.__module__)[kernel.py_func.__name__]

    def call(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return call


@cache
def _plain_functions(module: str) -> dict[str, Any]:
    """The module's names, each kernel replaced by its Python function, which sees the names of its own module so."""
    names = dict(vars(sys.modules[module]))
    for name, value in vars(sys.modules[module]).items():
        if not hasattr(value, "py_func"):
            continue
        home = value.py_func.__module__
        if home == module:
            names[name] = FunctionType(value.py_func.__code__, names, name)
        else:
            names[name] = _plain_functions(home)[value.py_func.__name__]
    return names


both = pytest.mark.parametrize("choose", [compiled, plain])
