"""Sums over rows and within a row, in float32, kept in registers. Rows that are added may be bfloat16.

A loop that adds row after row to an output row loads and stores that row each time. Here a block of columns is summed
over all rows before the next block. The same loop prefetches the rows that come `LOOKUPS_AHEAD` lookups later, of this
sum or a later one: a separate loop would be one more whose end the processor cannot predict.

Each column is added up by itself, in order, and nothing is fused, so results do not depend on the width of the blocks.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import lower_builtin

from adaptive.kernels.jit import callable_in_kernels
from adaptive.kernels.scratch import LINE, LINE_BYTES
from adaptive.kernels.vector.bfloat16 import as_float32
from adaptive.kernels.vector.row_ops import (
    INT64,
    SquareSum,
    in_blocks,
    item,
    load,
    prefetch_block,
    row_place,
    row_width,
    splat,
    squares_of,
    store,
    store_past_caches,
)

CHUNK_LOOKUPS = 64  # of a sum of gradients; a power of two
LOOKUPS_AHEAD = 32  # 16 is up to a third slower in pooling, 48 measures the same


def sum_rows(out: Any, i: Any, rows: Any, indices: Any, flip: Any, start: Any, stop: Any) -> Any:
    """out[i] = rows[indices[start] ^ flip] + ... + rows[indices[stop - 1] ^ flip], in order.

    Returns `square_sum(out, i)`. start < stop. The sum stays in registers. `indices` is one-dimensional; flip is 0, or
    -1 where indices are ~row.
    """
    out[i] = as_float32(rows[int(indices[start]) ^ flip])
    for p in range(start + 1, stop):
        out[i] += as_float32(rows[int(indices[p]) ^ flip])
    return square_sum(out, i)


def sum_scaled_rows(out: Any, i: Any, rows: Any, indices: Any, flip: Any, start: Any, stop: Any, scales: Any) -> Any:
    """`sum_rows` with the terms rows[indices[p] ^ flip] * scales[p]."""
    out[i] = scales[start] * as_float32(rows[int(indices[start]) ^ flip])
    for p in range(start + 1, stop):
        out[i] += scales[p] * as_float32(rows[int(indices[p]) ^ flip])
    return square_sum(out, i)


def add_rows(out: Any, i: Any, rows: Any, indices: Any, flip: Any, start: Any, stop: Any) -> None:
    """out[i] += what `sum_rows` sums, which is summed first."""
    earlier = out[i].copy()
    sum_rows(out, i, rows, indices, flip, start, stop)
    out[i] = earlier + out[i]


def add_scaled_rows(out: Any, i: Any, rows: Any, indices: Any, flip: Any, start: Any, stop: Any, scales: Any) -> None:
    """out[i] += what `sum_scaled_rows` sums, which is summed first."""
    earlier = out[i].copy()
    sum_scaled_rows(out, i, rows, indices, flip, start, stop, scales)
    out[i] = earlier + out[i]


def sum_found_rows(out: Any, i: Any, rows: Any, places: Any, indices: Any, flip: Any, start: Any, stop: Any) -> None:
    """`sum_rows` with the indices places[indices[start]] ... places[indices[stop - 1]]."""
    sum_rows(out, i, rows, [int(places[int(indices[p])]) for p in range(start, stop)], flip, 0, stop - start)


def sum_found_rows_past_caches(
    out: Any, i: Any, rows: Any, places: Any, indices: Any, flip: Any, start: Any, stop: Any
) -> None:
    """`sum_found_rows` that stores past the caches, for outputs larger than these.

    Call it only if `may_pass_caches(out)`, and `finish_stores()` after the last one: other threads may see stores late.
    """
    sum_found_rows(out, i, rows, places, indices, flip, start, stop)


def finish_stores() -> None:
    """Return when all threads can see every store of this thread."""


def may_pass_caches(out: Any) -> Any:
    """True if rows are whole cache lines: storing a part of a line would read it first."""
    return out.shape[1] % LINE == 0 and out.ctypes.data % LINE_BYTES == 0


callable_in_kernels(sum_rows, types.float32)
callable_in_kernels(sum_scaled_rows, types.float32)
for function in (add_rows, add_scaled_rows, sum_found_rows, sum_found_rows_past_caches, finish_stores):
    callable_in_kernels(function)
callable_in_kernels(may_pass_caches, types.boolean)


@lower_builtin(may_pass_caches, types.VarArg(types.Any))
def _lower_may_pass_caches(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    made = context.make_array(typed.args[0])(context, builder, arguments[0])
    columns = builder.urem(row_width(context, builder, typed.args[0], arguments[0]), INT64(LINE))
    start = builder.urem(builder.ptrtoint(made.data, INT64), INT64(LINE_BYTES))
    return builder.icmp_signed("==", builder.or_(columns, start), INT64(0))


@lower_builtin(finish_stores)
def _lower_finish(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    builder.fence("seq_cst")
    return context.get_dummy_value()


def _lower_sum(store_sum: Callable[..., None], *, scaled: bool = False, indirect: bool = False) -> Callable[..., Any]:
    """Return the code generator of a sum of rows; `store_sum` stores a block of it.

    scaled: scales come last. indirect: rows are places[index], and `places` come before the indices. A direct sum that
    is stored returns the sum of its squares.
    """

    def lower(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
        kinds, values = list(typed.args), list(arguments)
        places = (kinds.pop(3), values.pop(3)) if indirect else None
        scales = (kinds.pop(), values.pop()) if scaled else None
        out = row_place(context, builder, kinds[0], values[0], kinds[1], values[1])
        flip, start, stop = (context.cast(builder, values[k], kinds[k], types.int64) for k in (4, 5, 6))
        first_after = builder.add(start, ir.Constant(INT64, 1))

        num_indices = cgutils.unpack_tuple(builder, context.make_array(kinds[3])(context, builder, values[3]).shape, 1)
        last = builder.sub(num_indices[0], ir.Constant(INT64, 1))

        def place(p: Any) -> Any:
            kind, index = kinds[3], item(context, builder, kinds[3], values[3], p)
            if places is not None:
                index = context.cast(builder, index, kind.dtype, types.int64)
                kind, index = places[0], item(context, builder, *places, index)
            index = builder.xor(context.cast(builder, index, kind.dtype, types.int64), flip)
            return row_place(context, builder, kinds[2], values[2], types.int64, index)

        def term(p: Any, column: Any, lanes: int) -> Any:
            ahead = builder.add(p, ir.Constant(INT64, LOOKUPS_AHEAD))
            ahead = builder.select(builder.icmp_signed("<", ahead, last), ahead, last)
            prefetch_block(builder, place(ahead), column, lanes)
            columns = load(builder, place(p), column, lanes)
            if scales is None:
                return columns
            return builder.fmul(splat(builder, item(context, builder, *scales, p), lanes), columns)

        squares = SquareSum(builder) if store_sum is store and not indirect else None

        def block(column: Any, lanes: int) -> None:
            total = cgutils.alloca_once_value(builder, term(start, column, lanes))
            with cgutils.for_range_slice(builder, first_after, stop, ir.Constant(INT64, 1), intp=INT64) as (p, _):
                builder.store(builder.fadd(builder.load(total), term(p, column, lanes)), total)
            value = builder.load(total)
            store_sum(builder, value, out, column, lanes)
            if squares is not None:
                squares.add(value, column, lanes)

        in_blocks(builder, row_width(context, builder, kinds[0], values[0]), block)
        return context.get_dummy_value() if squares is None else squares.total()

    return lower


def _add(builder: Any, value: Any, place: Any, column: Any, lanes: int) -> None:
    store(builder, builder.fadd(load(builder, place, column, lanes), value), place, column, lanes)


lower_builtin(sum_rows, types.VarArg(types.Any))(_lower_sum(store))
lower_builtin(sum_scaled_rows, types.VarArg(types.Any))(_lower_sum(store, scaled=True))
lower_builtin(add_rows, types.VarArg(types.Any))(_lower_sum(_add))
lower_builtin(add_scaled_rows, types.VarArg(types.Any))(_lower_sum(_add, scaled=True))
lower_builtin(sum_found_rows, types.VarArg(types.Any))(_lower_sum(store, indirect=True))
lower_builtin(sum_found_rows_past_caches, types.VarArg(types.Any))(_lower_sum(store_past_caches, indirect=True))


def square_sum(rows: Any, i: Any) -> Any:
    """Return the sum of the squares of rows[i]: see `squares_of`."""
    return squares_of(as_float32(rows[i]))


callable_in_kernels(square_sum, types.float32)


@lower_builtin(square_sum, types.VarArg(types.Any))
def _lower_square_sum(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    place = row_place(context, builder, typed.args[0], arguments[0], typed.args[1], arguments[1])
    squares = SquareSum(builder)

    def block(column: Any, lanes: int) -> None:
        squares.add(load(builder, place, column, lanes), column, lanes)

    in_blocks(builder, row_width(context, builder, typed.args[0], arguments[0]), block)
    return squares.total()
