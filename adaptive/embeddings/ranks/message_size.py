"""How large the first message of an exchange is: enough for what crossed when last the same exchange lay behind.

After vectors come gradients, after gradients vectors, and so on; batches ask for about as many rows each time. All
ranks have seen the same headers, so all have the same numbers, without telling each other.

Letters: W ranks.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from adaptive.embeddings.ranks.wire import Kind

Room = Sequence[Sequence[int]]  # (W, W) bytes from each rank to each other one

SPARE: Final = 16  # a batch may ask for a sixteenth more than the one before
WHOLE: Final = 64  # bytes, of which there is a multiple
MOST_OF_RANK: Final = 4 << 20  # bytes of a rank's first messages: larger parts gain little by crossing at once


class Rooms:
    """Of one channel.

    Attributes:
        nothing: zeros, to fill what is left of a room.
    """

    def __init__(self, size: int) -> None:
        self._most = MOST_OF_RANK // size // WHOLE * WHOLE
        self._none: Room = [[0] * size] * size
        self._behind: Kind | None = None
        self._after: dict[Kind | None, Room] = {}
        self.nothing = np.zeros(self._most, np.uint8)

    def of_next(self) -> Room:
        """Of the next exchange, whatever ranks are about to do."""
        return self._after.get(self._behind, self._none)

    def learn(self, kind: Kind | None, lengths: Room) -> None:
        """All ranks have exchanged parts of these lengths; None: they have not."""
        if kind is None:
            self._behind, self._after = None, {}
            return
        self._after[self._behind] = [
            [0 if to == sender else self._enough(length) for to, length in enumerate(row)]
            for sender, row in enumerate(lengths)
        ]
        self._behind = kind

    def _enough(self, length: int) -> int:
        return min(self._most, -(-(length + length // SPARE) // WHOLE) * WHOLE)
