"""Three queues, first in first out: S3-FIFO, Yang et al., SOSP 2023 (https://doi.org/10.1145/3600006.3613147).

Most rows are looked up once in a long time. A small queue gets rid of them soon; what is used again while it stands
there moves on to the main queue, and what comes back shortly after it left goes there at once.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import Policy, RowStats, TierView
from adaptive.policies.samples import ByRow, check_state

_NONE, _SMALL, _MAIN = range(3)
_MOST_VISITS = 3  # two bits, as in the paper
_MOVES_FROM = 2  # visits

Ints = NDArray[np.int64]
# In which order candidates leave if all of them have to: those of the small queue, oldest first; those of the main one;
# of the small one, what moves on; of the main one, how many of the small one are looked at before.
Order = tuple[Ints, Ints, NDArray[np.bool_], Ints]


class S3FIFO(Policy):
    """Rows come into the small queue, or into the main one if they left the small one not long ago.

    To make room, the oldest row of the small queue leaves, or moves on if at least two batches used it there; while the
    main queue has more than its share, its oldest row leaves instead, or goes around once more for each batch that used
    it, up to three. Rows that planned batches hold are passed over. What moves on can leave with the next batch at the
    earliest. Tables of different widths share the queues.

    A policy ranks rows; which of them left it is told after that. Then the queues move.

    Args:
        small: share of the device rows for the small queue; the paper has a tenth.
    """

    def __init__(self, *, small: float = 0.1) -> None:
        if not 0 < small < 1:
            raise ValueError(f"small={small}: expected a share above 0 and below 1")
        self.small = small
        self._queues, self._visits = ByRow(np.uint8), ByRow(np.uint8)
        self._places = ByRow(np.int64)  # in the row's queue, from 1 on
        self._left = ByRow(np.int64)  # the small queue, as its how manieth; 0: not known
        self._end = self._num_left = self._num_main = self._most_main = 0
        self._asked: list[tuple[int, Order]] = []  # with the batch

    def looked_up(self, number: int, rows: Ints, view: TierView) -> None:
        self._most_main = view.device_rows - int(self.small * view.device_rows)
        for facts in (self._queues, self._visits, self._places, self._left):
            facts.reserve(view.num_rows)
        here = view.resident(rows)
        self._visits[rows[here]] = np.minimum(self._visits[rows[here]] + 1, _MOST_VISITS)
        self._let_in(rows[~here])  # now, not when they have come: they count when room is made

    def came(self, number: int, rows: Ints) -> None:
        self._let_in(rows[self._queues[rows] == _NONE])  # had to leave and return, as slots were shared anew

    def _let_in(self, rows: Ints) -> None:
        self._take_out(rows[self._queues[rows] != _NONE])  # known from a saved state, and not there any more
        left = self._left[rows]
        known = (left > 0) & (left > self._num_left - self._most_main)  # as many as the main queue may have
        self._line_up(rows[known], _MAIN)
        self._line_up(rows[~known], _SMALL)
        self._visits[rows], self._left[rows] = 0, 0

    def _line_up(self, rows: Ints, queue: int) -> None:
        """Put rows at the end of a queue, in order."""
        self._num_main += (queue == _MAIN) * len(rows) - int((self._queues[rows] == _MAIN).sum())
        self._queues[rows] = queue
        self._places[rows] = self._end + 1 + np.arange(len(rows))
        self._end += len(rows)

    def _take_out(self, rows: Ints) -> None:
        self._num_main -= int((self._queues[rows] == _MAIN).sum())
        self._queues[rows] = _NONE

    def score(self, rows: RowStats) -> Ints:
        if self._asked and self._asked[0][0] != rows.step:
            self._asked.clear()
        mine = rows.rows
        main = self._queues[mine] == _MAIN
        surplus = self._num_main - self._most_main
        (small, large, moves, looked_at), turns = _order(main, self._places[mine], self._visits[mine], surplus)
        self._asked.append((rows.step, (mine[small], mine[large], moves, looked_at)))
        return turns

    def left(self, number: int, rows: Ints) -> None:
        for asked, (small, main, moves, looked_at) in self._asked:
            if asked != number:
                continue
            gone_small, gone_main = (np.isin(mine, rows) & (self._queues[mine] != _NONE) for mine in (small, main))
            looked = int(np.flatnonzero(gone_small).max(initial=-1)) + 1
            if gone_main.any():
                last = int(np.flatnonzero(gone_main)[-1])
                looked = max(looked, int(looked_at[last]))
                self._go_around(main, last, gone_main)
            left = small[gone_small & ~moves]
            self._left[left] = self._num_left + 1 + np.arange(len(left))
            self._num_left += len(left)
            moving = small[:looked][(moves & ~gone_small)[:looked]]
            self._visits[moving] = 0
            self._line_up(moving, _MAIN)
            self._take_out(small[gone_small])
        self._asked.clear()
        self._take_out(rows[self._queues[rows] != _NONE])  # they left without the policy being asked

    def _go_around(self, rows: Ints, last: int, gone: NDArray[np.bool_]) -> None:
        """Of the main queue's rows, in the order in which they leave, `rows[last]` was the last one that did."""
        places, visits, border = self._places[rows], self._visits[rows].astype(np.int64), rows[last : last + 1]
        again = places < self._places[border]
        passed = int(self._visits[border][0]) + again  # how often each was looked at
        self._visits[rows] = np.maximum(visits - passed, 0)
        back = np.flatnonzero((passed > 0) & ~gone)
        self._line_up(rows[back[np.lexsort((places[back], again[back]))]], _MAIN)
        self._take_out(rows[gone])

    def _columns(self) -> dict[str, ByRow[Any]]:
        return {"queues": self._queues, "visits": self._visits, "places": self._places, "left": self._left}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        rows = self._places.rows()
        columns = {name: column[rows] for name, column in self._columns().items()}
        return {"rows": rows, **columns, "counts": np.array([self._end, self._num_left, self._num_main])}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, *self.state_dict())
        for name, column in self._columns().items():
            column.restore(state["rows"], state[name])
        self._end, self._num_left, self._num_main = (int(number) for number in state["counts"])
        self._asked.clear()


def _order(main: NDArray[np.bool_], places: Ints, visits: NDArray[np.uint8], surplus: int) -> tuple[Order, Ints]:
    """The order of candidates (n,), as positions, and the turn (n,) of each.

    The main queue, which has `surplus` rows too many, is served first, and again for each row that moves on.
    """
    small, large = np.flatnonzero(~main), np.flatnonzero(main)
    small = small[np.argsort(places[small], kind="stable")]
    large = large[np.lexsort((places[large], visits[large]))]
    moves = visits[small] >= _MOVES_FROM
    moved: Ints = np.cumsum(moves) - moves  # before each of the small queue
    each = np.arange(len(small))
    left = each - moved
    served = np.clip(surplus + moved, 0, len(large))  # of the main queue, before each of the small one
    looked_at = np.searchsorted(served, np.arange(len(large)), side="right")
    turns = np.empty(len(main), np.int64)
    turns[small] = np.where(moves, len(main) + each, left + served)
    turns[large] = np.arange(len(large)) + np.append(left, len(small) - moves.sum())[looked_at]
    return (small, large, moves, looked_at), turns
