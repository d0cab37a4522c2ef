"""Element-wise operations on whole rows of float32 or bfloat16 arrays, as vector instructions.

numba leaves loops to LLVM, which vectorizes them for long rows and leaves a row of 16 values to the scalar remainder.
Here an operation is written once, in terms of its rows, and compiled for blocks of 16, 4 and 1 columns.

    @row_op
    def add(out, row):
        return out + row

    add(a, i, b, j)        # in a kernel: a[i] = a[i] + b[j]

A `step_op` has one more result, the second: how much the first row changes. It is stored nowhere, and the call returns
the sum of its squares.

Rows come as pairs of an array and an index, scalars (float32) after them; the values returned go to the first rows, in
order. In plain Python the same call works on numpy rows. Each column is computed by itself and nothing is fused or
reordered, so results do not depend on the width of the blocks. The columns of a row must be contiguous.

Arrays of uint16 hold bfloat16 (`vector.bfloat16`): computed in float32, and rounded when stored. A call may end in one
more argument, the key of that rounding (uint64); without it, or with 0, values are rounded to nearest. Each result
of an operation is rounded with its own stream of the key. A value that is stored as it was loaded keeps its bits.
"""

import inspect
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import lower_builtin

from adaptive.kernels.jit import callable_in_kernels
from adaptive.kernels.scratch import LINE, LINE_BYTES
from adaptive.kernels.vector.bfloat16 import (
    BFLOAT16,
    I16,
    I64,
    narrow,
    narrow_lanes,
    stream_key,
    widen,
    widen_lanes,
)

AHEAD: Final = 16  # rows fetched into the cache ahead of use, in loops that do not sum; 8 to 48 measure the same


def prefetch_row(rows: Any, row: Any) -> None:
    """Prefetch `rows[row]` of a C-contiguous 2-D array."""


def prefetch_item(items: Any, item: Any) -> None:
    """Prefetch `items[item]` of a 1-D array, strided or not."""


CHANGE: Final = 1  # place of the change among the results of a step
BLOCKS = (4 * LINE, LINE, 4, 1)  # columns that are processed together, as long as so many are left
FLOAT, INT64 = ir.FloatType(), ir.IntType(64)


def row_place(context: Any, builder: Any, kind: Any, array: Any, index_kind: Any, index: Any) -> Any:
    """Return a pointer to the first column of a row."""
    at = _address(context, builder, (kind, index_kind), (array, index))
    return builder.bitcast(at, (I16 if kind.dtype == types.uint16 else FLOAT).as_pointer())


def _address(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
    """Return a pointer to the bytes of `array[index]`, an item or a row."""
    made = context.make_array(kinds[0])(context, builder, arguments[0])
    stride = cgutils.unpack_tuple(builder, made.strides, kinds[0].ndim)[0]
    index = context.cast(builder, arguments[1], kinds[1], types.int64)
    return builder.gep(builder.bitcast(made.data, ir.IntType(8).as_pointer()), [builder.mul(index, stride)])


def row_width(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """Return the number of columns."""
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
    """Return a block as float32."""
    bits = _load_stored(builder, place, column, lanes)
    return widen_lanes(builder, bits, lanes) if is_bfloat16(place) else bits


def _load_stored(builder: Any, place: Any, column: Any, lanes: int) -> Any:
    return builder.load(_block(builder, place, column, lanes), align=2 if is_bfloat16(place) else 4)


def store(builder: Any, value: Any, place: Any, column: Any, lanes: int) -> None:
    """Store a block, of the type at `place`."""
    builder.store(value, _block(builder, place, column, lanes), align=2 if is_bfloat16(place) else 4)


def is_bfloat16(place: Any) -> bool:
    """True for pointers to bfloat16."""
    return bool(place.type.pointee == I16)


def store_past_caches(builder: Any, value: Any, place: Any, column: Any, lanes: int) -> None:
    """Store to memory, past the caches; blocks of whole cache lines must start one."""
    if lanes >= LINE:
        stored = builder.store(value, _block(builder, place, column, lanes), align=4 * LINE)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
    else:
        store(builder, value, place, column, lanes)


def prefetch_block(builder: Any, place: Any, column: Any, lanes: int) -> None:
    """Prefetch the cache lines of a block."""
    for start in range(0, lanes, LINE_BYTES // (2 if is_bfloat16(place) else 4)):
        prefetch(builder, builder.gep(builder.gep(place, [column]), [ir.Constant(INT64, start)]))


def prefetch(builder: Any, address: Any) -> None:
    """Prefetch the cache line of an address into all caches."""
    byte, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.bitcast(address, byte), i32(0), i32(3), i32(1)])


for function in (prefetch_row, prefetch_item):
    callable_in_kernels(function)


@lower_builtin(prefetch_item, types.VarArg(types.Any))
def _lower_prefetch_item(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    prefetch(builder, _address(context, builder, typed.args, arguments))
    return context.get_dummy_value()


@lower_builtin(prefetch_row, types.VarArg(types.Any))
def _lower_prefetch_row(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    row, item_bytes = _address(context, builder, typed.args, arguments), typed.args[0].dtype.bitwidth // 8
    size = builder.mul(row_width(context, builder, typed.args[0], arguments[0]), INT64(item_bytes))
    with cgutils.for_range_slice(builder, INT64(0), size, INT64(LINE_BYTES), intp=INT64) as (offset, _):
        prefetch(builder, builder.gep(row, [offset]))
    bits = (builder.sub(size, INT64(1)), INT64(LINE_BYTES - 1))
    no_power, no_multiple = (builder.icmp_signed("!=", builder.and_(size, bit), INT64(0)) for bit in bits)
    with builder.if_then(builder.and_(no_power, no_multiple)):  # it may end in one more line
        prefetch(builder, builder.gep(row, [builder.sub(size, INT64(item_bytes))]))
    return context.get_dummy_value()


def _block(builder: Any, place: Any, column: Any, lanes: int) -> Any:
    at = builder.gep(place, [column])
    return builder.bitcast(at, ir.VectorType(place.type.pointee, lanes).as_pointer()) if lanes > 1 else at


def splat(builder: Any, value: Any, lanes: int) -> Any:
    """Return a vector with all lanes equal to a scalar."""
    if lanes == 1:
        return value
    kind = ir.VectorType(value.type, lanes)
    nothing = ir.Constant(kind, ir.Undefined)
    first_lane = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    return builder.shuffle_vector(first_lane, nothing, mask)


def item(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Return the value at an index of a one-dimensional array."""
    made = context.make_array(kind)(context, builder, array)
    return builder.load(builder.gep(made.data, [index]))


def squares_of(values: Any) -> Any:
    """Return the sum of the squares of values (D,), in four parts added as (0 + 1) + (2 + 3).

    A part has the columns d with equal d % 4: fast enough, and the same on every machine.
    """
    parts = np.zeros(4, np.float32)
    for start in range(0, len(values), 4):
        block = values[start : start + 4]
        parts[: len(block)] += block * block
    return (parts[0] + parts[1]) + (parts[2] + parts[3])


class SquareSum:
    """`squares_of` a row while blocks of its columns are at hand, in order; the parts stay in a register."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self._parts = cgutils.alloca_once_value(builder, ir.Constant(ir.VectorType(FLOAT, 4), [0.0] * 4))

    def add(self, value: Any, column: Any, lanes: int) -> None:
        """Add the columns [column, column + lanes)."""
        builder, i32 = self._builder, ir.IntType(32)
        parts, squares = builder.load(self._parts), builder.fmul(value, value)
        if lanes == 1:
            part = builder.trunc(builder.and_(column, ir.Constant(INT64, 3)), i32)
            parts = builder.insert_element(parts, builder.fadd(builder.extract_element(parts, part), squares), part)
        else:
            for start in range(0, lanes, 4):
                mask = ir.Constant(ir.VectorType(i32, 4), list(range(start, start + 4)))
                four = builder.shuffle_vector(squares, ir.Constant(squares.type, ir.Undefined), mask)
                parts = builder.fadd(parts, four)
        builder.store(parts, self._parts)

    def total(self) -> Any:
        """Return the sum."""
        builder, parts = self._builder, self._builder.load(self._parts)
        first, second, third, fourth = (
            builder.extract_element(parts, ir.Constant(ir.IntType(32), k)) for k in range(4)
        )
        return builder.fadd(builder.fadd(first, second), builder.fadd(third, fourth))


class Lanes:
    """Columns of a row while an operation is compiled; plain Python has a numpy row instead.

    `bits`: bfloat16 columns as they were loaded, None for float32 and results.
    """

    def __init__(self, builder: Any, value: Any, bits: Any = None) -> None:
        self.builder, self.value, self.bits = builder, value, bits

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
    """Return the correctly rounded square root."""
    if not isinstance(x, Lanes):
        return np.sqrt(x)
    kind = x.value.type
    name = f"llvm.sqrt.v{kind.count}f32" if isinstance(kind, ir.VectorType) else "llvm.sqrt.f32"
    root = cgutils.get_or_insert_function(x.builder.module, ir.FunctionType(kind, [kind]), name)
    return Lanes(x.builder, x.builder.call(root, [x.value]))


def where_less(a: Any, b: Any, x: Any, y: Any) -> Any:
    """Return x where a < b, else y, also where a or b is NaN."""
    if not isinstance(a, Lanes):
        return np.where(a < b, x, y)
    builder = a.builder
    return Lanes(builder, builder.select(builder.fcmp_ordered("<", a.value, b.value), x.value, y.value))


def row_op(function: Callable[..., Any], *, is_step: bool = False) -> Callable[..., Any]:
    """Make an operation on rows; parameters of `function` annotated `Scalar` are scalars. is_step: see `step_op`."""
    names = inspect.signature(function).parameters
    num_rows = sum(parameter.annotation is not Scalar for parameter in names.values())
    last = num_rows + len(names)  # place of the key, as rows take two arguments

    def split(results: Any) -> tuple[list[tuple[int, Any]], Any]:
        """Return the results that are stored, with their places, and the one whose squares are summed."""
        parts = dict(enumerate(results if isinstance(results, tuple) else (results,)))
        change = parts.pop(CHANGE) if is_step else None
        return list(parts.items()), change

    def plain(*arguments: Any) -> Any:
        rows = [(arguments[2 * k], arguments[2 * k + 1]) for k in range(num_rows)]
        width = rows[0][0].shape[1]
        values = [widen(array[i, :width]) if array.dtype == BFLOAT16 else array[i, :width] for array, i in rows]
        results, change = split(function(*values, *arguments[2 * num_rows : last]))
        squares = None if change is None else squares_of(change.astype(np.float32))
        for (array, i), (part, value) in zip(rows, results, strict=False):
            keys = (stream_key(key, part) for key in arguments[last:])
            array[i, :width] = narrow(value, *keys) if array.dtype == BFLOAT16 else value
        return squares

    callable_in_kernels(plain, types.float32 if is_step else types.void)

    @lower_builtin(plain, types.VarArg(types.Any))
    def lowered(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
        kinds = typed.args
        places = [row_place(context, builder, kinds[2 * k], arguments[2 * k], kinds[2 * k + 1], arguments[2 * k + 1])
                  for k in range(num_rows)]  # fmt: skip
        scalars = [context.cast(builder, arguments[k], kinds[k], types.float32) for k in range(2 * num_rows, last)]
        key = context.cast(builder, arguments[last], kinds[last], types.uint64) if len(kinds) > last else None
        keys = [
            builder.mul(key, ir.Constant(I64, stream_key(1, part))) if key else None for part in range(num_rows + 1)
        ]
        width = row_width(context, builder, kinds[0], arguments[0])
        squares = SquareSum(builder) if is_step else None

        def loaded(place: Any, column: Any, lanes: int) -> Lanes:
            value = _load_stored(builder, place, column, lanes)
            if not is_bfloat16(place):
                return Lanes(builder, value)
            return Lanes(builder, widen_lanes(builder, value, lanes), value)

        def stored(result: Lanes, place: Any, key: Any, column: Any, lanes: int) -> Any:
            if not is_bfloat16(place):
                return result.value
            if result.bits is not None:
                return result.bits
            return narrow_lanes(builder, result.value, key, column, lanes, splat)

        def block(column: Any, lanes: int) -> None:
            rows = [loaded(place, column, lanes) for place in places]
            numbers = (Lanes(builder, splat(builder, value, lanes)) for value in scalars)
            results, change = split(function(*rows, *numbers))
            if squares is not None:
                squares.add(change.value, column, lanes)
            for place, (part, value) in zip(places, results, strict=False):
                store(builder, stored(value, place, keys[part], column, lanes), place, column, lanes)

        in_blocks(builder, width, block)
        return context.get_dummy_value() if squares is None else squares.total()

    plain.__doc__ = function.__doc__
    return plain


def step_op(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `row_op` whose second result is the change of a row: the call returns the sum of its squares."""
    return row_op(function, is_step=True)


def store_number(rows: Any, i: Any, d: Any, value: Any) -> None:
    """rows[i, d] = value, rounded to nearest in bfloat16."""
    rows[i, d] = narrow(np.array([value], np.float32))[0] if rows.dtype == BFLOAT16 else value


callable_in_kernels(store_number)


@lower_builtin(store_number, types.VarArg(types.Any))
def _lower_store_number(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    kinds = typed.args
    place = row_place(context, builder, kinds[0], arguments[0], kinds[1], arguments[1])
    column = context.cast(builder, arguments[2], kinds[2], types.int64)
    value = context.cast(builder, arguments[3], kinds[3], types.float32)
    if is_bfloat16(place):
        value = narrow_lanes(builder, value, None, column, 1, splat)
    store(builder, value, place, column, 1)
    return context.get_dummy_value()


class Scalar:
    """Annotation of a parameter of a row operation."""
