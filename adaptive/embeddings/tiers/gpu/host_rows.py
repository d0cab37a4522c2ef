"""`HostRows`: work on rows that a plan leaves on the host (`misses = "host"`), done by the host's processor.

Pooled vectors go to the device and their gradients come back, so the link carries vectors, not rows. The arithmetic is
that of a device tier in ordinary memory (`CpuRows`): bits do not depend on who does the work.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive.embeddings.planning.plan import Int64s, Pooling, RowUpdates
from adaptive.embeddings.tiers.cpu_rows import CpuRows
from adaptive.embeddings.tiers.gpu.link import ComputeLink
from adaptive.embeddings.tiers.host import HostTier
from adaptive.optim import RowOptimizer

Floats = NDArray[np.float32]


class HostRows:
    """Pools and updates rows of one group that lie on the host, in the training thread."""

    def __init__(self, host: HostTier, optimizer: RowOptimizer, link: ComputeLink) -> None:
        self._host, self._link = host, link
        self._rows = CpuRows(host, optimizer)
        self._width = host.weights.shape[1]

    def use(self, optimizer: RowOptimizer) -> None:
        """Update rows by these settings from now on."""
        self._rows.use(optimizer)

    def pool(self, pooling: Pooling) -> Tensor:
        """(V, D) on the device: bags of which every row lies on the host."""

        def fill(out: Floats) -> None:
            self._rows.pool(out, pooling)

        return self._link.send_filled(np.float32, (pooling.num_vectors, self._width), fill)

    def rows(self, rows: Int64s) -> Tensor | None:
        """(n, D) rows on the device; None if there are none."""
        if not len(rows):
            return None

        def fill(out: Floats) -> None:
            np.take(self._host.weights, rows, axis=0, out=out, mode="clip")  # "raise" would copy twice

        return self._link.send_filled(np.float32, (len(rows), self._width), fill)

    def update(self, row_updates: RowUpdates, gradients: Floats) -> Floats:
        """Update rows of the host from gradients (V, D); returns the L2 norm of each update (U,)."""
        return self._rows.update(row_updates, gradients)

    def update_from_sums(self, due: RowUpdates, sums: Floats, squares: Floats) -> Floats:
        """Update rows of the host from sums (n, D) and their squares (n, S), one row of these each: `due.vectors`.

        Returns the L2 norm of each update (U,).
        """
        return self._rows.apply_sums_on_host(due.locations, due.vectors.astype(np.int64), sums, squares)

    def apply_waiting(self, waiting: Int64s, sums: Floats, squares: Floats, weights: Floats, state: Floats) -> None:
        """Apply sums (n, D) with their squares (n, S) to copies: to the rows `waiting` (n,) of weights and state."""
        self._rows.apply_sums_to_copies(waiting, np.arange(len(waiting)), sums, squares, weights, state)
