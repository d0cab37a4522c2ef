"""Pieces of the code that operations on rows are compiled to; see `row_ops` and `row_sums`.

`builder`, `context`, types and values are llvmlite's and numba's. Rows are float32, their columns side by side.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature

from adaptive.kernels.aligned import LINE

BLOCKS = (4 * LINE, LINE, 4, 1)  # columns that are worked on together, as long as so many are left
FLOAT, INT64 = ir.FloatType(), ir.IntType(64)


def callable_in_kernels(function: Callable[..., Any], returned: Any = types.void) -> None:
    """Kernels may call `function` with any arguments; `lower_builtin` says what code that is.

    An intrinsic or overload of numba would need a fixed number of arguments.
    """

    class Typed(AbstractTemplate):
        key = function

        def generic(self, arguments: Any, keywords: Any) -> Any:
            return signature(returned, *arguments)

    infer_global(function, types.Function(Typed))


def row_place(context: Any, builder: Any, kind: Any, array: Any, index_kind: Any, index: Any) -> Any:
    """Pointer to the first column of a row."""
    made = context.make_array(kind)(context, builder, array)
    stride = cgutils.unpack_tuple(builder, made.strides, kind.ndim)[0]
    index = context.cast(builder, index, index_kind, types.int64)
    at = builder.gep(builder.bitcast(made.data, ir.IntType(8).as_pointer()), [builder.mul(index, stride)])
    return builder.bitcast(at, FLOAT.as_pointer())


def row_width(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """Number of columns."""
    made = context.make_array(kind)(context, builder, array)
    return cgutils.unpack_tuple(builder, made.shape, kind.ndim)[1]


def in_blocks(builder: Any, width: Any, block: Callable[[Any, int], None]) -> None:
    """Call `block(column, lanes)` for blocks that cover [0, width)."""
    start = ir.Constant(INT64, 0)
    for lanes in BLOCKS:
        stop = builder.and_(width, ir.Constant(INT64, -lanes))
        with cgutils.for_range_slice(builder, start, stop, ir.Constant(INT64, lanes), intp=INT64) as (column, _):
            block(column, lanes)
        start = stop


def load(builder: Any, place: Any, column: Any, lanes: int) -> Any:
    return builder.load(_block(builder, place, column, lanes), align=4)


def store(builder: Any, value: Any, place: Any, column: Any, lanes: int) -> None:
    builder.store(value, _block(builder, place, column, lanes), align=4)


def store_past_caches(builder: Any, value: Any, place: Any, column: Any, lanes: int) -> None:
    """The same to memory; blocks of whole cache lines must start one."""
    if lanes >= LINE:
        stored = builder.store(value, _block(builder, place, column, lanes), align=4 * LINE)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
    else:
        store(builder, value, place, column, lanes)


def prefetch_block(builder: Any, place: Any, column: Any, lanes: int) -> None:
    """Ask for the cache lines in which a block begins and continues."""
    for start in range(0, lanes, LINE):
        prefetch(builder, builder.gep(builder.gep(place, [column]), [ir.Constant(INT64, start)]))


def prefetch(builder: Any, address: Any) -> None:
    """Ask for the cache line of an address, to be read soon, into all caches."""
    byte, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.bitcast(address, byte), i32(0), i32(3), i32(1)])


def _block(builder: Any, place: Any, column: Any, lanes: int) -> Any:
    at = builder.gep(place, [column])
    return builder.bitcast(at, ir.VectorType(FLOAT, lanes).as_pointer()) if lanes > 1 else at


def splat(builder: Any, value: Any, lanes: int) -> Any:
    """All lanes equal to a scalar."""
    if lanes == 1:
        return value
    kind = ir.VectorType(FLOAT, lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(
        one, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    )


def item(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """The value at an index of a one-dimensional array."""
    made = context.make_array(kind)(context, builder, array)
    return builder.load(builder.gep(made.data, [index]))
