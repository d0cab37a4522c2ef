"""First in, first out, with a second chance: SIEVE (Zhang et al., NSDI 2024).

It follows S3-FIFO (https://doi.org/10.1145/3600006.3613147), which argues for queues instead of LRU: most rows are
looked up once in a long time, and a queue evicts those soonest.

Run: adaptive-train run --policy examples/policies/sieve.py:Sieve
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import ByRow, Follows, RowStats, TierView
from adaptive.policies.samples import check_state

_ROUND = 1 << 50  # exceeds all places in the queue; scores are compared as float64, which is exact up to 2**53


class Sieve(Follows):
    """Rows queue in order of admission; a lookup of a row in the queue only marks it.

    To make room, a hand moves from where it stopped towards newer rows, and around. It removes the marks of marked rows
    and evicts rows without a mark. Rows that planned batches hold are passed over and keep their marks. Tables of
    different widths share the hand.

    `score` only ranks rows. `evicted` then moves the hand to the last row that was evicted.
    """

    def __init__(self) -> None:
        self._places = ByRow(np.int64)  # in the queue, from 1 on; set on each admission
        self._marked = ByRow(np.bool_)
        self._end = self._hand = 0
        self._scored: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]] = []  # (batch, rows, scores)

    def looked_up(self, number: int, rows: NDArray[np.int64], view: TierView) -> None:
        self._places.reserve(view.num_rows)
        self._marked.reserve(view.num_rows)
        self._marked[rows] = view.resident(rows)

    def admitted(self, number: int, rows: NDArray[np.int64]) -> None:
        self._places[rows] = self._end + 1 + np.arange(len(rows))
        self._end += len(rows)

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        places = self._places[rows.rows]
        ahead = np.where(places > self._hand, places, places + _ROUND)
        scores = ahead + np.where(self._marked[rows.rows], 2 * _ROUND, 0)  # the hand's second time around
        if self._scored and self._scored[0][0] != rows.step:
            self._scored.clear()
        self._scored.append((rows.step, rows.rows, scores))
        return scores

    def evicted(self, number: int, rows: NDArray[np.int64]) -> None:
        for batch, candidates, scores in self._scored:
            evicted = np.isin(candidates, rows)
            if batch != number or not evicted.any():
                continue
            last = np.flatnonzero(evicted)[scores[evicted].argmax()]
            twice_around = scores[last] >= 2 * _ROUND
            passed = (scores % (2 * _ROUND) < scores[last]) | twice_around
            self._marked[candidates[passed & ~evicted]] = False
            self._hand = int(self._places[candidates[last : last + 1]][0])
        self._scored.clear()

    def state_dict(self) -> dict[str, NDArray[Any]]:
        rows = self._places.rows()
        return {
            "rows": rows,
            "places": self._places[rows],
            "marked": self._marked[rows],
            "queue": np.array([self._end, self._hand]),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, "rows", "places", "marked", "queue")
        rows = state["rows"]
        self._places.restore(rows, state["places"])
        self._marked.restore(rows, state["marked"])
        self._end, self._hand = (int(number) for number in state["queue"])
        self._scored.clear()
