"""Three first-in first-out queues: S3-FIFO (Yang et al., SOSP 2023).

https://doi.org/10.1145/3600006.3613147. Most rows are looked up once in a long time. A small queue evicts them soon.
Rows used again in the small queue move to the main queue, and rows that return soon after their eviction enter the main
queue directly.

Run: adaptive-train run --policy examples/policies/s3fifo.py:S3FIFO
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import ByRow, Follows, RowStats, TierView
from adaptive.policies.samples import check_state

_NONE, _SMALL, _MAIN = range(3)
_MOST_VISITS = 3  # two bits, as in the paper
_MOVES_FROM = 2  # visits

Ints = NDArray[np.int64]
Order = tuple[Ints, Ints, NDArray[np.bool_], Ints]  # see `_order`


class S3FIFO(Follows):
    """Rows enter the small queue, or the main queue if they left the small one recently.

    To make room, the oldest row of the small queue is evicted, or moves to the main queue if at least two batches used
    it. While the main queue exceeds its share, its oldest row is evicted instead, or goes around once more for each
    batch that used it, up to three. Rows that planned batches hold are passed over. A row that moves can be evicted for
    the next batch at the earliest. `score` only ranks rows; `evicted` then moves the queues.
    `small` is the small queue's share of the device rows, a tenth in the paper.
    """

    def __init__(self, *, small: float = 0.1) -> None:
        if not 0 < small < 1:
            raise ValueError(f"small={small}: expected a share above 0 and below 1")
        self.small = small
        self._queues, self._visits = ByRow(np.uint8), ByRow(np.uint8)
        self._places = ByRow(np.int64)  # in the row's queue, from 1 on
        self._left = ByRow(np.int64)  # number of the eviction from the small queue, 0: none
        self._columns = {"queues": self._queues, "visits": self._visits, "places": self._places, "left": self._left}
        self._end = self._num_left = self._num_main = self._most_main = 0
        self._scored: list[tuple[int, Order]] = []  # by batch

    def looked_up(self, number: int, rows: Ints, view: TierView) -> None:
        self._most_main = view.device_rows - int(self.small * view.device_rows)
        for column in self._columns.values():
            column.reserve(view.num_rows)
        is_resident = view.resident(rows)
        visited = rows[is_resident]
        self._visits[visited] = np.minimum(self._visits[visited] + 1, _MOST_VISITS)
        self._admit(rows[~is_resident])  # before `admitted`: they count when room is made

    def _admit(self, rows: Ints) -> None:
        self._take_out(rows[self._queues[rows] != _NONE])  # in a queue of the saved state, but not on the device
        left = self._left[rows]
        returns = (left > 0) & (left > self._num_left - self._most_main)  # remembers as many as the main queue may have
        self._append(rows[returns], _MAIN)
        self._append(rows[~returns], _SMALL)
        self._visits[rows], self._left[rows] = 0, 0

    def _append(self, rows: Ints, queue: int) -> None:
        """Append rows to a queue, in order."""
        self._num_main += (queue == _MAIN) * len(rows) - int((self._queues[rows] == _MAIN).sum())
        self._queues[rows] = queue
        self._places[rows] = self._end + 1 + np.arange(len(rows))
        self._end += len(rows)

    def _take_out(self, rows: Ints) -> None:
        self._num_main -= int((self._queues[rows] == _MAIN).sum())
        self._queues[rows] = _NONE

    def score(self, rows: RowStats) -> Ints:
        self._scored = [scored for scored in self._scored if scored[0] == rows.step]
        candidates = rows.rows
        in_main, places = self._queues[candidates] == _MAIN, self._places[candidates]
        surplus = self._num_main - self._most_main
        (small, main, moves, examined), turns = _order(in_main, places, self._visits[candidates], surplus)
        self._scored.append((rows.step, (candidates[small], candidates[main], moves, examined)))
        return turns

    def evicted(self, number: int, rows: Ints) -> None:
        for _, (small, main, moves, examined) in [scored for scored in self._scored if scored[0] == number]:
            small_evicted = np.isin(small, rows) & (self._queues[small] != _NONE)
            main_evicted = np.isin(main, rows) & (self._queues[main] != _NONE)
            num_examined = int(np.flatnonzero(small_evicted).max(initial=-1)) + 1
            if main_evicted.any():
                last = int(np.flatnonzero(main_evicted)[-1])
                num_examined = max(num_examined, int(examined[last]))
                self._go_around(main, last, main_evicted)
            left = small[small_evicted & ~moves]
            self._left[left] = self._num_left + 1 + np.arange(len(left))
            self._num_left += len(left)
            moving = small[:num_examined][(moves & ~small_evicted)[:num_examined]]
            self._visits[moving] = 0
            self._append(moving, _MAIN)
            self._take_out(small[small_evicted])
        self._scored.clear()
        self._take_out(rows[self._queues[rows] != _NONE])  # evicted without a call of `score`

    def expired(self, number: int, rows: Ints) -> None:
        self._left[rows] = 0

    def _go_around(self, rows: Ints, last: int, evicted: NDArray[np.bool_]) -> None:
        """Advance the main queue, in order of eviction, past `rows[last]`, the last one evicted."""
        places, visits, border = self._places[rows], self._visits[rows].astype(np.int64), rows[last : last + 1]
        is_earlier = places < self._places[border]
        passed = int(self._visits[border][0]) + is_earlier  # how often each row was examined
        self._visits[rows] = np.maximum(visits - passed, 0)
        back = np.flatnonzero((passed > 0) & ~evicted)
        self._append(rows[back[np.lexsort((places[back], is_earlier[back]))]], _MAIN)
        self._take_out(rows[evicted])

    def state_dict(self) -> dict[str, NDArray[Any]]:
        rows, counts = self._places.rows(), np.array([self._end, self._num_left, self._num_main])
        return {"rows": rows, "counts": counts} | {name: column[rows] for name, column in self._columns.items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, *self.state_dict())
        for name, column in self._columns.items():
            column.restore(state["rows"], state[name])
        self._end, self._num_left, self._num_main = (int(number) for number in state["counts"])
        self._scored.clear()


def _order(in_main: NDArray[np.bool_], places: Ints, visits: NDArray[np.uint8], surplus: int) -> tuple[Order, Ints]:
    """Order of the candidates (n,) and (n,) turn of each. The main queue, `surplus` rows too long, is served first.

    Order: positions of the small queue and of the main one, as evicted; True for rows of the small queue that move to
    the main one, which then serves one more; for each row of the main queue, those of the small one examined before.
    """
    small, main = np.flatnonzero(~in_main), np.flatnonzero(in_main)
    small = small[np.argsort(places[small], kind="stable")]
    main = main[np.lexsort((places[main], visits[main]))]
    moves = visits[small] >= _MOVES_FROM
    moved: Ints = np.cumsum(moves) - moves  # rows that move before each of the small queue
    positions = np.arange(len(small))
    evicted = positions - moved
    served = np.clip(surplus + moved, 0, len(main))  # rows of the main queue served before each of the small one
    examined = np.searchsorted(served, np.arange(len(main)), side="right")
    turns = np.empty(len(in_main), np.int64)
    turns[small] = np.where(moves, len(in_main) + positions, evicted + served)
    turns[main] = np.arange(len(main)) + np.append(evicted, len(small) - moves.sum())[examined]
    return (small, main, moves, examined), turns
