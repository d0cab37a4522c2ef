"""First in, first out, with a second chance: SIEVE, Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024.

It grew out of S3-FIFO (https://doi.org/10.1145/3600006.3613147), which made the case for queues in place of LRU: most
rows are looked up once in a long time, and a queue gets rid of those soonest.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import Policy, RowStats, TierView
from adaptive.policies.samples import ByRow, check_state

_ROUND = 1 << 50  # more than there are places in the queue; scores are compared as float64, exact up to 2**53


class Sieve(Policy):
    """Rows stand in a queue in the order in which they came in; a lookup of a row that is there only marks it.

    To make room a hand goes from where it stopped towards newer rows, and around: it takes the mark off rows that have
    one and lets rows without one leave. Rows that planned batches hold are passed over and keep their marks. Tables of
    different widths share the hand.

    A policy ranks rows; which of them left it is told after that. Then the hand moves to the last of these.
    """

    def __init__(self) -> None:
        self._places = ByRow(np.int64)  # in the queue, from 1 on; kept when a row leaves, new when it returns
        self._marked = ByRow(np.bool_)
        self._end = self._hand = 0
        self._asked: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]] = []  # (batch, rows, scores)

    def looked_up(self, number: int, rows: NDArray[np.int64], view: TierView) -> None:
        self._places.reserve(view.num_rows)
        self._marked.reserve(view.num_rows)
        self._marked[rows] = view.resident(rows)

    def came(self, number: int, rows: NDArray[np.int64]) -> None:
        self._places[rows] = self._end + 1 + np.arange(len(rows))
        self._end += len(rows)

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        places = self._places[rows.rows]
        ahead = np.where(places > self._hand, places, places + _ROUND)
        scores = ahead + np.where(self._marked[rows.rows], 2 * _ROUND, 0)  # the hand's second time around
        if self._asked and self._asked[0][0] != rows.step:
            self._asked.clear()
        self._asked.append((rows.step, rows.rows, scores))
        return scores

    def left(self, number: int, rows: NDArray[np.int64]) -> None:
        for asked, candidates, scores in self._asked:
            gone = np.isin(candidates, rows)
            if asked != number or not gone.any():
                continue
            last = np.flatnonzero(gone)[scores[gone].argmax()]
            twice_around = scores[last] >= 2 * _ROUND
            passed = (scores % (2 * _ROUND) < scores[last]) | twice_around
            self._marked[candidates[passed & ~gone]] = False
            self._hand = int(self._places[candidates[last : last + 1]][0])
        self._asked.clear()

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
        self._asked.clear()
