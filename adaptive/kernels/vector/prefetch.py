"""`prefetch_row`: ask the processor to bring a row into its cache before a kernel needs it.

In plain Python it does nothing; compiled, it is one prefetch instruction per 64 bytes of the row. Random rows of
tables larger than the caches are read 2 to 3 times faster with it.
"""

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from adaptive.kernels.aligned import LINE_BYTES
from adaptive.kernels.vector.row_code import prefetch

AHEAD: Final = 16  # rows fetched into the cache ahead of use, in loops that do not sum; 8 to 48 measure alike


def prefetch_row(rows: Any, row: Any) -> None:
    """Prefetch `rows[row]` of a C-contiguous 2-D array."""


def prefetch_item(items: Any, item: Any) -> None:
    """Prefetch `items[item]` of a 1-D array, strided or not."""


def _generate_prefetch(typingctx: Any, rows: Any, row: Any, offset: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        strides = cgutils.unpack_tuple(builder, array.strides, signature.args[0].ndim)
        row_at = builder.mul(builder.sext(args[1], ir.IntType(64)) if args[1].type.width < 64 else args[1], strides[0])
        base = builder.bitcast(array.data, ir.IntType(8).as_pointer())
        address = builder.gep(base, [builder.add(row_at, args[2])])
        prefetch(builder, address)
        return context.get_dummy_value()

    return types.void(rows, row, types.int64), generate


_prefetch: Any = intrinsic(_generate_prefetch)


@overload(prefetch_row)
def _prefetch_row(rows: Any, row: Any) -> Any:
    item = rows.dtype.bitwidth // 8

    def compiled(rows: Any, row: Any) -> None:
        size = rows.shape[1] * item
        for offset in range(0, size, LINE_BYTES):
            _prefetch(rows, row, offset)
        if size > 0 and size % LINE_BYTES != 0 and LINE_BYTES % size != 0:  # its end may lie in one line more
            _prefetch(rows, row, size - item)

    return compiled


@overload(prefetch_item)
def _prefetch_item(items: Any, item: Any) -> Any:
    def compiled(items: Any, item: Any) -> None:
        _prefetch(items, item, 0)

    return compiled
