"""Hot rows: looked up so often in a batch that one program, adding term after term, would take longer than all others.

Their sums are taken by a launch of their own, in the same order, with many more look-ups on their way at once
(`gpu.sums`). Which rows these are is known when a batch is planned.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

HOT_LOOKUPS: Final = 64  # a row with more is hot; a power of two


def hot_rows(segments: NDArray[np.int64]) -> NDArray[np.int32]:
    """(h,) which rows have more than 64 look-ups, most look-ups first. segments (U + 1,): where those of each start.

    The longest sum begins first, and the others end beside it.
    """
    counts = np.diff(segments)
    found = np.flatnonzero(counts > HOT_LOOKUPS)
    return found[np.argsort(-counts[found], kind="stable")].astype(np.int32)
