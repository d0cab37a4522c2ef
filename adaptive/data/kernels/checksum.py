"""A checksum that keeps up with memory, against damage by chance: four lanes of exclusive or, multiply, rotate."""

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels.jit import kernel

_PRIME = np.uint64(0x9E3779B185EBCA87)
_LEFT, _RIGHT = np.uint64(31), np.uint64(33)


@kernel()
def mixed_in(lane: np.uint64, word: np.uint64) -> np.uint64:
    """One step of a lane: any change of the word changes it, and words that change places do."""
    product = (lane ^ word) * _PRIME
    return (product << _LEFT) | (product >> _RIGHT)


@kernel()
def checksum(words: NDArray[np.uint64]) -> np.int64:
    """Of (N,) words, and of N; word i goes to lane i % 4, so that a processor works on four at once."""
    a, b, c, d = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(len(words))
    whole = len(words) // 4
    for i in range(whole):
        a = mixed_in(a, words[4 * i])
        b = mixed_in(b, words[4 * i + 1])
        c = mixed_in(c, words[4 * i + 2])
        d = mixed_in(d, words[4 * i + 3])
    for i in range(4 * whole, len(words)):
        a = mixed_in(a, words[i])
    return np.int64(mixed_in(mixed_in(mixed_in(a, b), c), d))
