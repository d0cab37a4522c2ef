"""Where bags begin, and what can be told of it without sending it."""

from adaptive.kernels.jit import at, kernel


@kernel()
def one_each(starts):
    """Whether each bag has exactly one look-up. starts (B + 1,) int64, ascending, from 0."""
    for first in range(0, starts.size, 1024):
        others = False
        for bag in range(first, min(first + 1024, starts.size)):
            others |= starts[at(bag)] != bag
        if others:
            return False
    return True
