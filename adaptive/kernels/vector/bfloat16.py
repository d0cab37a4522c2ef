"""bfloat16 rows: stored in 16 bits, computed in float32.

A bfloat16 is the upper half of a float32, so widening is a shift. numpy has no such type: rows are arrays of uint16.

Rounding adds a number from 0 to 65,535 to the bits of the float32 and drops the lower half. The carry rounds up, also
from denormals and into infinity. With a *key*, a nonzero uint64, the number is a hash of key and column: stochastic
rounding, whose mean is the float32. With key 0 the number depends on the bits: to nearest, ties to even. Values that
bfloat16 has are exact in both, and NaN stays NaN.

The hash is part of the format of a run, equal on every device. A word of it has the numbers of two columns:

    x = low(key) + (d // 2 + 1) * 0x9E3779B9     all modulo 2**32
    x = (x ^ x >> 16) * 0x85EBCA6B
    x = (x ^ x >> 13 ^ high(key)) * 0xC2B2AE35
    x = x ^ x >> 16
    number = lower half of x for even columns d, upper half for odd ones

A row and each part of its optimizer state (`optim`) have their own stream of numbers: that of part n has the key
key * STREAM**n modulo 2**64, where n is its place among the results of a row operation (`row_ops`).
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

STEP: Final = 0x9E3779B9
MIX: Final = 0x85EBCA6B
MIX_AGAIN: Final = 0xC2B2AE35
STREAM: Final = 0xD1342543DE82EF95  # odd, so that keys stay odd
NEAREST: Final = np.uint64(0)  # the key that rounds to nearest
NO_KEYS: Final = np.zeros(0, np.uint64)  # kernels take it for keys that are all NEAREST
OVERFLOW: Final = float(2.0**128 - 2.0**119)  # the least number that rounds to infinity
BFLOAT16: Final = np.dtype(np.uint16)  # of arrays that hold bfloat16

I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
Splat = Callable[[Any, Any, int], Any]


def widen(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the float32 values of bfloat16 ones; both of any shape."""
    wide = bits.astype(np.uint32)
    return np.left_shift(wide, np.uint32(16), out=wide).view(np.float32)


def narrow(values: NDArray[np.float32], key: int = 0) -> NDArray[np.uint16]:
    """Return float32 values (..., D) as bfloat16, rounded with a key."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    if int(key):
        low, high = (np.uint32(int(key) >> shift & 0xFFFFFFFF) for shift in (0, 32))
        x = low + np.arange(1, bits.shape[-1] // 2 + 2, dtype=np.uint32) * np.uint32(STEP)
        x = (x ^ x >> np.uint32(16)) * np.uint32(MIX)
        x = (x ^ x >> np.uint32(13) ^ high) * np.uint32(MIX_AGAIN)
        x ^= x >> np.uint32(16)
        added = x.astype("<u4").view("<u2")[: bits.shape[-1]].astype(np.uint32)
    else:
        added = np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    rounded = (bits + added >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), (bits >> np.uint32(16) | np.uint32(0x40)).astype(np.uint16), rounded)


def stream_key(key: int, part: int) -> int:
    """Return the key of a part of a row; 0 stays 0."""
    return int(key) * pow(STREAM, part, 2**64) % 2**64


def as_float32(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Return rows of either type as float32; float32 rows as they are."""
    return widen(rows) if rows.dtype == BFLOAT16 else rows


def as_stored(values: NDArray[np.float32], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return float32 values as rows are stored, bfloat16 rounded to nearest."""
    return narrow(values) if dtype == BFLOAT16 else values


def number_as_stored(value: float, dtype: np.dtype[Any]) -> float:
    """Return a number for filling arrays of rows."""
    return int(narrow(np.array([value], np.float32))[0]) if dtype == BFLOAT16 else value


# --- compiled code -------------------------------------------------------------------------------------------------


def _like(kind: Any, lanes: int) -> Any:
    return ir.VectorType(kind, lanes) if lanes > 1 else kind


def _constant(number: int, lanes: int) -> Any:
    return ir.Constant(_like(I32, lanes), [number] * lanes if lanes > 1 else number)


def widen_lanes(builder: Any, bits: Any, lanes: int) -> Any:
    """Generate `widen` for a block of columns."""
    wide = builder.shl(builder.zext(bits, _like(I32, lanes)), _constant(16, lanes))
    return builder.bitcast(wide, _like(ir.FloatType(), lanes))


def narrow_lanes(builder: Any, value: Any, key: Any, column: Any, lanes: int, splat: Splat) -> Any:
    """Generate `narrow` for the columns [column, column + lanes); key i64 or None: to nearest.

    `splat(builder, value, lanes)` copies a scalar to all lanes. Blocks of several lanes begin at even columns.
    """
    bits = builder.bitcast(value, _like(I32, lanes))
    high_half = builder.lshr(bits, _constant(16, lanes))
    added = builder.add(builder.and_(high_half, _constant(1, lanes)), _constant(0x7FFF, lanes))
    if key is not None:
        random = _random_lanes(builder, key, column, lanes, splat)
        added = builder.select(builder.icmp_unsigned("==", key, ir.Constant(I64, 0)), added, random)
    rounded = builder.lshr(builder.add(bits, added), _constant(16, lanes))
    is_nan = builder.fcmp_unordered("uno", value, value)
    rounded = builder.select(is_nan, builder.or_(high_half, _constant(0x40, lanes)), rounded)
    return builder.trunc(rounded, _like(I16, lanes))


def _random_lanes(builder: Any, key: Any, column: Any, lanes: int, splat: Splat) -> Any:
    """Generate the numbers that are added."""
    low, high = builder.trunc(key, I32), builder.trunc(builder.lshr(key, ir.Constant(I64, 32)), I32)
    words, column = max(lanes // 2, 1), builder.trunc(column, I32)
    first = builder.add(low, builder.mul(builder.lshr(column, _constant(1, 1)), _constant(STEP, 1)))
    steps = [(word + 1) * STEP % 2**32 for word in range(words)]
    x = builder.add(splat(builder, first, words), ir.Constant(_like(I32, words), steps if words > 1 else steps[0]))
    x = builder.mul(builder.xor(x, builder.lshr(x, _constant(16, words))), _constant(MIX, words))
    x = builder.xor(builder.xor(x, builder.lshr(x, _constant(13, words))), splat(builder, high, words))
    x = builder.mul(x, _constant(MIX_AGAIN, words))
    x = builder.xor(x, builder.lshr(x, _constant(16, words)))
    if lanes > 1:  # the lower half of a word is the first of two lanes
        return builder.zext(builder.bitcast(x, _like(I16, lanes)), _like(I32, lanes))
    shift = builder.shl(builder.and_(column, _constant(1, 1)), _constant(4, 1))
    return builder.and_(builder.lshr(x, shift), _constant(0xFFFF, 1))
