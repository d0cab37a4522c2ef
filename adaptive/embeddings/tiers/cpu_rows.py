"""`CpuRows`: the arithmetic on rows in ordinary memory, one numba kernel a method.

`CpuDevice` uses it, and so does `gpu.host_rows` for rows that a GPU leaves on the host: bits do not depend on which
processor does the work. Rows lie in slots, of which there may be none, or on the host.
"""

import numba
import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.planning.plan import Deferred, Int64s, Pooling, RowUpdates
from adaptive.embeddings.tiers.host import HostTier
from adaptive.kernels.aligned import full_rows, update_scratch
from adaptive.kernels.rows.cpu import decay, pool, update
from adaptive.kernels.rows.cpu import deferred as deferred_kernels
from adaptive.optim import RowOptimizer

Floats = NDArray[np.float32]


class CpuRows:
    """Pools and updates rows of one group, in slots and on the host. For one thread.

    Attributes:
        weights: (slots, D) float32. state: (slots, S) float32.
        scratch: (threads, 2, >= D) float32, for kernels.
    """

    def __init__(self, host: HostTier, optimizer: RowOptimizer, num_slots: int = 0, fill: float = 0.0) -> None:
        self._host = host
        self.use(optimizer)
        self.scratch = update_scratch(max(numba.get_num_threads(), 1), host.weights.shape[1])
        self.resize(num_slots, fill)

    def use(self, optimizer: RowOptimizer) -> None:
        """Update rows by these settings from now on; the formula and the state are the same."""
        self._rule = optimizer.kind, optimizer.settings(), optimizer.corrections()
        self._kept = np.float32(optimizer.kept)

    def resize(self, num_slots: int, fill: float = 0.0) -> None:
        """Reallocate to `num_slots` slots that hold `fill`."""
        self.weights = full_rows(num_slots, self._host.weights.shape[1], fill)
        self.state = full_rows(num_slots, self._host.state.shape[1], fill)

    def pool(self, out: Floats, pooling: Pooling, rows: Floats | None = None) -> None:
        """Write the vectors (V, D), from slots and host, or from `rows` (U, D) in the place of slots."""
        pool.pool(
            out,
            pooling.bag_vectors,
            pooling.bag_starts,
            pooling.inverse,
            pooling.row_locations,
            pooling.scales,
            self.weights if rows is None else rows,
            self._host.weights,
            len(self.scratch),
        )

    def update(self, row_updates: RowUpdates, gradients: Floats) -> Floats:
        """Update rows where they lie from gradients (V, D); returns the L2 norm of each update (U,)."""
        norms = np.empty(len(row_updates.rows), np.float32)
        self._decay(row_updates.locations)
        update.update(
            row_updates.locations,
            row_updates.segments,
            row_updates.vectors,
            row_updates.scales,
            gradients,
            self.weights,
            self.state,
            self._host.weights,
            self._host.state,
            *self._rule,
            norms,
            self.scratch,
        )
        return norms

    def defer(
        self, deferred: Deferred, gradients: Floats, sums: Floats, squares: Floats, pending: NDArray[np.bool_]
    ) -> Floats:
        """Add gradients (V, D) to sums (H, D) and squares (H, S), which then wait (H,), and apply those that are due.

        Returns the L2 norm of each update (n,).
        """
        row_updates = deferred.row_updates
        norms = np.empty(len(deferred.due_rows), np.float32)
        self._decay(deferred.due_locations)
        deferred_kernels.defer(
            row_updates.locations,
            row_updates.segments,
            row_updates.vectors,
            row_updates.scales,
            gradients,
            sums,
            squares,
            pending,
            deferred.due_at,
            deferred.due_locations,
            deferred.due_entries,
            self.weights,
            self.state,
            self._host.weights,
            self._host.state,
            *self._rule,
            norms,
            self.scratch,
        )
        return norms

    def apply_sums_on_host(self, locations: Int64s, entries: Int64s, sums: Floats, squares: Floats) -> Floats:
        """Update rows of the host at `locations` (n,), all ~row, each from the sum and squares of its entry (n,).

        Returns the L2 norm of each update (n,).
        """
        return self._apply(-1, locations, entries, sums, squares, self._host.weights, self._host.state)

    def apply_sums_to_copies(
        self, places: Int64s, entries: Int64s, sums: Floats, squares: Floats, weights: Floats, state: Floats
    ) -> None:
        """The same for copies of rows: rows `places` (n,) of `weights` and `state`. Changes no row of a tier."""
        self._apply(0, places, entries, sums, squares, weights, state)

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
        if self._kept != 1:
            decay.decay(flip, locations, self._kept, weights, len(self.scratch))
        deferred_kernels.update_from_sums(
            flip, locations, entries, sums, squares, weights, state, *self._rule, norms, self.scratch
        )
        return norms

    def _decay(self, locations: Int64s) -> None:
        """Weight decay of rows about to be updated, in slots and on the host."""
        if self._kept != 1:
            for flip, weights in ((0, self.weights), (-1, self._host.weights)):
                decay.decay(flip, locations, self._kept, weights, len(self.scratch))
