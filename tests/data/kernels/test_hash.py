"""Hashed ids spread evenly, short texts and consecutive numbers too; a worse mix of bits would fail here."""

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray

from adaptive.data.kernels.text_rows import hashed_rows, mix
from adaptive.serving.sample_values import key_of

NUM_IDS: Final = 20_000
FURTHEST: Final = 5.0  # standard deviations
IDS: Final[dict[str, tuple[str, Callable[[int], str]]]] = {
    "numbers": ("int", str),
    "numbers far apart": ("int", lambda n: str(n << 32)),
    "hex digits": ("hex", lambda n: f"{n:x}"),
    "decimal texts": ("string", str),
    "texts of one length": ("string", lambda n: f"{n:08d}"),
    "texts with a prefix": ("string", lambda n: f"user_{n}"),
    "two letters": ("string", lambda n: chr(0x100 + n // 200) + chr(0x100 + n % 200)),
}


def keys_of(ids: str) -> NDArray[np.int64]:
    kind, text = IDS[ids]
    return np.array([key_of(text(n), kind) for n in range(NUM_IDS)], np.int64)


def furthest_from_chance(rows_of: Callable[[int], NDArray[np.int64]]) -> float:
    """How far the number of distinct rows is from balls in bins, in deviations, at the worst of several table sizes."""
    actual = []
    for size in (4_000, 10_000, 65_536, 1_000_000):
        one, two = (1 - 1 / size) ** NUM_IDS, (1 - 2 / size) ** NUM_IDS  # that a row, or two rows, are hit by none
        deviation = math.sqrt(size * one + size * (size - 1) * two - (size * one) ** 2)
        actual.append(abs(len(np.unique(rows_of(size))) - size * (1 - one)) / deviation)
    return max(actual)


def flips(mix: Callable[[int], int], keys: Sequence[int]) -> NDArray[np.float64]:
    """(64, 64) share of the keys for which another input bit (row) changes an output bit (column)."""
    changed = np.array([[mix(key) ^ mix(key ^ (1 << bit)) for bit in range(64)] for key in keys], np.uint64)
    return np.unpackbits(changed.view(np.uint8), axis=1, bitorder="little").reshape(len(keys), 64, 64).mean(axis=0)


@pytest.mark.parametrize("ids", IDS)
def test_as_many_rows_are_hit_as_by_chance(ids: str) -> None:
    keys, present = keys_of(ids), np.ones(NUM_IDS, np.bool_)

    def rows_of(size: int) -> NDArray[np.int64]:
        rows = np.empty(NUM_IDS, np.int64)
        hashed_rows(keys, present, size, size, rows)
        return rows

    assert furthest_from_chance(rows_of) < FURTHEST


@pytest.mark.parametrize("ids", ["decimal texts", "texts with a prefix", "two letters"])
def test_keys_alone_would_not_do(ids: str) -> None:
    """FNV-1a barely moves the upper bits for the last bytes of a text."""
    keys = [int(key) % 2**64 for key in keys_of(ids)]
    assert furthest_from_chance(lambda size: np.array([key * size >> 64 for key in keys])) > 2 * FURTHEST


def test_each_key_bit_flips_each_hash_bit_half_the_time() -> None:
    keys = [*range(500), *(int(key) % 2**64 for key in keys_of("decimal texts")[:1500])]
    allowed = 6 * 0.5 / math.sqrt(len(keys))  # 4,096 shares
    assert np.abs(flips(lambda key: int(mix(np.uint64(key))), keys) - 0.5).max() < allowed
    assert np.abs(flips(lambda key: key * 0xBF58476D1CE4E5B9 % 2**64, keys) - 0.5).max() == 0.5
