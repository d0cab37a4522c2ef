"""Sums over rows and within a row of float32 arrays, kept in registers.

A loop that adds row after row to an output row loads and stores that row each time. Here a block of columns is summed
over all rows before the next block. The same loop prefetches the rows that come `LOOKUPS_AHEAD` look-ups later, of this
sum or a later one: a loop of its own would be one more whose end the processor cannot predict.

Each column is added up by itself, in order, and nothing is fused, so results do
not depend on the width of the blocks.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import lower_builtin, overload

from adaptive.kernels.scratch import LINE, LINE_BYTES
from adaptive.kernels.vector.row_ops import (
    FLOAT,
    INT64,
    callable_in_kernels,
    in_blocks,
    item,
    load,
    prefetch_block,
    row_place,
    row_width,
    splat,
    store,
    store_past_caches,
)

LOOKUPS_AHEAD = 32  # look-ups; 16 is up to a third slower in pooling, 48 alike


def sum_rows(out: Any, i: Any, rows: Any, indices: Any, flip: Any, start: Any, stop: Any) -> None:
    """out[i] = rows[indices[start] ^ flip] + ... + rows[indices[stop - 1] ^ flip], in this order; start < stop.

    The sum is kept in registers. `indices` is one-dimensional; flip is 0, or -1 where indices are ~row.
    """
    out[i] = rows[int(indices[start]) ^ flip]
    for p in range(start + 1, stop):
        out[i] += rows[int(indices[p]) ^ flip]


def sum_scaled_rows(out: Any, i: Any, rows: Any, indices: Any, flip: Any, start: Any, stop: Any, scales: Any) -> None:
    """The same with rows[indices[p] ^ flip] * scales[p]."""
    out[i] = scales[start] * rows[int(indices[start]) ^ flip]
    for p in range(start + 1, stop):
        out[i] += scales[p] * rows[int(indices[p]) ^ flip]


def sum_found_rows(out: Any, i: Any, rows: Any, places: Any, indices: Any, flip: Any, start: Any, stop: Any) -> None:
    """`sum_rows` with the indices places[indices[start]] ... places[indices[stop - 1]]."""
    sum_rows(out, i, rows, [int(places[int(indices[p])]) for p in range(start, stop)], flip, 0, stop - start)


def sum_found_rows_past_caches(
    out: Any, i: Any, rows: Any, places: Any, indices: Any, flip: Any, start: Any, stop: Any
) -> None:
    """`sum_found_rows` that stores to memory and leaves the caches to what is read: for outputs larger than they are.

    Only where `may_pass_caches(out)`, with `finish_stores()` behind the last one: other threads could see it late.
    """
    sum_found_rows(out, i, rows, places, indices, flip, start, stop)


def finish_stores() -> None:
    """Return when every store of this thread can be seen by all."""


def may_pass_caches(out: Any) -> Any:
    """Rows are whole cache lines: a part of a line would be stored at the price of reading it first."""
    return out.shape[1] % LINE == 0 and out.ctypes.data % LINE_BYTES == 0


@overload(may_pass_caches)
def _may_pass_caches(out: Any) -> Any:
    return may_pass_caches


for function in (sum_rows, sum_scaled_rows, sum_found_rows, sum_found_rows_past_caches, finish_stores):
    callable_in_kernels(function)


@lower_builtin(finish_stores)
def _lower_finish(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    builder.fence("seq_cst")
    return context.get_dummy_value()


def _lower_sum(store_sum: Callable[..., None], *, scaled: bool = False, found: bool = False) -> Callable[..., Any]:
    """The code of a sum of rows; `store_sum` stores a block of it. `scaled`: scales come last; `found`: the rows are
    found through `places`, which come before the indices."""

    def lower(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
        kinds, given = list(typed.args), list(arguments)
        places = (kinds.pop(3), given.pop(3)) if found else None
        scales = (kinds.pop(), given.pop()) if scaled else None
        out = row_place(context, builder, kinds[0], given[0], kinds[1], given[1])
        flip, start, stop = (context.cast(builder, given[k], kinds[k], types.int64) for k in (4, 5, 6))
        first_after = builder.add(start, ir.Constant(INT64, 1))

        num_indices = cgutils.unpack_tuple(builder, context.make_array(kinds[3])(context, builder, given[3]).shape, 1)
        last = builder.sub(num_indices[0], ir.Constant(INT64, 1))

        def place(p: Any) -> Any:
            kind, index = kinds[3], item(context, builder, kinds[3], given[3], p)
            if places is not None:
                index = context.cast(builder, index, kind.dtype, types.int64)
                kind, index = places[0], item(context, builder, *places, index)
            index = builder.xor(context.cast(builder, index, kind.dtype, types.int64), flip)
            return row_place(context, builder, kinds[2], given[2], types.int64, index)

        def term(p: Any, column: Any, lanes: int) -> Any:
            coming = builder.add(p, ir.Constant(INT64, LOOKUPS_AHEAD))
            coming = builder.select(builder.icmp_signed("<", coming, last), coming, last)
            prefetch_block(builder, place(coming), column, lanes)
            values = load(builder, place(p), column, lanes)
            if scales is None:
                return values
            return builder.fmul(splat(builder, item(context, builder, *scales, p), lanes), values)

        def block(column: Any, lanes: int) -> None:
            total = cgutils.alloca_once_value(builder, term(start, column, lanes))
            with cgutils.for_range_slice(builder, first_after, stop, ir.Constant(INT64, 1), intp=INT64) as (p, _):
                builder.store(builder.fadd(builder.load(total), term(p, column, lanes)), total)
            store_sum(builder, builder.load(total), out, column, lanes)

        in_blocks(builder, row_width(context, builder, kinds[0], given[0]), block)
        return context.get_dummy_value()

    return lower


lower_builtin(sum_rows, types.VarArg(types.Any))(_lower_sum(store))
lower_builtin(sum_scaled_rows, types.VarArg(types.Any))(_lower_sum(store, scaled=True))
lower_builtin(sum_found_rows, types.VarArg(types.Any))(_lower_sum(store, found=True))
lower_builtin(sum_found_rows_past_caches, types.VarArg(types.Any))(_lower_sum(store_past_caches, found=True))


def square_sum(rows: Any, i: Any) -> Any:
    """Sum of the squares of rows[i], in four parts (columns d with equal d % 4), added as (0 + 1) + (2 + 3)."""
    width = rows.shape[1]
    parts = np.zeros(4, np.float32)
    for start in range(0, width, 4):
        block = rows[i, start : start + 4]
        parts[: len(block)] += block * block
    return (parts[0] + parts[1]) + (parts[2] + parts[3])


callable_in_kernels(square_sum, types.float32)


@lower_builtin(square_sum, types.VarArg(types.Any))
def _lower_square_sum(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    place = row_place(context, builder, typed.args[0], arguments[0], typed.args[1], arguments[1])
    width = row_width(context, builder, typed.args[0], arguments[0])
    whole = builder.and_(width, ir.Constant(INT64, -4))
    kind = ir.VectorType(FLOAT, 4)
    parts = cgutils.alloca_once_value(builder, ir.Constant(kind, [0.0] * 4))
    zero, i32 = ir.Constant(INT64, 0), ir.IntType(32)
    with cgutils.for_range_slice(builder, zero, whole, ir.Constant(INT64, 4), intp=INT64) as (column, _):
        values = load(builder, place, column, 4)
        builder.store(builder.fadd(builder.load(parts), builder.fmul(values, values)), parts)
    with cgutils.for_range_slice(builder, whole, width, ir.Constant(INT64, 1), intp=INT64) as (column, _):
        value = load(builder, place, column, 1)
        lane = builder.trunc(builder.sub(column, whole), i32)
        before = builder.load(parts)
        added = builder.fadd(builder.extract_element(before, lane), builder.fmul(value, value))
        builder.store(builder.insert_element(before, added, lane), parts)
    found = builder.load(parts)
    one, two, three, four = (builder.extract_element(found, ir.Constant(i32, k)) for k in range(4))
    return builder.fadd(builder.fadd(one, two), builder.fadd(three, four))
