"""Element-wise operations on whole rows of float32 arrays, as vector instructions.

numba leaves short loops to LLVM, which writes them for long rows: a row of 16 values falls to the scalar remainder.
Here an operation is written once, in terms of its rows, and compiled for blocks of 16, 4 and 1 columns.

    @row_op
    def add(out, row):
        return out + row

    add(a, i, b, j)        # in a kernel: a[i] = a[i] + b[j]

Rows come as pairs of an array and an index, scalars (float32) after them; the values returned go to the first rows, in
order. In plain Python the same call works on numpy rows. Each column is computed by itself and nothing is fused or
reordered, so results do not depend on the width of the blocks. The columns of a row must lie side by side.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import lower_builtin

from adaptive.kernels.vector.row_code import callable_in_kernels, in_blocks, load, row_place, row_width, splat, store


class Lanes:
    """Some columns of a row while an operation is compiled; in plain Python a numpy row stands in its place."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def _with(self, instruction: str, other: "Lanes") -> "Lanes":
        return Lanes(self.builder, getattr(self.builder, instruction)(self.value, other.value))

    def __add__(self, other: "Lanes") -> "Lanes":
        return self._with("fadd", other)

    def __sub__(self, other: "Lanes") -> "Lanes":
        return self._with("fsub", other)

    def __mul__(self, other: "Lanes") -> "Lanes":
        return self._with("fmul", other)

    def __truediv__(self, other: "Lanes") -> "Lanes":
        return self._with("fdiv", other)


def square_root(x: Any) -> Any:
    """Correctly rounded."""
    if not isinstance(x, Lanes):
        return np.sqrt(x)
    kind = x.value.type
    name = f"llvm.sqrt.v{kind.count}f32" if isinstance(kind, ir.VectorType) else "llvm.sqrt.f32"
    root = cgutils.get_or_insert_function(x.builder.module, ir.FunctionType(kind, [kind]), name)
    return Lanes(x.builder, x.builder.call(root, [x.value]))


def row_op(function: Callable[..., Any]) -> Callable[..., None]:
    """Makes an operation on rows of `function`, whose parameters annotated `Scalar` are scalars."""
    names = inspect.signature(function).parameters
    num_rows = sum(parameter.annotation is not Scalar for parameter in names.values())

    def plain(*arguments: Any) -> None:
        rows = [(arguments[2 * k], arguments[2 * k + 1]) for k in range(num_rows)]
        width = rows[0][0].shape[1]
        found = function(*(array[i, :width] for array, i in rows), *arguments[2 * num_rows :])
        for (array, i), value in zip(rows, _tuple(found), strict=False):
            array[i, :width] = value

    callable_in_kernels(plain)

    @lower_builtin(plain, types.VarArg(types.Any))
    def lowered(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
        kinds = typed.args
        places = [row_place(context, builder, kinds[2 * k], arguments[2 * k], kinds[2 * k + 1], arguments[2 * k + 1])
                  for k in range(num_rows)]  # fmt: skip
        scalars = [context.cast(builder, value, kind, types.float32)
                   for value, kind in zip(arguments[2 * num_rows :], kinds[2 * num_rows :], strict=True)]  # fmt: skip
        width = row_width(context, builder, kinds[0], arguments[0])

        def block(column: Any, lanes: int) -> None:
            rows = [Lanes(builder, load(builder, place, column, lanes)) for place in places]
            found = function(*rows, *(Lanes(builder, splat(builder, value, lanes)) for value in scalars))
            for place, value in zip(places, _tuple(found), strict=False):
                store(builder, value.value, place, column, lanes)

        in_blocks(builder, width, block)
        return context.get_dummy_value()

    plain.__doc__ = function.__doc__
    return plain


class Scalar:
    """Annotation of a parameter of a row operation."""


def _tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)
