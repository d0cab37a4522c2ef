"""First in, first out, with a second chance: SIEVE, Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024.

It grew out of S3-FIFO (https://doi.org/10.1145/3600006.3613147), which made the case for queues in place of LRU: most
rows are looked up once in a long time, and a queue gets rid of those soonest.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, Policy, RowStats, TierView
from policies.samples import ByRow

_ROUND = 1 << 50  # more than there are places in the queue; scores are compared as float64, exact up to 2**53


class Sieve(Policy):
    """Rows stand in a queue in the order in which they came in; a look-up of a row that is there only marks it.

    To make room a hand goes from where it stopped towards newer rows, and around: it takes the mark off rows that have
    one and lets rows without one leave. Rows that planned batches hold are passed over and keep their marks. Tables of
    different widths share the hand.

    A policy ranks rows and is not told how many left. So the hand moves when the next batch is read: to the last row
    of the ranking that is not on the device any more.
    """

    def __init__(self) -> None:
        self._places = ByRow(np.int64)  # in the queue, from 1 on; kept when a row leaves, new when it returns
        self._marked = ByRow(np.bool_)
        self._end = self._hand = 0
        self._asked: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]] = []  # (batch, rows, scores)

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        self._places.reserve(view.num_rows)
        self._marked.reserve(view.num_rows)
        for batch in batches:  # all batches before this one have been planned
            self._move_hand(view)
            rows = np.unique(view.rows(batch))
            here = view.resident(rows)
            coming = rows[~here]
            self._marked[rows] = here
            self._places[coming] = self._end + 1 + np.arange(len(coming))
            self._end += len(coming)
            yield batch

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        places = self._places[rows.rows]
        ahead = np.where(places > self._hand, places, places + _ROUND)
        scores = ahead + np.where(self._marked[rows.rows], 2 * _ROUND, 0)  # the hand's second time around
        if self._asked and self._asked[0][0] != rows.step:
            self._asked.clear()
        self._asked.append((rows.step, rows.rows, scores))
        return scores

    def _move_hand(self, view: TierView) -> None:
        for _, rows, scores in self._asked:
            gone = ~view.resident(rows)
            if not gone.any():
                continue
            last = np.flatnonzero(gone)[scores[gone].argmax()]
            twice_around = scores[last] >= 2 * _ROUND
            passed = (scores % (2 * _ROUND) < scores[last]) | twice_around
            self._marked[rows[passed & ~gone]] = False
            self._hand = int(self._places[rows[last : last + 1]][0])
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
        if sorted(state) != ["marked", "places", "queue", "rows"]:
            raise ValueError(f"Sieve: needed rows, places, marked and queue, found {sorted(state)}")
        rows = state["rows"]
        self._places[rows], self._marked[rows] = state["places"], state["marked"]
        self._end, self._hand = (int(number) for number in state["queue"])
        self._asked.clear()
