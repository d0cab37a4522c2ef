"""Vectors of 16 float32 as values of a compiled kernel: loops that must not depend on what the compiler finds.

All array arguments are contiguous 1-D float32 and positions count items; nothing is checked. `add_product` rounds
once (a fused multiply-add, IEEE 754), so results are those of any machine. In plain Python a vector is an array (16,).
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, overload, register_model
from numpy.typing import NDArray

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
    """16 rows of 16 items, `stride` apart, become 16 columns of `out`, whose rows are `out_stride` apart."""
    for i in range(SIMD_WIDTH):
        for j in range(SIMD_WIDTH):
            out[to + j * out_stride + i] = items[at + i * stride + j]


# --- their code ----------------------------------------------------------------------------------------------------


def _pointer(context: Any, builder: Any, kind: Any, items: Any, at: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, items).data, [at])


def _read(builder: Any, pointer: Any) -> Any:
    return builder.load(builder.bitcast(pointer, _VECTOR.as_pointer()), align=4)


def _write(builder: Any, pointer: Any, value: Any) -> None:
    builder.store(value, builder.bitcast(pointer, _VECTOR.as_pointer()), align=4)


def _chosen(builder: Any, first: Any, second: Any, lanes: list[int]) -> Any:
    """Lane i is lane `lanes[i]` of both vectors one after the other."""
    mask = ir.Constant(ir.VectorType(ir.IntType(32), SIMD_WIDTH), lanes)
    return builder.shuffle_vector(first, second, mask)


def _generate_load(typingctx: Any, items: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _read(builder, _pointer(context, builder, signature.args[0], *args))

    return _vector(items, types.intp), generate


def _generate_store(typingctx: Any, items: Any, at: Any, values: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _write(builder, _pointer(context, builder, signature.args[0], *args[:2]), args[2])
        return context.get_dummy_value()

    return types.void(items, types.intp, _vector), generate


def _generate_zeros(typingctx: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(_VECTOR, [0.0] * SIMD_WIDTH)

    return _vector(), generate


def _generate_add_product(typingctx: Any, total: Any, items: Any, at: Any, values: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        nothing = ir.Constant(_VECTOR, ir.Undefined)
        factor = builder.load(_pointer(context, builder, signature.args[1], args[1], args[2]))
        factors = builder.insert_element(nothing, factor, ir.Constant(ir.IntType(32), 0))
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), "llvm.fma.v16f32"
        )
        return builder.call(function, [_chosen(builder, factors, nothing, [0] * SIMD_WIDTH), args[3], args[0]])

    return _vector(_vector, items, types.intp, _vector), generate


def _generate_transpose(typingctx: Any, items: Any, at: Any, stride: Any, out: Any, to: Any, out_stride: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = _pointer(context, builder, signature.args[0], *args[:2])
        target = _pointer(context, builder, signature.args[3], *args[3:5])
        numbers = [ir.Constant(args[2].type, i) for i in range(SIMD_WIDTH)]
        rows = [_read(builder, builder.gep(source, [builder.mul(i, args[2])])) for i in numbers]
        for step in (1, 2, 4, 8):  # swap the blocks beside the diagonal, of 1 item, then of 2 x 2, ...
            for i in (i for i in range(SIMD_WIDTH) if not i & step):
                first, second = rows[i], rows[i + step]
                rows[i] = _chosen(
                    builder, first, second, [j + (SIMD_WIDTH - step if j & step else 0) for j in range(SIMD_WIDTH)]
                )
                rows[i + step] = _chosen(
                    builder, first, second, [j + (SIMD_WIDTH if j & step else step) for j in range(SIMD_WIDTH)]
                )
        for i, row in zip(numbers, rows, strict=True):
            _write(builder, builder.gep(target, [builder.mul(i, args[5])]), row)
        return context.get_dummy_value()

    return types.void(items, types.intp, types.intp, out, types.intp, types.intp), generate


_load: Any = intrinsic(_generate_load)
_store: Any = intrinsic(_generate_store)
_zeros: Any = intrinsic(_generate_zeros)
_add_product: Any = intrinsic(_generate_add_product)
_transpose: Any = intrinsic(_generate_transpose)


@overload(load, inline="always")
def _overload_load(items: Any, at: Any) -> Any:
    def compiled(items: Any, at: Any) -> Any:
        return _load(items, at)

    return compiled


@overload(store, inline="always")
def _overload_store(items: Any, at: Any, values: Any) -> Any:
    def compiled(items: Any, at: Any, values: Any) -> Any:
        return _store(items, at, values)

    return compiled


@overload(zeros, inline="always")
def _overload_zeros() -> Any:
    def compiled() -> Any:
        return _zeros()

    return compiled


@overload(add_product, inline="always")
def _overload_add_product(total: Any, items: Any, at: Any, values: Any) -> Any:
    def compiled(total: Any, items: Any, at: Any, values: Any) -> Any:
        return _add_product(total, items, at, values)

    return compiled


@overload(transpose, inline="always")
def _overload_transpose(items: Any, at: Any, stride: Any, out: Any, to: Any, out_stride: Any) -> Any:
    def compiled(items: Any, at: Any, stride: Any, out: Any, to: Any, out_stride: Any) -> Any:
        return _transpose(items, at, stride, out, to, out_stride)

    return compiled
