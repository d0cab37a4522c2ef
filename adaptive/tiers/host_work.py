"""`HostWork`: what a device leaves to the host's processor: rows that a plan leaves there (`misses = "host"`).

Pooled vectors go to the device and their gradients come back, so the link carries vectors, not rows. The kernels and
the order of every sum are those of a device tier in ordinary memory: bits do not depend on who does the work.
"""

import numba
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive.aligned import update_scratch
from adaptive.kernels import cpu
from adaptive.kernels.deferred import update_from_sums
from adaptive.optim import RowOptimizer
from adaptive.planning.plan import Grouping, Int64s, Pooling
from adaptive.tiers.host import HostTier
from adaptive.tiers.staging import Link

Floats = NDArray[np.float32]


class HostWork:
    """On the rows of one group, in the training thread."""

    def __init__(self, host: HostTier, optimizer: RowOptimizer, link: Link) -> None:
        self._host, self._link = host, link
        self._kind, self._settings, self._corrections = optimizer.kind, optimizer.settings(), optimizer.corrections()
        self._threads = max(numba.get_num_threads(), 1)
        width = host.weights.shape[1]
        self._no_rows = np.zeros((0, width), np.float32), np.zeros((0, host.state.shape[1]), np.float32)
        self._scratch = update_scratch(self._threads, width)

    def pool(self, pooling: Pooling) -> Tensor:
        """(V, D) on the device: bags of which every row lies on the host."""

        def fill(out: Floats) -> None:
            cpu.pool(
                out,
                pooling.bag_vectors,
                pooling.bag_starts,
                pooling.locations,
                pooling.scales,
                self._no_rows[0],
                self._host.weights,
                self._threads,
            )

        return self._link.send_filled(np.float32, (pooling.num_vectors, self._no_rows[0].shape[1]), fill)

    def rows(self, rows: Int64s) -> Tensor | None:
        """(n, D) rows on the device; None if there are none."""
        if not len(rows):
            return None

        def fill(out: Floats) -> None:
            np.take(self._host.weights, rows, axis=0, out=out, mode="clip")  # "raise" would copy twice

        return self._link.send_filled(np.float32, (len(rows), self._no_rows[0].shape[1]), fill)

    def update(self, grouping: Grouping, gradients: Floats) -> Floats:
        """Update rows of the host from gradients (V, D); returns the L2 norm of each update (U,)."""
        norms = np.empty(len(grouping.rows), np.float32)
        cpu.update(
            grouping.locations,
            grouping.segments,
            grouping.vectors,
            grouping.scales,
            gradients,
            *self._no_rows,
            self._host.weights,
            self._host.state,
            self._kind,
            self._settings,
            self._corrections,
            norms,
            self._scratch,
        )
        return norms

    def update_from_sums(self, due: Grouping, sums: Floats, squares: Floats) -> Floats:
        """Update rows of the host from sums (n, D) and their squares (n, S), one row of these each: `due.vectors`.

        Returns the L2 norm of each update (U,).
        """
        entries = due.vectors.astype(np.int64)
        return self._apply(-1, due.locations, entries, sums, squares, self._host.weights, self._host.state)

    def settle(self, waiting: Int64s, sums: Floats, squares: Floats, weights: Floats, state: Floats) -> None:
        """Apply sums (n, D) with their squares (n, S) to copies: to the rows `waiting` (n,) of weights and state."""
        self._apply(0, waiting, np.arange(len(waiting)), sums, squares, weights, state)

    def _apply(
        self,
        flip: int,
        locations: Int64s,
        entries: Int64s,
        sums: Floats,
        squares: Floats,
        weights: Floats,
        state: Floats,
    ) -> Floats:
        norms = np.empty(len(locations), np.float32)
        update_from_sums(
            flip,
            locations,
            entries,
            sums,
            squares,
            weights,
            state,
            self._kind,
            self._settings,
            self._corrections,
            norms,
            self._scratch,
        )
        return norms
