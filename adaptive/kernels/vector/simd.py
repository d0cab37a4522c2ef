"""Vectors of 16 float32 as values of a compiled kernel.

For loops whose speed must not depend on what the compiler recognizes. All array arguments are contiguous 1-D float32
and positions count items; nothing is checked. `add_product` rounds once (a fused multiply-add, IEEE 754), so results
are the same on every machine. In plain Python a vector is an array (16,).
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import lower_builtin, register_model
from numpy.typing import NDArray

from adaptive.kernels.jit import callable_in_kernels

SIMD_WIDTH = 16
Items = NDArray[np.float32]

_VECTOR = ir.VectorType(ir.FloatType(), SIMD_WIDTH)


class _VectorType(types.Type):
    """Numba's type of such a vector."""

    def __init__(self) -> None:
        super().__init__("float32x16")


_vector = _VectorType()


@register_model(_VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


# --- what kernels call ---------------------------------------------------------------------------------------------


def load(items: Items, at: int) -> Items:
    """`items[at : at + 16]`."""
    return items[at : at + SIMD_WIDTH].copy()


def store(items: Items, at: int, values: Items) -> None:
    """`items[at : at + 16] = values`."""
    items[at : at + SIMD_WIDTH] = values


def zeros() -> Items:
    """16 zeros."""
    return np.zeros(SIMD_WIDTH, np.float32)


def add_product(total: Items, items: Items, at: int, values: Items) -> Items:
    """`total + items[at] * values`, rounded once."""
    return (total + np.float64(items[at]) * values).astype(np.float32)


def transpose(items: Items, at: int, stride: int, out: Items, to: int, out_stride: int) -> None:
    """Write 16 rows of 16 items, `stride` apart, as columns of `out`, `out_stride` apart."""
    for i in range(SIMD_WIDTH):
        for j in range(SIMD_WIDTH):
            out[to + j * out_stride + i] = items[at + i * stride + j]


# --- compiled code -------------------------------------------------------------------------------------------------


def _pointer(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
    """Pointer to the item at arguments[1] of the array arguments[0]; `kinds` are their types."""
    at = context.cast(builder, arguments[1], kinds[1], types.intp)
    return builder.gep(context.make_array(kinds[0])(context, builder, arguments[0]).data, [at])


def _read(builder: Any, pointer: Any) -> Any:
    return builder.load(builder.bitcast(pointer, _VECTOR.as_pointer()), align=4)


def _write(builder: Any, pointer: Any, value: Any) -> None:
    builder.store(value, builder.bitcast(pointer, _VECTOR.as_pointer()), align=4)


def _shuffle(builder: Any, first: Any, second: Any, lanes: list[int]) -> Any:
    """Lane i of the result is lane `lanes[i]` of both vectors one after the other."""
    mask = ir.Constant(ir.VectorType(ir.IntType(32), SIMD_WIDTH), lanes)
    return builder.shuffle_vector(first, second, mask)


for function, returned in (
    (load, _vector),
    (store, types.void),
    (zeros, _vector),
    (add_product, _vector),
    (transpose, types.void),
):
    callable_in_kernels(function, returned)


@lower_builtin(load, types.VarArg(types.Any))
def _lower_load(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    return _read(builder, _pointer(context, builder, typed.args, arguments))


@lower_builtin(store, types.VarArg(types.Any))
def _lower_store(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    _write(builder, _pointer(context, builder, typed.args, arguments), arguments[2])
    return context.get_dummy_value()


@lower_builtin(zeros)
def _lower_zeros(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    return ir.Constant(_VECTOR, [0.0] * SIMD_WIDTH)


@lower_builtin(add_product, types.VarArg(types.Any))
def _lower_add_product(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    factor = builder.load(_pointer(context, builder, typed.args[1:], arguments[1:]))
    factors = builder.insert_element(nothing, factor, ir.Constant(ir.IntType(32), 0))
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.v16f32")
    return builder.call(function, [_shuffle(builder, factors, nothing, [0] * SIMD_WIDTH), arguments[3], arguments[0]])


@lower_builtin(transpose, types.VarArg(types.Any))
def _lower_transpose(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    kinds = typed.args
    source = _pointer(context, builder, kinds, arguments)
    target = _pointer(context, builder, kinds[3:], arguments[3:])
    stride, out_stride = (context.cast(builder, arguments[k], kinds[k], types.intp) for k in (2, 5))
    numbers = [ir.Constant(stride.type, i) for i in range(SIMD_WIDTH)]
    rows = [_read(builder, builder.gep(source, [builder.mul(i, stride)])) for i in numbers]
    for step in (1, 2, 4, 8):  # swap the blocks next to the diagonal, of 1 item, then of 2 x 2, ...
        low = [j + (SIMD_WIDTH - step if j & step else 0) for j in range(SIMD_WIDTH)]
        high = [j + (SIMD_WIDTH if j & step else step) for j in range(SIMD_WIDTH)]
        for i in (i for i in range(SIMD_WIDTH) if not i & step):
            first, second = rows[i], rows[i + step]
            rows[i] = _shuffle(builder, first, second, low)
            rows[i + step] = _shuffle(builder, first, second, high)
    for i, row in zip(numbers, rows, strict=True):
        _write(builder, builder.gep(target, [builder.mul(i, out_stride)]), row)
    return context.get_dummy_value()
