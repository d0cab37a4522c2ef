"""Loops of the synthetic stream: values are hashes of keys and indices, and not stored.

Letters: B samples, F fields, L lookups of a bag, D dense inputs. Ids are (F, B, L), feature-major, so that one field's
constants serve a whole loop. `fields` is a record array (F,) of `FIELD`; a key is a 64-bit number that selects a stream
of hashes.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels.jit import kernel

FIELD = np.dtype(
    [
        ("size", np.int64),  # rows of the table = popular + singletons
        ("inverse", np.float64),  # 1 / size
        ("popular", np.int64),  # rows drawn by popularity: ranks [0, popular)
        ("singletons", np.int64),  # rows drawn once in `period` samples: ranks [popular, size)
        ("period", np.uint64),  # a power of two
        ("half", np.uint64),  # half of the period's bits, rounded up
        ("default_limit", np.uint64),  # a 32-bit hash below it looks up the default id
        ("stride", np.int64),  # id = (rank * stride + offset) mod size, gcd(stride, size) = 1
        ("offset", np.int64),
        ("life", np.int64),  # samples until a new id takes a rank; 0: ids are rows
        ("id_key", np.uint64),  # of new ids
        ("low", np.float64),  # Zipf-Mandelbrot, inverted: rank = (low + p * span) ** power - shift
        ("span", np.float64),
        ("power", np.float64),
        ("shift", np.float64),
        ("common", np.float64),  # weight of the sample's latent number in a draw, and
        ("single", np.float64),  # weight of the draw's own number; their squares add to 1
        ("draw_key", np.uint64),
        ("main_key", np.uint64),
        ("product_key", np.uint64),
        ("factor_key", np.uint64, (2,)),
        ("drift_key", np.uint64),
    ]
)
PAIR = np.dtype([("first", np.int64), ("second", np.int64), ("weight", np.float64)])  # two fields
PRODUCT = np.dtype([("column", np.int64), ("field", np.int64), ("weight", np.float64)])  # dense column, field

# 64 bits. Numba returns them to plain Python as an int but accepts only np.uint64 above 2^63, hence the casts.
Word = int | np.uint64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_FRESH = np.uint64(0xD1B54A32D192ED03)  # turns an effect's key into the key of its successor after the drift
_DRIFTING = np.uint64(round(0.3 * 2**32))  # ids whose 32-bit hash is below it drift
_MASK_32 = np.uint64(0xFFFFFFFF)
_MASK_16 = np.uint64(0xFFFF)
_UNIT_32 = 2.0**-32
_BELL_SCALE = math.sqrt(3.0) / 65536.0
QUANTILE_BITS = 11  # a table of 2^11 quantiles and one of 2^10 ranks fit the first-level cache together
QUANTILES = 1 << QUANTILE_BITS
_QUANTILE_SHIFT = np.uint64(64 - QUANTILE_BITS)
_BELOW = np.uint64((1 << (32 - QUANTILE_BITS)) - 1)
_BELOW_UNIT = 2.0 ** -(32 - QUANTILE_BITS)
CELLS, _END = 1024, 5.0  # of the tables of ranks, for normal numbers in [-5, 5]
_CELLS_PER_UNIT = CELLS / (2.0 * _END)
_LAST_CELL = float(CELLS) - 1e-6


@kernel()
def hashed(key: Word, value: Word) -> Word:
    """Return number `value` of the stream `key`: 64 bits of splitmix64 (Steele et al. 2014)."""
    bits = np.uint64(key) + np.uint64(value) * _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))


@kernel()
def uniform(bits: Word) -> float:
    """Return a number in (0, 1), never 0 or 1, from the upper 32 bits."""
    return (float(np.int64(np.uint64(bits) >> np.uint64(32))) + 0.5) * _UNIT_32


@kernel()
def normal(bits: Word) -> float:
    """Return a standard normal number from the upper 32 bits, by PPND7 of AS 241.

    Relative error 1e-7 (Wichura 1988). Its far branch, beyond 6.6 sigma, cannot be reached with 32 bits.
    """
    p = uniform(bits)
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        above = ((5.9109374720e01 * r + 1.5929113202e02) * r + 5.0434271938e01) * r + 3.3871327179e00
        below = ((6.7187563600e01 * r + 7.8757757664e01) * r + 1.7895169469e01) * r + 1.0
        return q * above / below
    r = math.sqrt(-math.log(min(p, 1.0 - p))) - 1.6
    above = ((1.7023821103e-01 * r + 1.3067284816e00) * r + 2.7568153900e00) * r + 1.4234372777e00
    below = (1.2021132975e-01 * r + 7.3700164250e-01) * r + 1.0
    return math.copysign(above / below, q)


@kernel()
def fill_quantiles(out: NDArray[np.float64]) -> None:
    """Write normal quantiles `out` (QUANTILES + 1,) of equal shares; the first and last are those of half a share."""
    for i in range(len(out)):
        share = min(max(float(i), 0.5), QUANTILES - 0.5) / QUANTILES
        out[i] = normal(np.uint64(int(share * 4294967296.0)) << np.uint64(32))


@kernel()
def quick_normal(quantiles: NDArray[np.float64], bits: Word) -> float:
    """Return a standard normal number within 3.5 from the upper 32 bits, by interpolation in a table."""
    word = np.uint64(bits)
    i = word >> _QUANTILE_SHIFT
    left = quantiles[i]
    part = float(np.int64((word >> np.uint64(32)) & _BELOW)) * _BELOW_UNIT
    return left + part * (quantiles[i + np.uint64(1)] - left)  # type: ignore[no-any-return]


@kernel()
def bell(bits: Word) -> float:
    """Return a sum of four 16-bit numbers, scaled to mean 0 and variance 1, within 3.47."""
    word = np.uint64(bits)
    total = (word & _MASK_16) + ((word >> np.uint64(16)) & _MASK_16)
    total += ((word >> np.uint64(32)) & _MASK_16) + (word >> np.uint64(48))
    return (float(np.int64(total)) - 131070.0) * _BELL_SCALE


@kernel()
def below_normal(x: float) -> float:
    """Return the normal distribution function by a logistic curve (Page 1977), error 2e-4."""
    return 1.0 / (1.0 + math.exp(-x * (1.5976 + 0.070565992 * x * x)))


@kernel()
def shuffled(key: np.uint64, mask: np.uint64, half: np.uint64, index: int) -> int:
    """Return a sample's place in its period, `mask` + 1 samples long, under a pseudo-random permutation."""
    place = ((np.uint64(index) ^ key) * _FIRST) & mask
    place = ((place ^ (place >> half)) * _SECOND) & mask
    return np.int64(place ^ (place >> half))  # type: ignore[return-value]


@kernel()
def fill_ranks(fields: NDArray[np.void], out: NDArray[np.float64]) -> None:
    """Write the rank `out` (F, CELLS + 1), not rounded, of normal numbers in steps from -5 to 5; low ones are popular.

    A draw then costs an interpolation instead of an exponential and a power, a third of the time.
    """
    for f in range(len(fields)):
        field = fields[f]
        for i in range(out.shape[1]):
            p = below_normal(float(i) / _CELLS_PER_UNIT - _END)
            out[f, i] = math.pow(field["low"] + p * field["span"], field["power"]) - field["shift"]


@kernel()
def draw_normals(key: Word, start: int, out: NDArray[np.float64]) -> None:
    """Write standard normal numbers `out` (B,) of the samples from `start` on."""
    for b in range(len(out)):
        out[b] = normal(np.uint64(hashed(key, start + b)))


@kernel()
def draw_dense(
    keys: NDArray[np.uint64],
    quantiles: NDArray[np.float64],
    start: int,
    correlation: float,
    latent: NDArray[np.float64],
    out: NDArray[np.float32],
) -> None:
    """Write normal dense inputs `out` (B, D), D >= 1; the first correlates with `latent` (B,)."""
    rest = math.sqrt(1.0 - correlation * correlation)
    for b in range(len(out)):
        for d in range(len(keys)):
            out[b, d] = quick_normal(quantiles, np.uint64(hashed(keys[d], start + b)))
        out[b, 0] = correlation * latent[b] + rest * out[b, 0]


@kernel()
def live_id(field: Any, rank: int, index: int) -> int:
    """Return the 64-bit id that has a rank at sample `index`. The default id stays."""
    key = np.uint64(hashed(field["id_key"], rank))
    stays = rank == 0 and field["default_limit"] > 0
    phase = np.int64(key % np.uint64(field["life"]))
    return np.int64(hashed(key, 0 if stays else (index + phase) // field["life"]))  # type: ignore[return-value]


@kernel()
def draw_ids(
    fields: NDArray[np.void],
    curves: NDArray[np.float64],
    quantiles: NDArray[np.float64],
    start: int,
    lookups: int,
    latent: NDArray[np.float64],
    out: NDArray[np.int64],
) -> None:
    """Write ids `out` (F, B L), from lookup `start` on.

    A lookup's rank is popular, unless it is a singleton's in its period, unless it is the default id's (0). Each has a
    loop of its own, over lookups and not over bags, without branches: so the compiler makes vector instructions of
    most of them, in half of the time of one loop. The facts of a field are read once: the compiler cannot know that
    writing ids leaves them as they are.

    Args:
        curves: (F, CELLS + 1) from `fill_ranks`.
        quantiles: from `fill_quantiles`.
        latent: (B L,) latent number of each lookup's sample.
    """
    count = len(latent)
    for f in range(len(fields)):
        field, curve, ids = fields[f], curves[f], out[f]
        size, popular, singletons = field["size"], field["popular"], field["singletons"]
        stride, offset, inverse = field["stride"], field["offset"], field["inverse"]
        common, single, default_limit = field["common"], field["single"], field["default_limit"]
        key, mask, half = field["draw_key"], field["period"] - np.uint64(1), field["half"]
        for i in range(count):
            bits = np.uint64(hashed(key, start + i))
            place = (common * latent[i] + single * quick_normal(quantiles, bits) + _END) * _CELLS_PER_UNIT
            place = min(max(place, 0.0), _LAST_CELL)
            cell = np.uint64(np.int64(place))
            left = curve[cell]
            rank = int(left + (place - float(np.int64(cell))) * (curve[cell + np.uint64(1)] - left))
            ids[i] = min(max(rank, 0), popular - 1)
        if singletons > 0:
            for i in range(count):
                once = shuffled(key, mask, half, start + i)
                ids[i] = popular + once if once < singletons else ids[i]
        if default_limit > 0:
            for i in range(count):
                bits = np.uint64(hashed(key, start + i))
                ids[i] = 0 if (bits & _MASK_32) < default_limit else ids[i]
        if field["life"] > 0:
            for i in range(count):
                ids[i] = live_id(field, ids[i], (start + i) // lookups)
            continue
        for i in range(count):  # (rank * stride + offset) mod size: a division takes three times as long as this
            value = ids[i] * stride + offset
            rest = value - np.int64(value * inverse) * size  # the quotient is off by one at most
            rest = rest + size if rest < 0 else rest
            ids[i] = rest - size if rest >= size else rest


@kernel()
def effect(field: Any, key: Word, index: int, drifted: bool) -> float:
    """Return the effect of id `index` in the stream `key`, before or after the drift."""
    if drifted and (np.uint64(hashed(field["drift_key"], index)) >> np.uint64(32)) < _DRIFTING:
        key = np.uint64(key) ^ _FRESH
    return bell(np.uint64(hashed(key, index)))


@kernel()
def bag_effect(field: Any, key: Word, bags: NDArray[np.int64], b: int, drifted: bool) -> float:
    """Return the effect of the ids `bags[b]` (L,), of variance 1 if they are independent."""
    size = bags.shape[1]
    if size == 1:
        return effect(field, key, bags[b, 0], drifted)
    total = 0.0
    for j in range(size):
        total += effect(field, key, bags[b, j], drifted)
    return total / math.sqrt(size)


@kernel()
def num_plain(bags: NDArray[np.int64], first_drifted: int) -> int:
    """Return how many of the bags (B, L) need no `bag_effect`: those of one id, before the drift.

    A loop over these alone has no branch, so the compiler makes vector instructions of it.
    """
    return min(max(first_drifted, 0), len(bags)) if bags.shape[1] == 1 else 0


@kernel()
def add_main(
    fields: NDArray[np.void],
    weights: NDArray[np.float64],
    first_drifted: int,
    ids: NDArray[np.int64],
    out: NDArray[np.float64],
) -> None:
    """Add to `out` (B,) the sum of the weighted effects of a sample's bags (F, B, L)."""
    for f in range(len(fields)):
        field, bags, weight = fields[f], ids[f], weights[f]
        key, plain = field["main_key"], num_plain(bags, first_drifted)
        for b in range(plain):
            out[b] += weight * bell(np.uint64(hashed(key, bags[b, 0])))
        for b in range(plain, len(out)):
            out[b] += weight * bag_effect(field, key, bags, b, b >= first_drifted)


@kernel()
def add_pairs(
    fields: NDArray[np.void],
    pairs: NDArray[np.void],
    first_drifted: int,
    ids: NDArray[np.int64],
    out: NDArray[np.float64],
) -> None:
    """Add to `out` (B,) the weighted inner products of the factors of each `PAIR` of fields."""
    for p in range(len(pairs)):
        first, second = pairs[p]["first"], pairs[p]["second"]
        weight, bags, others = pairs[p]["weight"], ids[first], ids[second]
        plain = num_plain(bags, first_drifted)
        for k in range(2):
            key, other_key = fields[first]["factor_key"][k], fields[second]["factor_key"][k]
            for b in range(plain):
                left = bell(np.uint64(hashed(key, bags[b, 0])))
                out[b] += weight * left * bell(np.uint64(hashed(other_key, others[b, 0])))
            for b in range(plain, len(out)):
                drifted = b >= first_drifted
                left = bag_effect(fields[first], key, bags, b, drifted)
                right = bag_effect(fields[second], other_key, others, b, drifted)
                out[b] += weight * left * right


@kernel()
def add_dense(
    linear: NDArray[np.float64], curved: NDArray[np.float64], dense: NDArray[np.float32], out: NDArray[np.float64]
) -> None:
    """Add to `out` (B,) linear terms of all dense inputs, and up to three curved ones."""
    for b in range(len(out)):
        x = dense[b]
        total = 0.0
        if len(x) > 1:
            total += curved[0] * math.sin(1.5 * x[1])
        if len(x) > 3:
            total += curved[1] * x[2] * x[3]
        if len(x) > 4:
            total += curved[2] * abs(x[4])
        for d in range(len(linear)):
            total += linear[d] * x[d]
        out[b] += total


@kernel()
def add_products(
    fields: NDArray[np.void],
    products: NDArray[np.void],
    first_drifted: int,
    ids: NDArray[np.int64],
    dense: NDArray[np.float32],
    out: NDArray[np.float64],
) -> None:
    """Add to `out` (B,) for each `PRODUCT` a dense input times the effect of a bag."""
    for p in range(len(products)):
        f, column = products[p]["field"], products[p]["column"]
        weight, key, bags = products[p]["weight"], fields[f]["product_key"], ids[f]
        plain = num_plain(bags, first_drifted)
        for b in range(plain):
            out[b] += weight * bell(np.uint64(hashed(key, bags[b, 0]))) * dense[b, column]
        for b in range(plain, len(out)):
            slope = bag_effect(fields[f], key, bags, b, b >= first_drifted)
            out[b] += weight * slope * dense[b, column]


@kernel()
def draw_labels(key: Word, start: int, probability: NDArray[np.float64], out: NDArray[np.float32]) -> None:
    """Write labels `out` (B,): 1 with the given probability (B,), else 0."""
    for b in range(len(out)):
        out[b] = 1.0 if uniform(np.uint64(hashed(key, start + b))) < probability[b] else 0.0
