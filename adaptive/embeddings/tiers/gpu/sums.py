"""`TorchSums`: gradients of watched rows that wait on a torch device, with what they add to Adagrad's state.

The rules are those of `kernels.rows.cpu.deferred`. Letters: H watched rows, D width of a row, S width of its squares.
"""

import numpy as np
import torch
from torch import Tensor

from adaptive.embeddings.tiers.device import Floats, Int64s
from adaptive.embeddings.tiers.gpu.link import ComputeLink
from adaptive.embeddings.tiers.gpu.sent import SentDeferred
from adaptive.kernels.rows.choose import RowKernels


class TorchSums:
    """Waiting gradients: sums (H, D), squares (H, S) float32; pending (H,) bool tells which entries count."""

    def __init__(self, capacity: int, width: int, squares_width: int, device: torch.device) -> None:
        self.sums = torch.full((capacity, width), torch.nan, device=device)
        self.squares = torch.full((capacity, squares_width), torch.nan, device=device)
        self.pending = torch.zeros(capacity, dtype=torch.bool, device=device)

    def add(self, deferred: SentDeferred, gradients: Tensor, kernels: RowKernels) -> None:
        """Add a batch's gradients (V, D) on the current stream; sums that are due after it no longer wait."""
        segments = deferred.segments_sent
        kernels.accumulate(
            segments.locations,
            segments.starts,
            segments.vectors,
            segments.scales,
            gradients,
            self.sums,
            self.squares,
            self.pending,
            hot=segments.hot,
        )
        self.pending.index_fill_(0, deferred.due_sent, False)

    def forget(self) -> None:
        """Drop all sums that wait."""
        self.pending.fill_(False)

    def read(self, entries: Int64s, link: ComputeLink) -> tuple[Int64s, Floats, Floats]:
        """What waits for the rows with `entries` (n,) or -1: positions (m,), sums (m, D), squares (m, S).

        Waits for the device.
        """
        watched = np.flatnonzero(entries >= 0)
        waiting = watched[link.read(self.pending[:, None], entries[watched])[:, 0] > 0]
        return waiting, link.read(self.sums, entries[waiting]), link.read(self.squares, entries[waiting])

    def restore(self, entries: Int64s, sums: Floats, squares: Floats) -> None:
        """Restore sums (m, D) and squares (m, S) that wait for the entries (m,)."""
        device = self.sums.device
        places = torch.from_numpy(entries).to(device)
        self.sums[places], self.squares[places] = (torch.from_numpy(rows).to(device) for rows in (sums, squares))
        self.pending[places] = True

    @property
    def num_bytes(self) -> int:
        return self.sums.nbytes + self.squares.nbytes + self.pending.nbytes
